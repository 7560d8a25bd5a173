"""The sections of a page are found in a package, so that a new plot needs no edit elsewhere.

How to add a plot to the page of a run
--------------------------------------
Write one file in fedgsca/lab/report/run_sections/. For example, loss_curve.py:

    from fedgsca.lab.report.elements import PageSection, PlotGallery, PlotImage
    from fedgsca.lab.report.page_sections import run_section
    from fedgsca.lab.report.palette import MAIN
    from fedgsca.lab.report.plot_style import format_round_axis, make_axes, with_plot_style
    from fedgsca.lab.report.run_reader import LoadedRun
    from fedgsca.lab.report.svg_output import figure_svg

    @run_section(position=15)
    def loss_section(run: LoadedRun) -> PageSection | None:
        records = [record for record in run.test_rounds if record.loss is not None]
        if not records:
            return None  # a section without data is left out
        alt = f"Loss on the test set, {records[-1].loss:.2f} in the last round."
        gallery = PlotGallery([PlotImage(draw_loss(run), alt)], "half")
        return PageSection("loss", "Loss on the test set", "Lower is better.", [gallery])

    @with_plot_style
    def draw_loss(run: LoadedRun) -> str:
        figure, axes = make_axes(490, 250)
        records = [record for record in run.test_rounds if record.loss is not None]
        axes.plot([r.round + 1 for r in records], [r.loss for r in records], color=MAIN)
        format_round_axis(axes, run.num_rounds)
        axes.set_title("Mean loss")
        return figure_svg(figure, "loss")

Sections are printed in the order of their positions; those of this package use multiples of 10.
A section reads the records of the run (fedgsca.federation.records) and returns None where they lack
what it needs. Colours come from fedgsca.lab.report.palette, page elements from
fedgsca.lab.report.elements.

The page of a comparison works the same way, with @comparison_section in
fedgsca/lab/report/comparison_sections/.

A section of another package is registered by the same decorator. Offer its module through the entry
point group `fedgsca.lab.report.run_sections` (or `.comparison_sections`), or name it in the
environment variable FEDGSCA_PLUGINS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from fedgsca.lab.report.elements import PageSection
from fedgsca.support.registry import Registry

if TYPE_CHECKING:
    from fedgsca.lab.report.comparison_page import LoadedComparison
    from fedgsca.lab.report.run_reader import LoadedRun

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
