"""From a sketch to files: facets on one canvas, a line about the data, and SVG, PNG and inline SVG.

The same result gives the same bytes: fixed ids, no dates. Text stays text in the SVG; the PNG has
200 dots per inch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from textwrap import wrap
from typing import TYPE_CHECKING

from fedgsca.report.palette import GREY
from fedgsca.report.plot_style import SMALL, with_plot_style
from fedgsca.report.svg_output import figure_svg

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# pixels: a page, a phone
WIDE = 1000
NARROW = 440
DPI = 200
# pixels of a line of text below the facets
_LINE_HEIGHT = 15
# draws for a page (True) or for a phone (False)
Sketch = Callable[[bool], "Figure"]


@dataclass(frozen=True)
class Drawing:
    """One figure in all its forms."""

    name: str
    title: str
    alt: str
    caption: str
    inline: str
    # for a phone; empty: the page's drawing is used
    narrow: str
    svg: bytes
    png: bytes
    # its name while it is folded; empty: it is not folded
    fold: str = ""


@dataclass(frozen=True)
class Frame:
    """The size and margins of a facet in pixels."""

    height: int
    margin_left: int = 46
    margin_right: int = 14
    margin_top: int = 30
    margin_bottom: int = 42
    # 0: the facets share the canvas
    width: int = 0


@with_plot_style
def make_drawing(
    sketch: Sketch, name: str, title: str, alt: str, caption: str, fold: str = ""
) -> Drawing:
    """Draw a figure for the page and, unless it is folded, for a phone."""
    page = sketch(True)
    narrow = "" if fold else figure_svg(sketch(False), f"{name}-narrow")
    inline = figure_svg(page, name)
    return Drawing(name, title, alt, caption, inline, narrow, _svg(page, name), _png(page), fold)


def make_facets(
    count: int,
    frame: Frame,
    foot: str,
    *,
    wide: bool,
    across: int = 2,
    legend: Sequence[Artist] = (),
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes: `across` of them side by side on a page, one on a phone.

    `legend` are handles for a legend above the axes; `foot` is a text about the data below them.
    """
    from matplotlib.figure import Figure

    across = min(across, count) if wide else 1
    shared_width = WIDE // max(across, 2) if wide else NARROW
    width = frame.width or shared_width
    down = -(-count // across)
    total = width * across
    per_line = max(1, total // 150)
    head = 26 * -(-len(legend) // per_line)
    lines = wrap(foot, int(total / 6.1))
    height = head + down * frame.height + 14 + _LINE_HEIGHT * len(lines)
    figure = Figure(figsize=(total / 72, height / 72))
    facets = []
    for i in range(count):
        x = width * (i % across) + frame.margin_left
        y = height - head - frame.height * (i // across + 1) + frame.margin_bottom
        inner_width = width - frame.margin_left - frame.margin_right
        inner_height = frame.height - frame.margin_top - frame.margin_bottom
        box = (x / total, y / height, inner_width / total, inner_height / height)
        facets.append(figure.add_axes(box))
    if legend:
        _draw_legend(figure, legend, per_line)
    place = (8 / total, 8 / height)
    text = "\n".join(lines)
    figure.text(*place, text, color=GREY, fontsize=10, va="bottom", linespacing=1.3)
    return figure, facets


def _draw_legend(figure: Figure, handles: Sequence[Artist], per_line: int) -> None:
    figure.legend(
        handles=list(handles),
        loc="upper left",
        ncols=per_line,
        frameon=False,
        fontsize=SMALL,
        borderaxespad=0.3,
    )


def _svg(figure: Figure, name: str) -> bytes:
    import matplotlib as mpl

    buffer = StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", facecolor="white", metadata=no_metadata)
    # where the font that measured the text is missing, another sans serif is better than a serif
    fonts = "'DejaVu Sans', Verdana, Arial, sans-serif"
    return re.sub(r"'DejaVu Sans'(?!,)", fonts, buffer.getvalue()).encode()


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
