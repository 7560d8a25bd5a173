"""The result: scores of every method under every condition, and which of them can be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedgsca.lab.report.comparison_columns import (
    MAX_PAIRS,
    difference_sentences,
    explain_numbers,
    make_tables,
    overview_table,
)
from fedgsca.lab.report.elements import (
    BulletList,
    Collapsible,
    PageElement,
    PageSection,
    PlotGallery,
    PlotImage,
)
from fedgsca.lab.report.page_sections import comparison_section
from fedgsca.lab.report.palette import INK, PAPER, method_slot, slot_colour
from fedgsca.lab.report.plot_style import make_axes, shorten, with_plot_style
from fedgsca.lab.report.run_facts import describe_noises
from fedgsca.lab.report.svg_output import figure_svg
from fedgsca.lab.table import LegendEntry

if TYPE_CHECKING:
    from fedgsca.lab.report.comparison_page import LoadedComparison
    from fedgsca.lab.report.comparison_rows import ComparisonRow

# tables of single conditions on the open page; more of them are folded
_MAX_OPEN_TABLES = 2


@comparison_section(position=10)
def result_section(comparison: LoadedComparison) -> PageSection | None:
    """An overview of several conditions, one table per condition, and the differences."""
    if not comparison.rows:
        return None
    blocks: list[PageElement] = []
    overview = overview_table(comparison.record)
    if overview is not None:
        blocks.append(overview)
    tables = make_tables(comparison.record, is_brief=True)
    for table in tables:
        is_open = len(tables) <= _MAX_OPEN_TABLES
        blocks.append(table if is_open else Collapsible(table.title, [table]))
    sentences = difference_sentences(comparison.record)
    if len(sentences) > MAX_PAIRS:  # the others are at the top of the page
        blocks.append(BulletList(sentences, "What can be told apart"))
    full_tables = make_tables(comparison.record)
    blocks.append(Collapsible("All numbers, as in compare.md and compare.csv", full_tables))
    intro = explain_numbers(comparison.record)
    legend = describe_noises(dict.fromkeys(row.noise_spec for row in comparison.rows))
    return PageSection("result", "Result", " ".join([*intro, legend]).strip(), blocks)


@comparison_section(position=15)
def score_section(comparison: LoadedComparison) -> PageSection | None:
    """Every seed of every method on one axis, beside printed numbers where there are any."""
    pictures = []
    for i, noise in enumerate(comparison.noises):
        rows = [row for row in comparison.rows if row.noise == noise and row.f1 is not None]
        if sum(len(row.seeds) for row in rows) > len(rows) or any(
            row.printed_scores for row in rows
        ):
            drawing = draw_scores(comparison, rows, f"Noise {noise}", f"scores-{i}")
            means = [f"{row.label} {row.f1.mean:.1f}" for row in rows if row.f1]
            pictures.append(PlotImage(drawing, f"Noise {noise}, macro F1: {', '.join(means)}."))
    if not pictures:
        return None
    legend = [LegendEntry("mean over the seeds", "s0", "dot"), LegendEntry("one seed", "grid")]
    if any(row.printed_scores for row in comparison.rows):
        legend.append(LegendEntry("printed", "ink", "ring"))
    intro = "Macro F1 of the last five rounds, percent."
    return PageSection("scores", "Every seed", intro, [PlotGallery(pictures, "half", legend)])


@with_plot_style
def draw_scores(
    comparison: LoadedComparison, rows: list[ComparisonRow], title: str, name: str
) -> str:
    """A dot per method, a tick per seed, a ring for a printed number."""
    figure, axes = make_axes(490, 72 + 26 * len(rows), margin_left=112)
    for i, row in enumerate(rows):
        y = len(rows) - 1 - i
        colour = INK if row.is_reference else slot_colour(method_slot(row.method))
        values = []
        for cell in comparison.cells:
            if (cell.condition, cell.method) == (row.noise, row.method):
                values.append(cell.f1)
        if row.is_reference:
            values = list(comparison.record.ceiling.get(row.noise, {}).values())
        axes.plot(values, [y] * len(values), "|", color=colour, ms=10, mew=1.4, alpha=0.6)
        assert row.f1 is not None  # rows without a score are left out before
        axes.plot(row.f1.mean, y, "o", color=colour, ms=9, mec=PAPER, mew=1)
        if "f1" in row.printed_scores:
            axes.plot(row.printed_scores["f1"].mean, y, "o", mfc="none", mec=INK, mew=1.6, ms=10)
    axes.set_yticks(range(len(rows)), [shorten(row.label, 15) for row in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.set_title(title)
    return figure_svg(figure, name)
