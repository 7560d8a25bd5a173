"""Scores of every method under every condition, what can be told apart, confusions, and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from fedgsca.lab.report.comparison_columns import (
    MAX_PAIRS,
    difference_sentences,
    explain_numbers,
    make_tables,
    overview_table,
)
from fedgsca.lab.report.comparison_page import LoadedComparison
from fedgsca.lab.report.elements import (
    BulletList,
    Collapsible,
    HeatMatrix,
    MatrixGroup,
    PageElement,
    PageSection,
    PlotGallery,
    PlotImage,
    comparison_section,
    count_matrix,
    matrix_width,
)
from fedgsca.lab.report.number_text import score_number
from fedgsca.lab.report.plots import (
    INK,
    PAPER,
    figure_svg,
    make_axes,
    method_slot,
    shorten,
    slot_colour,
    with_plot_style,
)
from fedgsca.lab.report.run_facts import describe_noises
from fedgsca.lab.table import Cell, LegendEntry, Row, Table

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


@comparison_section(position=30)
def confusion_section(comparison: LoadedComparison) -> PageSection | None:
    """Sums over the seeds, folded: many methods and noises have many matrices."""
    blocks: list[PageElement] = []
    for noise in comparison.noises:
        matrices = []
        for method, label in comparison.labels.items():
            matrix = _sum_matrix(comparison, method, noise, f"{label}, noise {noise}")
            if matrix is not None:
                matrices.append(matrix)
        if matrices:
            group = MatrixGroup(matrices, matrix_width(len(matrices[0].rows)))
            blocks.append(Collapsible(f"Noise {noise}", [group]))
    if not blocks:
        return None
    intro = (
        "Test images of the last round, all seeds together: percent of the images of each class, "
        "with the number below."
    )
    return PageSection("confusion", "Which classes are confused", intro, blocks)


def _sum_matrix(
    comparison: LoadedComparison, method: str, noise: str, caption: str
) -> HeatMatrix | None:
    """None without runs, or if the runs have different numbers of classes."""
    matrices = []
    classes: list[str] = []
    for run in comparison.find_runs(method, noise):
        confusion = run.test_rounds[-1].confusion if run.test_rounds else None
        if confusion:
            matrices.append(confusion)
            classes = classes or run.classes
    sizes = {len(matrix) for matrix in matrices}
    if len(sizes) != 1:
        return None
    return count_matrix(caption, classes, np.sum(matrices, axis=0).tolist())


def _run_link(comparison: LoadedComparison, path: str) -> Cell:
    """The folder of a run, as a link to its report if there is one."""
    target = quote(path)
    if (comparison.folder / path / "report.html").is_file():
        return Cell(path, link=f"{target}/report.html")
    return Cell(path, link=f"{target}/")


@comparison_section(position=70)
def run_list_section(comparison: LoadedComparison) -> PageSection | None:
    """Folded, because there are many."""
    rows: list[Row] = []
    for cell in comparison.cells:
        label = comparison.labels.get(cell.method, cell.label or cell.method)
        scores = [score_number(cell.f1), score_number(cell.best_f1)]
        link = _run_link(comparison, cell.path)
        rows.append([label, cell.condition, str(cell.seed), *scores, link])
    if not rows:
        return None
    head = ["Method", "Noise", "Seed", "Macro F1", "Best", "Folder"]
    table = Table("All runs", head, rows, words=(1, 5))
    intro = (
        "Each folder holds the configuration, the log and the model of the run. `fedgsca report"
        " FOLDER` writes the report of a run; after that, and after writing this page again, the"
        " link leads to it."
    )
    return PageSection("runs", "The runs", intro, [Collapsible("All runs", [table])])
