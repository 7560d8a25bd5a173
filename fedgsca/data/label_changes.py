"""The log beside a corrected labels file: which labels were changed, by whom and why, and how good the model was before.

It names the labels file by its content. A file that was edited afterwards is used without it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.table import Table
from fedgsca.support.csv_table import write_cells
from fedgsca.support.files import open_atomic, write_atomic

VERSION = 1


@dataclass(frozen=True)
class Change:
    """One label that is not what it was."""

    site: str
    id: str
    old: str
    new: str
    reviewers: str  # with commas between them
    time: str  # of the last decision
    reason: str
    hash: str  # of the pixels


def log_path(labels: Path, kind: str = "json") -> Path:
    return labels.with_name(f"{labels.stem}.changes.{kind}")


def write_log(
    labels: Path, content: bytes, facts: Mapping[str, Any], changes: list[Change]
) -> None:
    """Both forms of the log, for programs and for a spreadsheet. The labels file is written after them."""
    whole = {
        "version": VERSION,
        "file": labels.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        **facts,
    }
    whole["changes"] = [asdict(change) for change in changes]
    write_atomic(log_path(labels), json.dumps(whole, indent=1, ensure_ascii=False).encode() + b"\n")
    with open_atomic(log_path(labels, "csv")) as sheet:
        write_cells(sheet, [f.name for f in fields(Change)])
        for change in changes:
            write_cells(sheet, list(asdict(change).values()))


def read_log(labels: Path) -> dict[str, Any] | None:
    """The log of this very file; None if there is none, or the file was changed since."""
    try:
        found = json.loads(log_path(labels).read_bytes())
        same = found["sha256"] == hashlib.sha256(labels.read_bytes()).hexdigest()
        return dict(found) if same and found["version"] == VERSION else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def count_pairs(pairs: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """How often which label became which, the most frequent first."""
    counted = sorted(Counter(pairs).items(), key=lambda item: (-item[1], item[0]))
    return [{"from": old, "to": new, "count": count} for (old, new), count in counted]


def labels_in_use(path: str | None, table: Table) -> dict[str, Any] | None:
    """What a run's setup says about the labels file it was given: what is different, and what its log tells."""
    if path is None:
        return None
    said: dict[str, Any] = {"file": Path(path).name, "of": len(table.rows("train"))}
    if table.replaced is not None:
        rows = np.flatnonzero(table.replaced != table.trained_on)
        names = table.classes
        said["differ"] = count_pairs(
            (names[table.replaced[r]], names[table.trained_on[r]]) for r in rows
        )
    log = read_log(Path(path).expanduser())
    if log is not None:
        said["review"] = {
            key: log[key] for key in ("counts", "reviewers", "pairs", "before") if key in log
        }
    return said
