"""From a sketch to files: facets on one canvas, the line that says which data was used, and the figure as SVG, PNG and inline SVG.

The same bytes on every run: fixed ids, no dates. Text stays text in the SVG; the PNG has 200 dots per inch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedgsca.report.plot_style import MUTED, SMALL, styled, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 1000, 440  # pixels: a page, a phone
DPI = 200
_LINE = 15  # pixels of a line of the foot


@dataclass(frozen=True)
class Drawing:
    """One figure in all its forms."""

    name: str
    title: str
    alt: str
    caption: str
    inline: str
    narrow: str  # for a phone; empty where the page's drawing has to do
    svg: bytes
    png: bytes
    fold: str = ""  # what it is called while closed; empty: open


@dataclass(frozen=True)
class Frame:
    """A facet's size and margins in pixels."""

    height: int
    left: int = 46
    right: int = 14
    top: int = 30
    bottom: int = 42
    width: int = 0  # 0: the canvas is shared out


@styled
def drawing(
    sketch: Callable[[bool], Figure], name: str, title: str, alt: str, caption: str, fold: str = ""
) -> Drawing:
    """`sketch` draws for a page (True) or for a phone (False)."""
    page = sketch(True)
    narrow = "" if fold else svg(sketch(False), f"{name}-narrow")
    return Drawing(
        name, title, alt, caption, svg(page, name), narrow, _svg(page, name), _png(page), fold
    )


def facets(
    count: int, frame: Frame, foot: str, *, wide: bool, across: int = 2, legend: Sequence[Any] = ()
) -> tuple[Figure, list[Axes]]:
    """`count` axes, so many across on a page and one on a phone; a legend above them and a line about the data below."""
    from matplotlib.figure import Figure

    across = min(across, count) if wide else 1
    width = frame.width or (WIDE // max(across, 2) if wide else NARROW)
    down = -(-count // across)
    total = width * across
    per_line = max(1, total // 150)
    head = 26 * -(-len(legend) // per_line) if legend else 0
    lines = wrap(foot, int(total / 6.1))
    height = head + down * frame.height + 14 + _LINE * len(lines)
    figure = Figure(figsize=(total / 72, height / 72))
    made = []
    for i in range(count):
        x, y = width * (i % across), height - head - frame.height * (i // across + 1)
        box = (
            x + frame.left,
            y + frame.bottom,
            width - frame.left - frame.right,
            frame.height - frame.top - frame.bottom,
        )
        made.append(
            figure.add_axes((box[0] / total, box[1] / height, box[2] / total, box[3] / height))
        )
    if legend:
        figure.legend(
            handles=list(legend),
            loc="upper left",
            ncols=per_line,
            frameon=False,
            fontsize=SMALL,
            borderaxespad=0.3,
        )
    figure.text(
        8 / total,
        8 / height,
        "\n".join(lines),
        color=MUTED,
        fontsize=10,
        va="bottom",
        linespacing=1.3,
    )
    return figure, made


def _svg(figure: Figure, name: str) -> bytes:
    import matplotlib as mpl

    text = StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(
            text,
            format="svg",
            facecolor="white",
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    # where the font that measured the text is missing, another sans serif is better than a serif
    return re.sub(
        r"'DejaVu Sans'(?!,)", "'DejaVu Sans', Verdana, Arial, sans-serif", text.getvalue()
    ).encode()


def _png(figure: Figure) -> bytes:
    data = BytesIO()
    figure.savefig(data, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    return data.getvalue()
