"""How soon each method is good, in a comparison that measures it (`fedgsca efficiency`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedgsca.report.elements import PageElement, PageSection, PageTable, TableCell
from fedgsca.report.loaded_comparison import LoadedComparison, method_entry
from fedgsca.report.page_sections import comparison_section
from fedgsca.report.run_reader import read_json
from fedgsca.support.text import DASH

_FILE = "efficiency.json"
_HEAD = [
    "Method",
    "F1 at the end",
    "Time of a round",
    "Time to FedAvg's best",
    "Reached",
    "Time to 95 % of the ceiling",
    "Reached",
]


@comparison_section(position=12)
def method_time_section(comparison: LoadedComparison) -> PageSection | None:
    """One table per condition; None if times were not measured or the file is damaged."""
    tree = read_json(comparison.folder / _FILE)
    if tree is None:
        return None
    try:
        tables: list[PageElement] = [_make_table(group) for group in tree["groups"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    if not tables:
        return None
    intro = (
        "Times are multiples of FedAvg's, medians over the seeds; seconds (s) where FedAvg never"
        f" arrives; {DASH}: not reached by half of the seeds. The same numbers are in"
        " efficiency.md, .csv and .json."
    )
    return PageSection("times", "Time to accuracy", intro, tables)


def _make_table(group: Mapping[str, Any]) -> PageTable:
    rows: list[list[str | TableCell]] = []
    for row in group["rows"]:
        title = str(row["title"])
        cells: list[str | TableCell] = [TableCell(title, key=method_entry(row["method"], title))]
        cells += [f"{row['f1']:.1f}", f"{row['cost']:.2f}"]
        for times in (row["to_best"], row["to_share"]):
            num_arrivals = sum(value is not None for value in times["seconds"])
            cells += [str(times["text"]), f"{num_arrivals}/{len(times['seconds'])}"]
        rows.append(cells)
    caption = str(group["title"])
    return PageTable(f"{caption[:1].upper()}{caption[1:]}, {group['clock']}", _HEAD, rows)
