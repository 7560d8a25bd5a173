"""What a round of each method costs: time and traffic."""

from __future__ import annotations

from fedgsca.report.comparison_tables import BASELINE
from fedgsca.report.elements import PageSection, PageTable, TableCell
from fedgsca.report.loaded_comparison import LoadedComparison, method_entry
from fedgsca.report.number_text import seconds_text
from fedgsca.report.page_sections import comparison_section
from fedgsca.support.text import DASH, size_text


@comparison_section(position=60)
def method_cost_section(comparison: LoadedComparison) -> PageSection | None:
    """Means over all runs of a method."""
    baseline = comparison.mean_over_noises(BASELINE, "seconds_per_round")
    rows: list[list[str | TableCell]] = []
    for method, label in comparison.labels.items():
        seconds = comparison.mean_over_noises(method, "seconds_per_round")
        if seconds is None:
            continue
        ratio = f"{seconds / baseline:.2f} ×" if baseline else DASH
        rows.append(
            [
                TableCell(label, key=method_entry(method, label)),
                seconds_text(seconds),
                ratio,
                _size_cell(comparison.mean_over_noises(method, "bytes_down")),
                _size_cell(comparison.mean_over_noises(method, "bytes_up")),
            ]
        )
    if not rows:
        return None
    head = ["Method", "Time per round", "Relative to FedAvg", "Server to sites", "Sites to server"]
    note = (
        "Per round and for all sites together, mean over all runs. Runs that shared a machine with "
        "others took longer."
    )
    table = PageTable("Cost of a round", head, rows, note=note)
    return PageSection("cost", "Time and traffic", "", [table])


def _size_cell(size: float | None) -> str:
    return DASH if size is None else size_text(int(size))
