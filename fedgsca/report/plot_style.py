"""Canvas and colours of all plots: matplotlib figures that become small inline SVGs whose colours the page decides.

Every colour is a token of style.css. matplotlib draws with its light value, the SVG gets var(--token) in its place, and so one
drawing serves light, dark and print. Text stays text: it can be selected and searched. One unit is one CSS pixel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import wraps
from io import StringIO
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

# Light values, each unique because it is the name by which the SVG finds its token; style.css has the dark ones.
TOKENS = {
    "ink": "#1a2531", "muted": "#586474", "grid": "#e2e7ed", "paper": "#ffffff", "shade": "#eef2f6",
    "clean": "#0f6cb4", "noisy": "#d35f0b",
    "s0": "#0a5fa5", "s1": "#77818d", "s2": "#c58700", "s3": "#0a7a50",
    "s4": "#c2246e", "s5": "#3f9fd1", "s6": "#8f2a14", "s7": "#43216b",
}  # fmt: skip
INK, MUTED, GRID, PAPER, SHADE, CLEAN, NOISY, MAIN = list(TOKENS.values())[:8]

# One colour and one dash per method, the same in every plot: blue is FedGSCA, grey is the baseline. They differ in lightness,
# too, so that the colour-blind can tell them apart (CIELAB distance >= 9 in simulation), and stand out from the page by 3:1.
SLOTS = ("fedgsca", "fedavg", "fedprox", "fedcorr", "fednoro", "fedgp", "fedrobust", "fedfixer")
DASHES: tuple[tuple[float, ...], ...] = (
    (), (6, 2), (1.5, 1.8), (6, 2, 1.5, 2), (3, 1.5), (8, 2, 1.5, 2, 1.5, 2), (4, 3), (10, 3),
)  # fmt: skip
SIZE, SMALL = 12.5, 11.5

STYLE = {
    "svg.fonttype": "none", "font.size": SIZE, "font.family": "DejaVu Sans",
    "text.parse_math": False,  # a $ in a class name is a $
    "text.color": INK, "axes.titlecolor": INK, "axes.labelcolor": MUTED, "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED,
    "axes.edgecolor": GRID, "grid.color": GRID, "xtick.color": GRID, "ytick.color": GRID,
    "axes.titlesize": SIZE, "axes.labelsize": SMALL, "xtick.labelsize": SMALL, "ytick.labelsize": SMALL,
    "axes.titlelocation": "left", "axes.titleweight": "bold", "axes.titlepad": 8, "axes.titley": 1.0,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.axisbelow": True,
    "axes.grid": True, "axes.grid.axis": "y", "grid.linewidth": 1.0, "axes.linewidth": 1.0,
    "ytick.major.size": 0, "xtick.major.size": 3, "lines.linewidth": 2.2, "lines.solid_capstyle": "round",
    "figure.facecolor": "none", "savefig.facecolor": "none", "axes.facecolor": "none",
}  # fmt: skip


def slot(method: str) -> int:
    """The place of a method in palette and dashes; methods we do not know share the rest by name."""
    name = method.lower()
    return SLOTS.index(name) if name in SLOTS else 2 + sum(map(ord, name)) % (len(SLOTS) - 2)


def colour(index: int) -> str:
    return TOKENS[f"s{index % len(SLOTS)}"]


def dash(index: int) -> Any:
    """As matplotlib's line style."""
    return (0, DASHES[index % len(DASHES)] or None)


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """A function that draws, with our style in force while it runs and nothing changed afterwards."""

    @wraps(draw)
    def within(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib as mpl

        with mpl.rc_context(STYLE):  # type: ignore[arg-type]
            return draw(*args, **kwargs)

    return within


def canvas(
    width: int, height: int, left: int = 46, right: int = 14, top: int = 30, bottom: int = 42
) -> tuple[Figure, Axes]:
    """One pair of axes with margins in pixels: automatic layout would cost more time than drawing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72))
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    return figure, figure.add_axes(box)


def round_axis(axes: Axes, rounds: int, *, ticks: int = 7) -> None:
    """Communication rounds, counted from 1, with a handful of round numbers."""
    step = next(
        (s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000) if rounds / s <= ticks),
        max(1, rounds // 5),
    )
    axes.set_xticks([1, *(x for x in range(step, rounds + 1, step) if x - 1 >= 0.5 * step)])
    axes.set_xlim(
        0.5 if rounds < 30 else 1 - rounds / 100,
        max(rounds, 2) + (0.5 if rounds < 30 else rounds / 100),
    )
    axes.set_xlabel("Round")


def end_labels(axes: Axes, ends: Sequence[tuple[float, str, str]], room: float) -> None:
    """Names (value, text, colour) at the right end of lines, moved apart if need be; `room`: a name's share of the height."""
    low, high = axes.get_ylim()
    log = axes.get_yscale() == "log"
    if log:
        low, high = math.log(low), math.log(high)
    ordered = sorted(ends)
    places = [
        ((math.log(value) if log else value) - low) / (high - low) for value, _, _ in ordered
    ]  # shares of the height
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + room)
    over = max(0.0, places[-1] - 1) if places else 0.0
    beside: dict[str, Any] = {
        "textcoords": "offset points",
        "xycoords": "axes fraction",
        "va": "center",
        "fontsize": SMALL,
    }
    for place, (_, text, shade) in zip(places, ordered, strict=True):
        axes.annotate(
            "●", (1, place - over), (6, 0), color=shade, **beside
        )  # a name in the line's own colour would be hard to read
        axes.annotate(text, (1, place - over), (20, 0), fontweight="bold", **beside)


def scale_y(axes: Axes, values: Sequence[float]) -> None:
    """Logarithmic from a factor of 30 on, from zero otherwise."""
    low = min((value for value in values if value > 0), default=0.0)
    if low and max(values) / low > 30:
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(
            lambda value, _: f"{value:g}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e−")
        )
    else:
        axes.set_ylim(bottom=0)


def svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element for a page: no header, no fixed size, no outside address; ids unique by `name`."""
    import matplotlib as mpl

    text = StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(
            text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    return _tidy(text.getvalue())


def _tidy(drawing: str) -> str:
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing)[0]
    drawing = re.sub(
        r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>",
        "",
        drawing[drawing.index("<svg") :],
        flags=re.S,
    )
    head = f'<svg viewBox="0 0 {width} {height}" style="max-width:{1.2 * float(width):.0f}px" aria-hidden="true">'
    drawing = re.sub(r"<svg [^>]*>", head, drawing, count=1).replace("xlink:href", "href")
    drawing = re.sub(
        r'<path d="[^"]*" style="fill: none"/>', "", drawing
    )  # the invisible backgrounds
    used = set(re.findall(r'(?:href="#|url\(#)([\w-]+)', drawing))
    drawing = re.sub(r'\sid="([^"]*)"', lambda m: m[0] if m[1] in used else "", drawing)
    # the page's own typeface; DejaVu, which measured the text, is wider than almost all of them, so nothing overflows
    drawing = re.sub(r"font-family: [^;\"]*;?", "", drawing)
    for token, value in TOKENS.items():
        drawing = drawing.replace(value, f"var(--{token})")
    drawing = re.sub(
        r'(?:d|x|y|transform)="[^"]*"', lambda m: re.sub(r"(\.\d)\d+", r"\1", m[0]), drawing
    )  # a tenth of a pixel
    return re.sub(r">\s+<", "><", re.sub(r"\s*\n\s*", " ", drawing)).strip()
