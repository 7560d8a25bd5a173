"""The confusion matrix and the scores of every class."""

from __future__ import annotations

import numpy as np

from fedgsca.lab.report.elements import MatrixGroup, PageSection, count_matrix
from fedgsca.lab.report.number_text import count_text, score_number
from fedgsca.lab.report.page_sections import run_section
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.table import Cell, Table
from fedgsca.metrics import per_class


@run_section(position=20)
def class_section(run: LoadedRun) -> PageSection | None:
    """From the last round with a confusion matrix."""
    records = [record for record in run.test_rounds if record.confusion]
    if not records:
        return None
    last = records[-1]
    confusion = last.confusion or ()
    rows: list[list[str | Cell]] = []
    for name, scores in zip(run.classes, per_class(np.array(confusion)), strict=False):
        cells = [_score_cell(scores[key]) for key in ("f1", "recall", "precision")]
        rows.append([name, *cells, count_text(scores["support"])])
    intro = (
        "Each row of the matrix holds the test images with the label of one class, and shows what "
        "the model called them: percent of the row, with the number of images below. "
        "A perfect model has 100 % on the diagonal."
    )
    matrix = count_matrix(f"Confusion matrix of round {last.round + 1}", run.classes, confusion)
    table = Table(
        f"Scores of every class in round {last.round + 1}",
        ["Class", "F1", "Recall", "Precision", "Test images"],
        rows,
        bars=(1, 2, 3),
    )
    return PageSection("classes", "Class by class", intro, [MatrixGroup([matrix]), table])


def _score_cell(value: float) -> Cell:
    return Cell(score_number(value), bar=value / 100)
