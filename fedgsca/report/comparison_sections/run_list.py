"""All runs of the comparison, with their folders."""

from __future__ import annotations

from fedgsca.report.elements import Collapsible, PageSection, PageTable
from fedgsca.report.loaded_comparison import LoadedComparison
from fedgsca.report.number_text import score_number
from fedgsca.report.page_sections import comparison_section


@comparison_section(position=70)
def run_list_section(comparison: LoadedComparison) -> PageSection | None:
    """Folded, because there are many."""
    rows = []
    for cell in comparison.cells:
        label = comparison.labels.get(cell.method, cell.label or cell.method)
        scores = [score_number(cell.f1), score_number(cell.best_f1)]
        rows.append([label, cell.noise, str(cell.seed), *scores, cell.path])
    if not rows:
        return None
    head = ["Method", "Noise", "Seed", "Macro F1", "Best", "Folder"]
    table = PageTable("All runs", head, rows, words=(1, 5))
    intro = "Each folder holds the configuration, the log and the model of the run."
    return PageSection("runs", "The runs", intro, [Collapsible("All runs", [table])])
