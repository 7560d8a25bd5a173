"""Colours and style of all plots, and figures as inline SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from io import StringIO
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from xml.etree import ElementTree
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


# parts of matplotlib's SVG that a page does not need
_SUPERFLUOUS_TAGS = ("metadata", "style")
_COORDINATES = ("d", "x", "y", "transform")
_TOKEN_OF_COLOUR = {colour: token for token, colour in TOKENS.items()}
_HEX_COLOUR = re.compile("#[0-9a-f]{6}")
_DECIMALS = re.compile(r"(\.\d)\d+")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


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
    root = ElementTree.fromstring(drawing)
    for element in root.iter():
        _remove_namespaces(element)
    for element in root.iter():
        _remove_superfluous_children(element)
        _remove_indentation(element)
    references = _find_references(root)
    for element in root.iter():
        _simplify_attributes(element, references)
    _set_head(root)
    return ElementTree.tostring(root, encoding="unicode")


def _remove_namespaces(element: ElementTree.Element) -> None:
    """Plain names: within a page of HTML, SVG needs no namespace."""
    element.tag = _local_name(element.tag)
    element.attrib = {_local_name(name): value for name, value in element.attrib.items()}


def _local_name(name: str) -> str:
    return name.rpartition("}")[2]


def _remove_superfluous_children(element: ElementTree.Element) -> None:
    for child in list(element):
        if child.tag in _SUPERFLUOUS_TAGS or _is_invisible(child):
            element.remove(child)


def _is_invisible(element: ElementTree.Element) -> bool:
    """The backgrounds of the figure and of its axes, which have neither a fill nor a stroke."""
    return element.tag == "path" and element.attrib.get("style") == "fill: none"


def _remove_indentation(element: ElementTree.Element) -> None:
    """Line breaks between elements; the text of an element stays."""
    if element.text is not None and not element.text.strip():
        element.text = None
    element.tail = None


def _find_references(root: ElementTree.Element) -> set[str]:
    """The ids to which an element of the drawing refers."""
    references = set()
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "href":
                references.add(value.removeprefix("#"))
            references.update(_REFERENCE.findall(value))
    return references


def _simplify_attributes(element: ElementTree.Element, references: set[str]) -> None:
    if element.attrib.get("id") not in references:
        element.attrib.pop("id", None)
    for name, value in element.attrib.items():
        if name in _COORDINATES:
            element.attrib[name] = " ".join(_DECIMALS.sub(r"\1", value).split())
        elif name == "style":
            element.attrib[name] = _simplify_style(value)


def _simplify_style(style: str) -> str:
    """Tokens instead of colours, and the typeface of the page.

    DejaVu, which matplotlib used for measuring the text, is wider than almost all other typefaces,
    so that nothing overflows.
    """
    declarations = []
    for declaration in style.split(";"):
        if declaration.strip() and not declaration.strip().startswith("font-family:"):
            declarations.append(_HEX_COLOUR.sub(_to_token, declaration.strip()))
    return "; ".join(declarations)


def _to_token(match: re.Match[str]) -> str:
    token = _TOKEN_OF_COLOUR.get(match.group())
    return match.group() if token is None else f"var(--{token})"


def _set_head(root: ElementTree.Element) -> None:
    """The size in units, from which the browser takes the proportions, and a maximal width."""
    view_box = root.attrib["viewBox"]
    width = float(view_box.split()[2])
    root.attrib = {
        "viewBox": view_box,
        "style": f"max-width:{1.2 * width:.0f}px",
        "aria-hidden": "true",
    }
