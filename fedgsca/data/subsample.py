"""A part of a table: a stratified draw, a long tail, or given rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedgsca.data.build_table import order_classes, split_note
from fedgsca.data.file_list import FileList
from fedgsca.data.reader import ReaderOptions
from fedgsca.data.split import split_rows
from fedgsca.data.table import ImageTable, fingerprint
from fedgsca.errors import DataError
from fedgsca.rng import stream

# formats that cannot name a patient
_PLAIN_SUFFIXES = frozenset((".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".png", ".tif", ".tiff"))


def subsample(table: ImageTable, options: ReaderOptions) -> ImageTable:
    """At most `train` and `test` images, each class in proportion, then the long tail of training.

    The same table if nothing has to be drawn.
    """
    selection, notes = select_rows(table.name, table.labels, table.split, options)
    return take_rows(table, selection, notes) if notes else table


def select_rows(
    name: str, labels: np.ndarray, split: np.ndarray, options: ReaderOptions
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The rows of the draw, ascending, and what was drawn; no notes: nothing had to be drawn."""
    selection = [np.flatnonzero(split == "val")]
    notes = []
    for part, limit in (("train", options.train), ("test", options.test)):
        rows = np.flatnonzero(split == part)
        if limit is not None and limit > len(rows):
            raise DataError(
                "data.too-few-images",
                f"{name}: data.{part} is {limit}, but there are only {len(rows)} {part} images",
                fix=f"set data.{part} to at most {len(rows)}",
            )
        if limit is not None and limit < len(rows):
            notes.append(f"{limit} of {len(rows)} {part} images drawn with seed {options.seed}")
            rows = draw_stratified(labels, rows, limit, stream(options.seed, "subsample", part))
        if part == "train" and options.long_tail is not None:
            count = len(rows)
            rows = draw_long_tail(
                labels, rows, options.long_tail, stream(options.seed, "long tail")
            )
            ratio = f"{options.long_tail:g}"
            notes.append(f"long tail 1:{ratio}, {len(rows)} of {count} training images drawn")
        selection.append(rows)
    return np.sort(np.concatenate(selection)), tuple(notes)


def draw_before_decoding(file_list: FileList, options: ReaderOptions) -> FileList | None:
    """The list with only the images that `subsample` would draw, so that no other is decoded.

    None if that cannot be known from the list: patients in DICOM files, unreadable files that may
    be left out, or nothing to draw.
    """
    limits = (options.train, options.test, options.long_tail)
    if all(limit is None for limit in limits) or options.skip_unreadable:
        return None
    rows = file_list.rows
    columns = file_list.columns
    has_dicom = any(Path(row.file).suffix.lower() not in _PLAIN_SUFFIXES for row in rows)
    if file_list.problems or not rows or (has_dicom and "group" not in columns):
        return None
    classes = file_list.classes or order_classes([row.label for row in rows])
    labels = np.array([classes.index(row.label) for row in rows], dtype=np.int64)
    groups = None
    if "group" in columns:
        groups = np.array([row.group or row.file for row in rows])
    notes = []
    if "split" in columns:
        split = np.array([row.split for row in rows])
    else:
        root = str(file_list.root)
        split = split_rows(labels, groups, options.test_fraction, options.seed, source=root)
        if options.test_fraction > 0:
            notes.append(split_note(split, groups, options.seed))
    name = file_list.name or file_list.root.resolve().name
    selection, draw_notes = select_rows(name, labels, split, options)
    if not draw_notes:
        return None
    part = [replace(rows[row], split=str(split[row])) for row in selection]
    is_drawn = np.isin(np.arange(len(rows)), selection)
    undrawn_files = [
        row.file for row, has_place in zip(rows, is_drawn, strict=True) if not has_place
    ]
    return replace(
        file_list,
        rows=part,
        columns=tuple(dict.fromkeys((*columns, "split"))),
        classes=classes,
        undrawn_files=tuple(undrawn_files),
        notes=[*file_list.notes, *notes, *draw_notes],
    )


def draw_stratified(
    labels: np.ndarray, rows: np.ndarray, limit: int, rng: np.random.Generator
) -> np.ndarray:
    """`limit` of the rows: shuffle, lay the classes end to end, then take evenly."""
    rows = rng.permutation(rows)
    by_class = rows[np.argsort(labels[rows], kind="stable")]
    return by_class[(np.arange(limit) * len(rows)) // limit]


def draw_long_tail(
    labels: np.ndarray, rows: np.ndarray, ratio: float, rng: np.random.Generator
) -> np.ndarray:
    """Rows whose class sizes fall geometrically, from all of the largest to 1/ratio of it.

    labels are those of the table, rows (n,) the candidates. Classes keep their order of size (ties:
    the earlier class first). A class never has more images than there are, and at least one.
    """
    classes, sizes = np.unique(labels[rows], return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    steps = np.arange(len(classes)) / max(len(classes) - 1, 1)
    limits = np.maximum(1, np.rint(sizes.max() * ratio**-steps)).astype(np.int64)
    selection = []
    for label, limit in zip(classes[order].tolist(), limits.tolist(), strict=True):
        members = rng.permutation(rows[labels[rows] == label])
        selection.append(members[:limit])
    return np.sort(np.concatenate(selection))


def take_rows(table: ImageTable, rows: np.ndarray, notes: tuple[str, ...] = ()) -> ImageTable:
    """The table with only these rows, in their order. The images are copied into memory."""
    images = np.asarray(table.images[rows])
    labels = table.labels[rows]
    split = table.split[rows]
    features = _take(table.features, rows)
    checked = None if table.checked is None else table.checked.part(rows)
    return replace(
        table,
        images=images,
        labels=labels,
        split=split,
        ids=table.ids[rows],
        groups=_take(table.groups, rows),
        site=_take(table.site, rows),
        given=_take(table.given, rows),
        image_digest="",
        features=features,
        checked=checked,
        fingerprint=fingerprint(
            images, labels, table.classes, split, features=features, checked=checked
        ),
        notes=table.notes + notes,
    )


def _take(column: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if column is None else column[rows]
