"""Corrected training labels from a csv, for a run after a review."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedgsca.data.table import Table, fingerprint
from fedgsca.errors import DataError
from fedgsca.support.csv_table import read_csv_table


def with_labels(table: Table, path: Path) -> Table:
    """The table with its training labels replaced, by id, from a csv with the columns id (or file) and label.

    All training images must be named once. Labels of val and test images are locked: a line that repeats one is let pass, so
    that a corrected copy of a whole labels.csv can be used.
    """
    given = _read_labels(path)
    train = table.rows("train")
    position = {str(table.ids[row]): int(row) for row in train}
    others = {
        str(table.ids[row]): int(table.labels[row])
        for row in np.flatnonzero(table.split != "train")
    }
    problems = []
    for what, found in (
        (
            "val or test images with another label, whose labels are locked",
            [
                i
                for i, v in given.items()
                if i in others and _class_index(v, table.classes) != others[i]
            ],
        ),
        ("unknown ids", [i for i in given if i not in position and i not in others]),
        ("training images without a label", [i for i in position if i not in given]),
        (
            "unknown classes",
            sorted({v for v in given.values() if _class_index(v, table.classes) is None}),
        ),
    ):
        if found:
            problems.append(f"{len(found)} {what}, first: {found[0]}")
    if problems:
        known = ", ".join(table.classes)
        raise DataError(
            "todo.relabel-1",
            f"{path}: " + "; ".join(problems),
            fix=f"one row for each of the {len(train)} training images of {table.name}, with a label out of: {known}",
        )
    before = table.trained_on  # a reference beside the given labels stays what it is
    labels = before.copy()
    for name, row in position.items():
        labels[row] = _class_index(given[name], table.classes)
    changed = int(np.sum(labels != before))
    if table.given is None:
        table = replace(
            table,
            labels=labels,
            fingerprint=fingerprint(table.images, labels, table.classes, table.split),
        )
    else:
        table = replace(table, given=labels)
    return replace(
        table,
        replaced=before,
        notes=(
            *table.notes,
            f"training labels from {path.name}: {changed} of {len(train)} differ from the source",
        ),
    )


def _read_labels(path: Path) -> dict[str, str]:
    sheet = read_csv_table(path)
    key = next((name for name in ("id", "file") if name in sheet.columns), None)
    if key is None or "label" not in sheet.columns:
        raise DataError(
            "todo.relabel-2",
            f"{path}: no columns id and label (found: {', '.join(sheet.written)})",
            fix="first line: id,label",
        )
    given: dict[str, str] = {}
    twice = []
    for _, row in sheet.rows:
        if row[key] in given:
            twice.append(row[key])
        given[row[key]] = row["label"]
    if twice:
        raise DataError(
            "todo.relabel-3",
            f"{path}: {len(twice)} ids stand twice, first: {twice[0]}",
            fix="keep one row per image",
        )
    return given


def _class_index(value: str, classes: tuple[str, ...]) -> int | None:
    """A class by its name, or by its number where no class is called that."""
    if value in classes:
        return classes.index(value)
    return int(value) if value.isdecimal() and int(value) < len(classes) else None
