"""The last models of a comparison: intervals over test images and seeds, AUROC, calibration."""

from __future__ import annotations

from fedgsca.experiment.records import MethodInterval
from fedgsca.report.comparison_tables import difference_text, quality_text
from fedgsca.report.elements import PageElement, PageSection, PageTable, TableCell
from fedgsca.report.loaded_comparison import LoadedComparison, method_entry
from fedgsca.report.number_text import bounds_text, score_number
from fedgsca.report.page_sections import comparison_section


@comparison_section(position=15)
def interval_section(comparison: LoadedComparison) -> PageSection | None:
    """None where no run has the probabilities of its test images."""
    intervals = comparison.record.intervals or ()
    if not intervals:
        return None
    blocks: list[PageElement] = []
    for noise in dict.fromkeys(entry.noise for entry in intervals):
        blocks.append(_table(comparison, [entry for entry in intervals if entry.noise == noise]))
    intro = (
        "The models of the last round, in percent. The range is a 95 % confidence interval by a "
        "bootstrap over the test images (or patients, where these are known) and over the seeds "
        "together. The difference is paired: both methods are scored on the same draws, so it can "
        "be clear although the two intervals overlap. An interval that contains 0 does not show a "
        "difference; with many methods, one in twenty excludes 0 by chance. With two or three "
        "seeds the variation between trainings is hardly known."
    )
    return PageSection("intervals", "How sure the differences are", intro, blocks)


def _table(comparison: LoadedComparison, intervals: list[MethodInterval]) -> PageTable:
    reference = comparison.labels.get(intervals[0].reference, intervals[0].reference)
    noise = intervals[0].noise
    head = [
        "Method",
        "Last round's F1",
        f"Difference to {reference}",
        "AUROC",
        "Average precision",
        "Calibration error",
    ]
    rows: list[list[str | TableCell]] = []
    for entry in intervals:
        label = comparison.labels.get(entry.method, entry.method)
        row = comparison.find_row(entry.method, noise)
        cells = [
            TableCell(label, key=method_entry(entry.method, label)),
            TableCell(score_number(entry.f1.value), small=bounds_text(entry.f1)),
            TableCell(difference_text(entry)),
        ]
        qualities = [quality_text(row, key) for key in ("auroc", "average_precision", "ece")]
        rows.append([*cells, *qualities])
    return PageTable(f"Last models under noise {noise}", head, rows)
