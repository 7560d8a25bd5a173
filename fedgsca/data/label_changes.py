"""The log beside a corrected labels file.

It says which labels were changed, by whom and why, and how good the model was before. It names the
labels file by its content: a log is ignored if the file was edited afterwards.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.table import ImageTable
from fedgsca.support.csv_table import write_cells
from fedgsca.support.digests import sha256_file
from fedgsca.support.files import PRIVATE, open_atomic, write_atomic

VERSION = 1

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class LabelChange:
    """One corrected label; the fields are the columns of the log's csv form."""

    site: str
    id: str
    old: str
    new: str
    reviewers: str  # with commas between them
    time: str  # of the last decision
    reason: str
    hash: str  # of the pixels


def log_path(labels: Path, kind: str = "json") -> Path:
    """Where the log of a labels file is; `kind` is "json" or "csv"."""
    return labels.with_name(f"{labels.stem}.changes.{kind}")


def write_log(
    labels: Path, content: bytes, facts: Mapping[str, Any], changes: Sequence[LabelChange]
) -> None:
    """Write both forms of the log, for programs and for a spreadsheet.

    `content` is what the labels file will contain; it is written after the log. `facts` are JSON
    values about the review.
    """
    log = {
        "version": VERSION,
        "file": labels.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        **facts,
        "changes": [asdict(change) for change in changes],
    }
    text = json.dumps(log, indent=1, ensure_ascii=False)
    write_atomic(log_path(labels), text.encode() + b"\n", mode=PRIVATE)
    with open_atomic(log_path(labels, "csv"), mode=PRIVATE) as handle:
        write_cells(handle, [field.name for field in fields(LabelChange)])
        for change in changes:
            write_cells(handle, list(asdict(change).values()))


def is_log_of(labels: Path) -> bool:
    """Whether the log was written for a labels file of this name, which need not exist."""
    try:
        log = json.loads(log_path(labels).read_bytes())
        return bool(log["file"] == labels.name and log["version"] == VERSION)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def read_log(labels: Path) -> JsonObject | None:
    """The log of a labels file; None if there is none, or if the file was changed since."""
    try:
        log = json.loads(log_path(labels).read_bytes())
        is_current = log["sha256"] == sha256_file(labels) and log["version"] == VERSION
        return dict(log) if is_current else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def count_pairs(pairs: Iterable[tuple[str, str]]) -> list[JsonObject]:
    """How often which label became which, the most frequent first."""
    counts = sorted(Counter(pairs).items(), key=lambda item: (-item[1], item[0]))
    return [{"from": old, "to": new, "count": count} for (old, new), count in counts]


def labels_in_use(path: str | None, table: ImageTable) -> JsonObject | None:
    """What a run's setup says about its labels file: the differences, and facts from the log.

    None if the run uses the labels of the source.
    """
    if path is None:
        return None
    summary: JsonObject = {"file": Path(path).name, "of": len(table.rows("train"))}
    if table.replaced_labels is not None:
        classes = table.classes
        pairs = []
        for row in np.flatnonzero(table.replaced_labels != table.trained_on):
            pairs.append((classes[table.replaced_labels[row]], classes[table.trained_on[row]]))
        summary["differ"] = count_pairs(pairs)
    log = read_log(Path(path).expanduser())
    if log is not None:
        keys = ("counts", "reviewers", "pairs", "before")
        summary["review"] = {key: log[key] for key in keys if key in log}
    return summary
