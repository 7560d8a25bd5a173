"""The common style of all plots: axes with margins in pixels, axes of rounds, labels of lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from fedgsca.lab.report.palette import GREY, GRID, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

SIZE = 12.5
SMALL = 11.5
# up to this many points of a line are marked
MAX_MARKERS = 30

STYLE = {
    "svg.fonttype": "none",
    "font.size": SIZE,
    "font.family": "DejaVu Sans",
    # a $ in a class name is a $
    "text.parse_math": False,
    "text.color": INK,
    "axes.titlecolor": INK,
    "axes.labelcolor": GREY,
    "xtick.labelcolor": GREY,
    "ytick.labelcolor": GREY,
    "axes.edgecolor": GRID,
    "grid.color": GRID,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "axes.titlesize": SIZE,
    "axes.labelsize": SMALL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 8,
    "axes.titley": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.linewidth": 1.0,
    "axes.linewidth": 1.0,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "lines.linewidth": 2.2,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.facecolor": "none",
}
_TICK_STEPS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000)
_LOG_SCALE_FROM = 30  # ratio of the largest to the smallest value


@dataclass(frozen=True)
class LineEnd:
    """The name of a line, to be printed at its right end."""

    value: float
    text: str
    colour: str


def with_plot_style(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorator of a function that draws: our style applies while it runs, and not afterwards."""

    @wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib as mpl

        with mpl.rc_context(STYLE):  # type: ignore[arg-type]
            return draw(*args, **kwargs)

    return draw_in_style


def make_axes(
    width: int,
    height: int,
    margin_left: int = 46,
    margin_right: int = 14,
    margin_top: int = 30,
    margin_bottom: int = 42,
) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, in pixels. Automatic layout takes longer than drawing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72))
    box = (
        margin_left / width,
        margin_bottom / height,
        1 - (margin_left + margin_right) / width,
        1 - (margin_top + margin_bottom) / height,
    )
    return figure, figure.add_axes(box)


def shorten(text: str, width: int) -> str:
    """The text with at most `width` characters; an ellipsis shows that it was cut."""
    if len(text) <= width:
        return text
    return text[: width - 1] + "…"


def marker_for(num_points: int, limit: int = MAX_MARKERS) -> str | None:
    """Dots on a line of few points; None on a longer one."""
    return "o" if num_points < limit else None


def format_round_axis(axes: Axes, rounds: int, *, ticks: int = 7) -> None:
    """Make x the axis of the communication rounds, from 1, with about `ticks` round numbers."""
    steps = [step for step in _TICK_STEPS if rounds / step <= ticks]
    step = steps[0] if steps else max(1, rounds // 5)
    later_ticks = [x for x in range(step, rounds + 1, step) if x - 1 >= 0.5 * step]
    axes.set_xticks([1, *later_ticks])
    padding = 0.5 if rounds < 30 else rounds / 100
    axes.set_xlim(1 - padding, max(rounds, 2) + padding)
    axes.set_xlabel("Round")


def label_line_ends(axes: Axes, ends: Sequence[LineEnd], room: float) -> None:
    """Print names at the right ends of lines, moved apart where they would overlap.

    `room` is the share of the height that one name needs.
    """
    if not ends:
        return
    ends = sorted(ends, key=lambda end: (end.value, end.text))
    heights = [_relative_height(axes, end.value) for end in ends]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + room)
    excess = max(0.0, heights[-1] - 1)
    for height, end in zip(heights, ends, strict=True):
        # a name in the colour of its line would be hard to read: a dot has the colour
        _annotate_edge(axes, height - excess, 6, "●", color=end.colour)
        _annotate_edge(axes, height - excess, 20, end.text, fontweight="bold")


def _relative_height(axes: Axes, value: float) -> float:
    """A value as a share of the height of the axes."""
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log":
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


def _annotate_edge(axes: Axes, height: float, offset: int, text: str, **style: str) -> None:
    """Text beside the right edge of the axes, `offset` pixels away."""
    axes.annotate(
        text,
        (1, height),
        (offset, 0),
        xycoords="axes fraction",
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        **style,  # type: ignore[arg-type]
    )


def scale_value_axis(axes: Axes, values: Sequence[float]) -> None:
    """Make y logarithmic if the values span a factor of 30 or more; otherwise it begins at zero."""
    positive = [value for value in values if value > 0]
    if positive and max(values) / min(positive) > _LOG_SCALE_FROM:
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: _power_text(value))
    else:
        axes.set_ylim(bottom=0)


def _power_text(value: float) -> str:
    if value >= 0.01:
        return f"{value:g}"
    return f"{value:.0e}".replace("e-0", "e−")
