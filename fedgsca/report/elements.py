"""What a page is made of. Pages build these, one template renders them; nothing here knows HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    text: str
    token: str  # colour, a token of style.css
    shape: Literal["line", "block", "dot", "ring", "triangle", "cross"] = "line"
    dashes: Sequence[float] = ()


@dataclass(frozen=True)
class Picture:
    svg: str
    alt: str  # what a person who cannot see it should know
    caption: str = ""
    narrow: str = ""  # the same for a phone, where a wide drawing would need a magnifying glass


@dataclass(frozen=True)
class Gallery:
    """Pictures side by side as far as the page is wide; `note` stands below them all."""

    kind: ClassVar[str] = "gallery"
    pictures: Sequence[Picture]
    width: Literal["wide", "half", "quarter"] = "half"
    legend: Sequence[Key] = ()
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """A table's cell that is more than text."""

    text: str
    bar: float | None = None  # 0 to 1, drawn beside the number
    mark: Literal["", "best", "second"] = ""
    key: Key | None = None
    small: str = ""  # follows the text in a smaller size, unmarked
    hang: str = ""  # stands to the right of the column's edge, so that numbers stay aligned


@dataclass(frozen=True)
class Table:
    """The first column names the row; the others are numbers unless named in `words`."""

    kind: ClassVar[str] = "table"
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    words: Sequence[int] = ()  # columns of text
    bars: Sequence[int] = ()  # columns whose numbers have a bar beside them
    note: str = ""


@dataclass(frozen=True)
class Tables:
    """Narrow tables side by side as far as the page is wide, below each other on a phone; `note` stands below them all."""

    kind: ClassVar[str] = "tables"
    items: Sequence[Table]
    note: str = ""
    width: int = 325  # pixels that one needs


@dataclass(frozen=True)
class Heat:
    """A matrix with coloured cells: real text in a real table."""

    caption: str
    rows: Sequence[str]
    columns: Sequence[str]
    shares: Sequence[Sequence[float]]  # 0 to 1: the colour, and the percentage that is printed
    counts: Sequence[Sequence[int]]
    corner: str = "label ↓ predicted →"


@dataclass(frozen=True)
class Heats:
    """Matrices side by side."""

    kind: ClassVar[str] = "heats"
    items: Sequence[Heat]
    width: Literal["wide", "half"] = "wide"
    note: str = ""


@dataclass(frozen=True)
class Shot:
    """A photograph inside the page."""

    data: str  # data:image/...;base64,...
    alt: str


@dataclass(frozen=True)
class Card:
    """One image to judge, what is said about it, and images to compare it with."""

    shot: Shot
    title: str
    text: str
    beside: Sequence[tuple[str, Sequence[Shot]]] = ()  # what they are, the images


@dataclass(frozen=True)
class Cards:
    kind: ClassVar[str] = "cards"
    cards: Sequence[Card]
    note: str = ""


@dataclass(frozen=True)
class Bullets:
    kind: ClassVar[str] = "bullets"
    items: Sequence[str]
    heading: str = ""


@dataclass(frozen=True)
class Fold:
    """Something for those who want to know: closed on the screen, open in print."""

    kind: ClassVar[str] = "fold"
    summary: str
    blocks: Sequence[Block] = ()
    text: str = ""  # shown as typed


Block = Gallery | Table | Tables | Heats | Cards | Bullets | Fold


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    intro: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Tile:
    """One number that a reader takes home."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    lead: Sequence[str]  # sentences; markupsafe.Markup where a number is emphasised
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    banner: str = ""
    footer: str = ""


MANY = 12  # rows, or small multiples, that a reader takes in at once


def folded(table: Table) -> Table | Fold:
    """A long table is closed on the screen."""
    return (
        table
        if len(table.rows) <= MANY
        else Fold(f"{table.caption} ({len(table.rows)} rows)", [table])
    )


def heats_width(classes: int) -> Literal["wide", "half"]:
    """Two matrices side by side while their cells can hold a number each."""
    return "half" if classes <= 10 else "wide"


def heat_of(
    caption: str,
    names: Sequence[str],
    counts: Sequence[Sequence[int]],
    corner: str = "label ↓ predicted →",
) -> Heat:
    """A square matrix of counts, coloured by its share of the row."""
    shares = [[count / max(sum(row), 1) for count in row] for row in counts]
    return Heat(caption, names, names, shares, counts, corner)
