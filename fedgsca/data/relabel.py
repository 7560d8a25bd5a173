"""Labels from a csv: corrected ones after a review, with the log beside them, or given ones."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.data.file_list import repeats_fix, repeats_text, shorten, show_cases
from fedgsca.data.table import ImageTable, with_fingerprint
from fedgsca.data.withdrawn import WithdrawnList
from fedgsca.errors import ConfigError, ConfigProblem, DataError
from fedgsca.support.checked_labels import NO_ORIGINAL, CheckedLabels, mark_checked
from fedgsca.support.csv_table import LabelLine, read_label_lines, read_text, write_cells
from fedgsca.support.files import open_atomic, sha256_file, write_atomic
from fedgsca.support.text import plural

# problems of a file of given labels that are printed
_MAX_PROBLEMS = 5


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
    lines = _read_labels(table, path)
    row_of = _row_numbers(table)
    is_train = table.split == "train"
    is_locked = ~is_train & (not table.has_drawn_split or table.given is not None)
    _check_labels(table, path, lines, is_locked, is_part)
    known_lines = {row_of[name]: line for name, line in lines.items() if name in row_of}
    labels = table.trained_on.copy()  # a reference beside the given labels does not change
    for row, line in known_lines.items():
        if not is_locked[row]:
            labels[row] = class_index(line.label, table.classes)
    is_changed = labels != table.trained_on
    num_changed = int(is_changed[is_train].sum())
    text = f"{num_changed} of {is_train.sum()} differ from the source"
    notes = [*table.notes, f"training labels from {path.name}: {text}"]
    num_unlocked = int(is_changed.sum()) - num_changed
    if num_unlocked:
        text = plural(num_unlocked, "label of an image that was", "labels of images that were")
        notes.append(
            f"{text} set aside for testing changed, too: do not compare the scores with earlier"
            " ones"
        )
    num_others = len(lines) - len(known_lines)
    if num_others:
        text = plural(num_others, "line")
        notes.append(f"{text} of {path.name} for images that are not used here")
    # a file without the column says nothing: what the source says stays true of unchanged labels
    mask = np.zeros(len(table), bool)
    original = np.full(len(table), NO_ORIGINAL)
    if table.checked is not None:
        mask = table.checked.mask & ~is_changed
        original = table.checked.original.copy()
    checked = _mark_lines(known_lines, table.classes, mask, original)
    columns = {"labels": labels} if table.given is None else {"given": labels}
    return with_fingerprint(
        table,
        replaced_labels=table.trained_on,
        checked=checked,
        notes=tuple(notes),
        **columns,
    )


def read_given(table: ImageTable, path: Path) -> tuple[np.ndarray, CheckedLabels | None]:
    """(n,) given labels of a simulation from a csv; images that it does not name keep theirs.

    Also the labels that a person has checked, by the columns checked and original.
    """
    try:
        lines = _read_labels(table, path)
    except DataError as error:
        raise ConfigError(
            "noise.unreadable-labels-file",
            error.message,
            fix=f"check the file given to noise.given: {error.fix}",
        ) from None
    row_of = _row_numbers(table)
    given = table.labels.copy()
    problems = []
    for name, line in lines.items():
        label = class_index(line.label, table.classes)
        if name not in row_of:
            message = f"line {line.line}: unknown image {name!r}"
            problems.append(ConfigProblem("noise.unknown-image", message))
        elif line.original and class_index(line.original, table.classes) is None:
            message = f"line {line.line}: unknown class {line.original!r} in the column original"
            problems.append(ConfigProblem("noise.unknown-class", message))
        elif label is None:
            message = f"line {line.line}: unknown class {line.label!r}"
            problems.append(ConfigProblem("noise.unknown-class", message))
        else:
            given[row_of[name]] = label
    if problems:
        raise ConfigError(
            "noise.invalid-labels-file",
            f"{path} has {len(problems)} invalid line(s):",
            fix="use the file and class names that `fedgsca data check` lists",
            problems=problems[:_MAX_PROBLEMS],
        )
    mask = np.zeros(len(table), bool)
    original = np.full(len(table), NO_ORIGINAL)
    known_lines = {row_of[name]: line for name, line in lines.items()}
    return given, _mark_lines(known_lines, table.classes, mask, original)


def _row_numbers(table: ImageTable) -> dict[str, int]:
    return {str(image_id): row for row, image_id in enumerate(table.ids)}


def _mark_lines(
    lines: Mapping[int, LabelLine],
    classes: tuple[str, ...],
    mask: np.ndarray,
    original: np.ndarray,
) -> CheckedLabels | None:
    """What lines (by row) say about a check, written over the mask and the original labels (n,)."""
    for row, line in lines.items():
        if line.checked is not None:
            mask[row] = line.checked
            label = class_index(line.original, classes)
            original[row] = NO_ORIGINAL if label is None else label
    return mark_checked(mask, original)


def class_index(value: str, classes: tuple[str, ...]) -> int | None:
    """A class by its name, or by its number where no class has that name; None if unknown."""
    if value in classes:
        return classes.index(value)
    if value.isdecimal() and int(value) < len(classes):
        return int(value)
    return None


def _read_labels(table: ImageTable, path: Path) -> dict[str, LabelLine]:
    """Image id -> its line, with the names that the classes have in the table."""
    lines: dict[str, list[LabelLine]] = {}
    for line in read_label_lines(path):
        lines.setdefault(line.image_id, []).append(line)
    cases = []
    has_conflict = False
    for image_id, repeats in lines.items():
        if len(repeats) > 1:
            is_same = len({line.label for line in repeats}) == 1
            has_conflict |= not is_same
            text = repeats_text([line.line for line in repeats], is_same)
            cases.append(f"{shorten(image_id)} ({text})")
    if cases:
        raise DataError(
            "data.duplicate-file",
            f"{path}: {plural(len(cases), 'image')} listed more than once: {show_cases(cases)}",
            fix=repeats_fix(has_conflict),
        )
    names = table.class_names
    result = {}
    for image_id, (line,) in lines.items():
        label, original = names.get(line.label, line.label), names.get(line.original, line.original)
        result[image_id] = line._replace(label=label, original=original)
    return result


def _check_labels(
    table: ImageTable,
    path: Path,
    lines: Mapping[str, LabelLine],
    is_locked: np.ndarray,
    is_part: bool,
) -> None:
    """All problems of the file at once: ids, classes, missing images, locked labels (n,)."""
    row_of = _row_numbers(table)
    locked_cases = []
    names = {line.original for line in lines.values()} - {""}
    for image_id, line in lines.items():
        row = row_of.get(image_id)
        label = class_index(line.label, table.classes)
        if row is not None and is_locked[row] and label != table.labels[row]:
            locked_cases.append(image_id)
        if row is not None or not is_part:
            names |= {line.label}
    train_ids = [str(table.ids[row]) for row in table.rows("train")]
    unknown_names = [name for name in names if class_index(name, table.classes) is None]
    cases = {
        "val or test images with another label (these labels are locked)": locked_cases,
        "unknown ids": [] if is_part else [name for name in lines if name not in row_of],
        "training images without a label": [name for name in train_ids if name not in lines],
        "unknown classes": sorted(unknown_names),
    }
    problems = []
    for title, examples in cases.items():
        if examples:
            problems.append(f"{title} ({len(examples)}), first: {examples[0]}")
    if problems:
        raise DataError(
            "data.labels-do-not-fit",
            f"{path} does not fit {table.name}: {'; '.join(problems)}",
            fix=f"write one line for each of the {len(table.rows('train'))} training images, with "
            f"one of the labels: {', '.join(table.classes)}",
        )


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
