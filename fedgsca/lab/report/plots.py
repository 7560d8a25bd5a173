"""Colours and style of all plots, and figures as inline SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from io import StringIO
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from zlib import crc32

from fedgsca.lab.table import LegendEntry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Light values, each unique because it identifies its token in a drawing. Dark ones: style.css.
TOKENS = {
    "ink": "#1a2531",
    "muted": "#586474",
    "grid": "#e2e7ed",
    "paper": "#ffffff",
    "shade": "#eef2f6",
    "clean": "#0f6cb4",
    "noisy": "#d35f0b",
    "s0": "#0a5fa5",
    "s1": "#77818d",
    "s2": "#c58700",
    "s3": "#0a7a50",
    "s4": "#c2246e",
    "s5": "#3f9fd1",
    "s6": "#8f2a14",
    "s7": "#43216b",
}
INK = TOKENS["ink"]
GREY = TOKENS["muted"]
GRID = TOKENS["grid"]
PAPER = TOKENS["paper"]
SHADE = TOKENS["shade"]
CLEAN = TOKENS["clean"]
NOISY = TOKENS["noisy"]
MAIN = TOKENS["s0"]

# The colours s0 to s7 differ in lightness as well, so that colour-blind readers can distinguish
# them (CIELAB distance >= 9 in simulation), and contrast with the page by 3:1.
NUM_COLOURS = 8
DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (6, 2),
    (1.5, 1.8),
    (6, 2, 1.5, 2),
    (3, 1.5),
    (8, 2, 1.5, 2, 1.5, 2),
    (4, 3),
    (10, 3),
)

# The methods of the paper keep their colours: blue is FedGSCA, grey is the baseline. A method that
# is not named here needs no entry.
_FIXED_SLOTS = {
    "fedgsca": 0,
    "fedavg": 1,
    "fedprox": 2,
    "fedcorr": 3,
    "fednoro": 4,
    "fedgp": 5,
    "fedrobust": 6,
    "fedfixer": 7,
}


def method_slot(method: str) -> int:
    """The slot of a method, the same in every plot.

    Other registered methods follow those of the paper, in table order. A method that is not
    installed gets a slot from its name.
    """
    name = method.lower()
    if name in _FIXED_SLOTS:
        return _FIXED_SLOTS[name]
    other_methods = _other_methods()
    if name in other_methods:
        return NUM_COLOURS + other_methods.index(name)
    return NUM_COLOURS + len(other_methods) + crc32(name.encode()) % NUM_COLOURS


def _other_methods() -> list[str]:
    """Registered methods without a fixed slot, in table order."""
    from fedgsca.methods.base import load_methods

    return [name for name in load_methods() if name not in _FIXED_SLOTS]


def slot_token(slot: int) -> str:
    """The colour of a slot, as a token of style.css."""
    return f"s{slot % NUM_COLOURS}"


def slot_colour(slot: int) -> str:
    """The colour of a slot, as its light value."""
    return TOKENS[slot_token(slot)]


def slot_dashes(slot: int) -> tuple[float, ...]:
    """The dash pattern of a slot. When colours repeat, the patterns are shifted by one."""
    return DASHES[(slot + slot // NUM_COLOURS) % len(DASHES)]


def slot_line_style(slot: int) -> tuple[int, tuple[float, ...] | None]:
    """The dash pattern of a slot as a line style of matplotlib."""
    return (0, slot_dashes(slot) or None)


def method_entry(method: str, label: str) -> LegendEntry:
    """A method in a legend or a table, with its colour and dash."""
    slot = method_slot(method)
    return LegendEntry(label, slot_token(slot), "line", slot_dashes(slot))


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


def figure_svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element: no header, no fixed size, no address of another file.

    `name` must be unique within the page, because the ids of the drawing are derived from it.
    """
    import matplotlib as mpl

    text = StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata=no_metadata)
    return _simplify(text.getvalue())


def standalone_svg(drawing: str) -> str:
    """An inline drawing as a file of its own: light colours, a typeface, white behind it."""
    for token, colour in TOKENS.items():
        drawing = drawing.replace(f"var(--{token})", colour)
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        ' font-family="DejaVu Sans, Verdana, Arial, sans-serif"'
    )
    start, _, content = drawing.partition(">")
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    text = start.replace("<svg", head, 1) + ">" + background + content
    return text.replace(" href=", " xlink:href=") + "\n"


def _simplify(drawing: str) -> str:
    """matplotlib's file without its head, names of programs, typeface and superfluous digits.

    DejaVu, which it used for measuring the text, is wider than almost all other typefaces, so that
    nothing overflows in that of the page.
    """
    drawing = drawing[drawing.index("<svg") :]
    for pattern, text in _REPLACEMENTS:
        drawing = pattern.sub(text, drawing)
    drawing = _PLACES.sub(lambda match: _DIGITS.sub(r"\1", match.group()), drawing)
    ids = {*re.findall(r"#([\w.-]+)[)\"]", drawing)}
    drawing = re.sub(
        r' id="([^"]*)"', lambda match: match.group() if match.group(1) in ids else "", drawing
    )
    for token, colour in TOKENS.items():
        drawing = drawing.replace(colour, f"var(--{token})")
    view_box = re.search(r'viewBox="([^"]*)"', drawing)
    assert view_box is not None  # every figure has one
    width = float(view_box.group(1).split()[2])
    style = f"max-width:{1.2 * width:.0f}px"
    head = f'<svg viewBox="{view_box.group(1)}" style="{style}" aria-hidden="true">'
    return head + drawing[drawing.index(">") + 1 :]


_PLACES = re.compile(r' (d|x|y|transform)="[^"]*"')
_DIGITS = re.compile(r"(\.\d)\d+")
_REPLACEMENTS = tuple(
    (re.compile(pattern, re.DOTALL), text)
    for pattern, text in (
        (r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", ""),
        (r'<path [^>]*style="fill: none"\s*/>', ""),  # backgrounds
        (r"font: ([\d.]+px) [^;\"]*", r"font-size: \1"),
        (r"font-family: [^;\"]*;?", ""),
        (r"xlink:href", "href"),
        (r">\s+<", "><"),
        (r"\s+", " "),
    )
)
