"""All runs of the comparison, with their folders."""

from __future__ import annotations

from urllib.parse import quote

from fedgsca.lab.report.comparison_page import LoadedComparison
from fedgsca.lab.report.elements import Collapsible, PageSection
from fedgsca.lab.report.number_text import score_number
from fedgsca.lab.report.page_sections import comparison_section
from fedgsca.lab.table import Cell, Row, Table


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
