"""Corrected training labels from a csv, for a run after a review, and the log beside the file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.file_list import repeats_fix, repeats_text, shorten, show_cases
from fedgsca.data.table import ImageTable, with_fingerprint
from fedgsca.data.withdrawn import WithdrawnList
from fedgsca.errors import DataError
from fedgsca.support.checked_labels import NO_ORIGINAL, CheckedLabels, mark_checked
from fedgsca.support.csv_table import LabelLine, read_label_lines, read_text, write_cells
from fedgsca.support.files import open_atomic, sha256_file, write_atomic
from fedgsca.support.text import plural


def replace_labels(table: ImageTable, path: Path, *, is_part: bool = False) -> ImageTable:
    """The table with its training labels replaced, by id, from a csv.

    Its columns are file or id, label and, if labels were checked, checked and original.
    Every training image must be in the file once. Labels of val and test images are locked: a line
    that repeats one is accepted, so that a corrected copy of a complete labels.csv can be used. If
    the test images were drawn when the source was read, nobody has chosen them, and the file may
    correct them, too: `fedgsca audit-folder` looks at all images.
    Labels may be written as in the source or as in the table, where these differ (names.toml).
    `is_part`: the table is a part of its source, so the file may also name other images.
    """
    lines = _read_labels(path)
    names = {}
    for image_id, line in lines.items():
        names[image_id] = table.class_names.get(line.label, line.label)
    originals = {table.class_names.get(line.original, line.original) for line in lines.values()}
    num_others = _check_labels(table, path, names, originals - {""}, is_part)
    train = table.rows("train")
    labels = table.trained_on.copy()  # a reference beside the given labels does not change
    for row in train:
        labels[row] = class_index(names[str(table.ids[row])], table.classes)
    change_count = int(np.sum(labels != table.trained_on))
    note = (
        f"training labels from {path.name}: {change_count} of {len(train)} differ from the source"
    )
    notes = (*table.notes, note)
    num_unlocked = _replace_drawn(table, names, labels)
    if num_unlocked:
        text = plural(num_unlocked, "label of an image that was", "labels of images that were")
        notes += (
            f"{text} set aside for testing changed, too: do not compare the scores with earlier"
            " ones",
        )
    if num_others:
        notes += (f"{plural(num_others, 'line')} of {path.name} for images that are not used here",)
    checked = _replace_checked(table, lines, labels)
    table = replace(table, replaced_labels=table.trained_on, checked=checked, notes=notes)
    if table.given is not None:
        return replace(table, given=labels)
    return with_fingerprint(table, labels=labels)


def _replace_checked(
    table: ImageTable, lines: Mapping[str, LabelLine], labels: np.ndarray
) -> CheckedLabels | None:
    """Which labels a person has checked: as the file says.

    A file without the column says nothing: what the source says stays true of labels (n,) that did
    not change.
    """
    mask = np.zeros(len(table), bool)
    original = np.full(len(table), NO_ORIGINAL)
    if table.checked is not None:
        mask = table.checked.mask & (labels == table.trained_on)
        original = table.checked.original.copy()
    for row, image_id in enumerate(table.ids):
        line = lines.get(str(image_id))
        if line is not None and line.checked is not None:
            mask[row] = line.checked
            name = table.class_names.get(line.original, line.original)
            index = class_index(name, table.classes)
            original[row] = NO_ORIGINAL if index is None else index
    return mark_checked(mask, original)


def _replace_drawn(table: ImageTable, names: dict[str, str], labels: np.ndarray) -> int:
    """Replace labels of test images that may change, in place; returns how many changed."""
    if not _may_correct_all(table):
        return 0
    count = 0
    for row in np.flatnonzero(table.split != "train"):
        name = names.get(str(table.ids[row]))
        if name is not None:
            label = class_index(name, table.classes)
            count += int(label != labels[row])
            labels[row] = label
    return count


def _may_correct_all(table: ImageTable) -> bool:
    """Whether the labels of test images are not locked."""
    return table.has_drawn_split and table.given is None


def _is_locked(table: ImageTable, row: int, name: str) -> bool:
    """Whether the file would change the label of a val or test image."""
    return bool(
        table.split[row] != "train" and class_index(name, table.classes) != table.labels[row]
    )


def class_index(value: str, classes: tuple[str, ...]) -> int | None:
    """A class by its name, or by its number where no class has that name; None if unknown."""
    if value in classes:
        return classes.index(value)
    if value.isdecimal() and int(value) < len(classes):
        return int(value)
    return None


def _read_labels(path: Path) -> dict[str, LabelLine]:
    """Image id -> its line."""
    labels: dict[str, LabelLine] = {}
    lines: dict[str, list[int]] = {}
    conflicts = set()
    for line in read_label_lines(path):
        image_id = line.image_id
        if labels.setdefault(image_id, line).label != line.label:
            conflicts.add(image_id)
        lines.setdefault(image_id, []).append(line.line)
    cases = []
    for image_id, numbers in lines.items():
        if len(numbers) > 1:
            text = repeats_text(numbers, image_id not in conflicts)
            cases.append(f"{shorten(image_id)} ({text})")
    if cases:
        raise DataError(
            "data.duplicate-file",
            f"{path}: {plural(len(cases), 'image')} listed more than once: {show_cases(cases)}",
            fix=repeats_fix(bool(conflicts)),
        )
    return labels


def _check_labels(
    table: ImageTable, path: Path, names: dict[str, str], originals: set[str], is_part: bool
) -> int:
    """All problems of the file at once: ids, classes, missing images, locked labels.

    `originals` are labels before a check. Returns the number of lines for images that a part of a
    data set does not have.
    """
    classes = table.classes
    index = {str(image_id): row for row, image_id in enumerate(table.ids)}
    cases: dict[str, list[str]] = {
        "val or test images with another label (these labels are locked)": [],
        "unknown ids": [],
        "training images without a label": [],
        "unknown classes": [],
    }
    locked_cases, id_cases, missing_cases, class_cases = cases.values()
    has_locks = not _may_correct_all(table)
    for image_id, name in names.items():
        row = index.get(image_id)
        if row is None:
            id_cases.append(image_id)
        elif has_locks and _is_locked(table, row, name):
            locked_cases.append(image_id)
    for row in table.rows("train"):
        if str(table.ids[row]) not in names:
            missing_cases.append(str(table.ids[row]))
    num_others = 0
    if is_part:
        num_others = len(id_cases)
        id_cases.clear()
        names = {image_id: name for image_id, name in names.items() if image_id in index}
    for name in sorted(originals.union(names.values())):
        if class_index(name, classes) is None:
            class_cases.append(name)
    problems = []
    for title, examples in cases.items():
        if examples:
            problems.append(f"{title} ({len(examples)}), first: {examples[0]}")
    if problems:
        raise DataError(
            "data.labels-do-not-fit",
            f"{path} does not fit {table.name}: {'; '.join(problems)}",
            fix=f"write one line for each of the {len(table.rows('train'))} training images, with "
            f"one of the labels: {', '.join(classes)}",
        )
    return num_others


def remove_lines(path: Path, withdrawn: WithdrawnList) -> bool:
    """Remove the lines of withdrawn images from a csv of labels and its log; whether there were."""
    lines = {}
    for line in read_label_lines(path):
        if withdrawn.has("file", line.image_id):
            lines[line.line] = line.image_id
    if not lines:
        return False
    log = read_log(path)
    rows = read_text(path)[0].splitlines(keepends=True)
    text = "".join(row for number, row in enumerate(rows, 1) if number not in lines)
    content = text.encode()
    if log is not None:
        changes = [LabelChange(**change) for change in log.pop("changes")]
        remaining = [change for change in changes if change.id not in lines.values()]
        facts = {key: log[key] for key in log.keys() - {"version", "file", "sha256"}}
        write_log(path, content, facts, remaining)
    write_atomic(path, content)
    return True


# ---- the log beside a corrected labels file ----
# Which labels were changed, by whom and why, and how good the model was before. It names the labels
# file by its content: a log is ignored if the file was edited afterwards.


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
    write_atomic(log_path(labels), text.encode() + b"\n")
    with open_atomic(log_path(labels, "csv")) as handle:
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
