"""The elements of a page, and the sections that build them.

Nothing here knows HTML: `kind` names the macro of templates/elements.html.j2 that renders an
element. Colours are given as tokens of templates/style.css.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from fedgsca.lab.table import LegendEntry, Table
from fedgsca.support.registry import Registry

if TYPE_CHECKING:
    from fedgsca.lab.report.comparison_page import LoadedComparison
    from fedgsca.lab.report.run_reader import LoadedRun


# rows, or small plots, that a reader takes in at once
MAX_ROWS_AT_ONCE = 12
# lines, or rows of a plot, that can still be told apart
MAX_LINES = 40

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


S = TypeVar("S")


@dataclass(frozen=True)
class SectionBuilder(Generic[S]):
    """A function that builds a section from a run or a comparison, or None if it has no data."""

    position: int
    build: Callable[[S], PageSection | None]


RUN_SECTIONS: Registry[SectionBuilder[LoadedRun]] = Registry("fedgsca.lab.report.run_sections")
COMPARISON_SECTIONS: Registry[SectionBuilder[LoadedComparison]] = Registry(
    "fedgsca.lab.report.comparison_sections"
)

RunBuild = Callable[["LoadedRun"], PageSection | None]
ComparisonBuild = Callable[["LoadedComparison"], PageSection | None]


def run_section(*, position: int) -> Callable[[RunBuild], RunBuild]:
    """Decorator that adds a section to the page of every run."""

    def register(build: RunBuild) -> RunBuild:
        RUN_SECTIONS.register(build.__name__, SectionBuilder(position, build))
        return build

    return register


def comparison_section(*, position: int) -> Callable[[ComparisonBuild], ComparisonBuild]:
    """Decorator that adds a section to the page of every comparison."""

    def register(build: ComparisonBuild) -> ComparisonBuild:
        COMPARISON_SECTIONS.register(build.__name__, SectionBuilder(position, build))
        return build

    return register


def build_sections(registry: Registry[SectionBuilder[S]], subject: S) -> list[PageSection]:
    """The sections for which the run or the comparison has data, in the order of positions."""
    builders = sorted(registry.load().items(), key=lambda item: (item[1].position, item[0]))
    sections = []
    for _, builder in builders:
        section = builder.build(subject)
        if section is not None:
            sections.append(section)
    return sections
