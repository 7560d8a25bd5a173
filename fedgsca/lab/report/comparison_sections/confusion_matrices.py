"""The confusion matrix of every method under every noise."""

from __future__ import annotations

import numpy as np

from fedgsca.lab.report.comparison_page import LoadedComparison
from fedgsca.lab.report.elements import (
    Collapsible,
    HeatMatrix,
    MatrixGroup,
    PageElement,
    PageSection,
    count_matrix,
    matrix_width,
)
from fedgsca.lab.report.page_sections import comparison_section


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
