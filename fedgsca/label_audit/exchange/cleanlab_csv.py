"""cleanlab: a csv with the columns of its label issues.

The columns are given_label, predicted_label, label_quality and is_label_issue; a person's decision
is in `corrected_label`. A file without that column is the opinion of a program: the labels that it
flags come back as its decisions, with "cleanlab" as the reviewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedgsca.label_audit.audit_table import Audit, Suspect
from fedgsca.label_audit.decisions import Decision
from fedgsca.label_audit.exchange import UNSURE, ReviewBatch, Verdict
from fedgsca.support.csv_table import read_csv_table, write_cells
from fedgsca.support.files import open_atomic

COLUMNS = (
    "id",
    "hash",
    "given_label",
    "predicted_label",
    "label_quality",
    "is_label_issue",
    "corrected_label",
    "note",
)


def write_batch(out: Path, batch: ReviewBatch) -> list[Path]:
    """Write the labels as one csv file."""
    with open_atomic(out) as sheet:
        write_cells(sheet, COLUMNS)
        for suspect in batch.suspects:
            write_cells(sheet, _csv_cells(suspect, batch.decisions.get(suspect.row)))
    return [out]


def _csv_cells(suspect: Suspect, decision: Decision | None) -> list[str]:
    """One label in the order of COLUMNS."""
    corrected_label = ""
    note = ""
    if decision is not None:
        corrected_label = decision.final or UNSURE
        note = decision.reason
    quality = f"{1 - suspect.suspicion:.6f}"  # cleanlab: lower is worse
    return [
        suspect.id,
        suspect.hash,
        suspect.given,
        suspect.suggestion,
        quality,
        str(suspect.priority),
        corrected_label,
        note,
    ]


def read_verdicts(path: Path, audit: Audit) -> Iterator[Verdict]:
    """The decisions of people, or the issues that cleanlab flags."""
    sheet = read_csv_table(path)
    id_columns = [column for column in ("id", "file") if column in sheet.columns]
    if not id_columns:
        raise ValueError(f"there is no column id (columns: {', '.join(sheet.header)})")
    has_decisions = "correctedlabel" in sheet.columns
    for _, cells in sheet.rows:
        if has_decisions:
            label = _remove_apostrophe(cells["correctedlabel"])
        else:
            label = _remove_apostrophe(cells["predictedlabel"])
            if cells["islabelissue"].lower() not in ("true", "1"):
                continue
        if label:
            yield Verdict(
                id=_remove_apostrophe(cells[id_columns[0]]),
                label=None if label == UNSURE else label,
                reviewer="cleanlab",
                hash=cells.get("hash") or None,
                reason=_remove_apostrophe(cells.get("note", "")),
            )


def _remove_apostrophe(cell: str) -> str:
    """The cell without the apostrophe that protects spreadsheets from formulas."""
    return cell[1:] if cell.startswith("'") and cell[1:2] in "=+-@" else cell
