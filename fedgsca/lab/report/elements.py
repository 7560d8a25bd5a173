"""The elements of a page, and numbers as its text.

Nothing here knows HTML: `kind` names the macro of templates/elements.html.j2 that renders an
element. Colours are given as tokens of templates/style.css.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedgsca.federation.records import ScoreInterval, finite
from fedgsca.lab.table import LegendEntry, Table
from fedgsca.support.text import DASH, NBSP, number, percent

# rows, or small plots, that a reader takes in at once
MAX_ROWS_AT_ONCE = 12

CONFUSION_CORNER = "label ↓ predicted →"


@dataclass(frozen=True)
class PlotImage:
    """A drawing as inline SVG."""

    svg: str
    # the message of the drawing, for people who cannot see it
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class PlotGallery:
    """Plots side by side, as many as the page is wide; `note` is printed below all of them."""

    kind: ClassVar[str] = "gallery"
    pictures: Sequence[PlotImage]
    width: Literal["wide", "half", "quarter"] = "half"
    legend: Sequence[LegendEntry] = ()
    note: str = ""


@dataclass(frozen=True)
class HeatMatrix:
    """A matrix with coloured cells, as a table of text."""

    caption: str
    rows: Sequence[str]
    columns: Sequence[str]
    # 0 to 1: the colour, and the percentage that is printed
    shares: Sequence[Sequence[float]]
    counts: Sequence[Sequence[int]]
    corner: str = CONFUSION_CORNER


@dataclass(frozen=True)
class MatrixGroup:
    """Matrices side by side."""

    kind: ClassVar[str] = "matrices"
    items: Sequence[HeatMatrix]
    width: Literal["wide", "half"] = "wide"
    note: str = ""


@dataclass(frozen=True)
class Photo:
    """A photograph inside the page."""

    # data:image/...;base64,...
    data: str
    alt: str


@dataclass(frozen=True)
class ImageCard:
    """One image to judge, a text about it, and groups of images to compare it with."""

    photo: Photo
    title: str
    text: str
    # (caption, photos) of every group
    references: Sequence[tuple[str, Sequence[Photo]]] = ()


@dataclass(frozen=True)
class CardList:
    """Image cards, as many in a row as the page is wide."""

    kind: ClassVar[str] = "cards"
    cards: Sequence[ImageCard]
    note: str = ""


@dataclass(frozen=True)
class BulletList:
    """A list of sentences."""

    kind: ClassVar[str] = "bullets"
    items: Sequence[str]
    heading: str = ""


@dataclass(frozen=True)
class Collapsible:
    """Details for those who want them: closed on the screen, open in print."""

    kind: ClassVar[str] = "collapsible"
    summary: str
    blocks: Sequence[PageElement] = ()
    # printed as typed
    text: str = ""


PageElement = PlotGallery | Table | MatrixGroup | CardList | BulletList | Collapsible


@dataclass(frozen=True)
class PageSection:
    """A section with its heading. `id` is its anchor within the page."""

    id: str
    title: str
    intro: str
    blocks: Sequence[PageElement]


@dataclass(frozen=True)
class Tile:
    """One of the numbers at the top of a page."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Page:
    """A page. Sentences of `lead` are markupsafe.Markup where they emphasise a number."""

    title: str
    subtitle: str
    lead: Sequence[str]
    tiles: Sequence[Tile]
    sections: Sequence[PageSection]
    banner: str = ""
    footer: str = ""
    # seconds after which the browser reads the page again; 0: never
    refresh: int = 0


def fold_long_table(table: Table) -> Table | Collapsible:
    """The table; a long one inside an element that is closed on the screen."""
    if len(table.rows) <= MAX_ROWS_AT_ONCE:
        return table
    return Collapsible(f"{table.title} ({len(table.rows)} rows)", [table])


def matrix_width(classes: int) -> Literal["wide", "half"]:
    """Two matrices side by side as long as their cells are wide enough for a number."""
    return "half" if classes <= 10 else "wide"


def row_shares(counts: Sequence[int]) -> list[float]:
    """Counts as shares of their sum; zeros if the sum is zero."""
    total = max(sum(counts), 1)
    return [count / total for count in counts]


def count_matrix(
    caption: str,
    names: Sequence[str],
    counts: Sequence[Sequence[int]],
    corner: str = CONFUSION_CORNER,
) -> HeatMatrix:
    """A square matrix of counts (C, C), coloured by the share of the row."""
    return HeatMatrix(caption, names, names, [row_shares(row) for row in counts], counts, corner)


# ---- numbers as text, with spaces at which a line does not break ----


def percent_text(share: float | None, digits: int = 0) -> str:
    """A share of 1 as a percentage: 0.204 -> 20 %; a dash if there is none."""
    return percent(finite(share), digits, NBSP)


def score_number(value: float | None) -> str:
    """A score in percent without the sign: 71.3; a dash if there is none."""
    return number(finite(value))


def bounds_text(interval: ScoreInterval | None) -> str:
    """The ends of an interval: 80.1 to 88.0; a dash if there is none."""
    if interval is None or interval.low is None or interval.high is None:
        return DASH
    return f"{interval.low:.1f}{NBSP}to{NBSP}{interval.high:.1f}"


def ratio_text(value: float | None) -> str:
    """A ratio: 0.71; a dash if there is none."""
    return number(finite(value), 2)


def count_text(value: float | None) -> str:
    """A count with separators: 12,345; a dash if there is none."""
    value = finite(value)
    return DASH if value is None else f"{value:,.0f}"


def seconds_text(value: float | None) -> str:
    """A time with two or three digits: 0.21 s, 14.2 s, 3.5 min, 2.1 h; a dash if there is none."""
    seconds = finite(value)
    if seconds is None:
        return DASH
    if seconds < 1:
        return f"{seconds:.2g}{NBSP}s"
    if seconds < 120:
        return f"{seconds:.1f}{NBSP}s"
    if seconds < 7200:
        return f"{seconds / 60:.1f}{NBSP}min"
    return f"{seconds / 3600:.1f}{NBSP}h"


def range_text(numbers: Iterable[int]) -> str:
    """Numbers as ranges: 1, 2, 3, 7 -> 1–3, 7."""
    ranges: list[tuple[int, int]] = []
    for value in sorted(set(numbers)):
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], value)
        else:
            ranges.append((value, value))
    texts = []
    for first, last in ranges:
        texts.append(str(first) if first == last else f"{first}–{last}")
    return ", ".join(texts)
