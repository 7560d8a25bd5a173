"""cleanlab: a csv with the columns of its label issues (given_label, predicted_label, label_quality, is_label_issue).

What a person decided stands in `corrected_label`. A file without that column is a program's opinion: the labels that it calls issues
come back as its decisions, under the name cleanlab.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedgsca.label_audit.audit_table import Audit
from fedgsca.label_audit.exchange import UNSURE, Batch, Verdict
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


def write(out: Path, batch: Batch) -> list[Path]:
    with open_atomic(out) as sheet:
        write_cells(sheet, COLUMNS)
        for suspect in batch.suspects:
            decision = batch.decided.get(suspect.row)
            new = "" if decision is None else decision.final or UNSURE
            quality = f"{1 - suspect.suspicion:.6f}"  # cleanlab: lower is worse
            cells = [
                suspect.id,
                suspect.hash,
                suspect.given,
                suspect.suggested,
                quality,
                str(suspect.priority),
                new,
            ]
            write_cells(sheet, [*cells, decision.reason if decision else ""])
    return [out]


def read(path: Path, audit: Audit) -> Iterator[Verdict]:
    sheet = read_csv_table(path)
    name = next((column for column in ("id", "file") if column in sheet.columns), None)
    if name is None:
        raise ValueError(f"no column id (found: {', '.join(sheet.written)})")
    human = "correctedlabel" in sheet.columns
    for _, cells in sheet.rows:
        label = _plain(cells["correctedlabel"] if human else cells["predictedlabel"])
        if label and (human or cells["islabelissue"].lower() in ("true", "1")):
            verdict = None if label == UNSURE else label
            yield Verdict(
                _plain(cells[name]),
                verdict,
                "cleanlab",
                cells.get("hash") or None,
                _plain(cells.get("note", "")),
            )


def _plain(cell: str) -> str:
    """Without the apostrophe that protects spreadsheets from formulas."""
    return cell[1:] if cell.startswith("'") and cell[1:2] in "=+-@" else cell
