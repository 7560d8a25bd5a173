"""Scores of every method under every condition, what can be told apart, confusions, and runs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from fedgsca.lab.report.comparison_columns import (
    MAX_PAIRS,
    class_tables,
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
    comparison_section,
    count_matrix,
    matrix_width,
)
from fedgsca.lab.report.number_text import score_number
from fedgsca.lab.report.run_facts import describe_noises
from fedgsca.lab.table import Cell, Row, Table

if TYPE_CHECKING:
    from fedgsca.lab.report.comparison_page import LoadedComparison


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
    classes = class_tables(comparison.record)
    if classes:
        blocks.append(Collapsible("Recall of every class", classes))
    intro = explain_numbers(comparison.record)
    legend = describe_noises(dict.fromkeys(row.noise_spec for row in comparison.rows))
    return PageSection("result", "Result", " ".join([*intro, legend]).strip(), blocks)


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
