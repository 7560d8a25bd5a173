"""A part of a table: a stratified draw, or given rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedgsca.data.reader import ReaderOptions
from fedgsca.data.table import ImageTable, fingerprint
from fedgsca.errors import DataError
from fedgsca.rng import stream


def subsample(table: ImageTable, options: ReaderOptions) -> ImageTable:
    """At most `train` and `test` images, each class in proportion; the same table if all fit."""
    selection = [table.rows("val")]
    notes = []
    for split, limit in (("train", options.train), ("test", options.test)):
        rows = table.rows(split)
        if limit is not None and limit > len(rows):
            raise DataError(
                "data.too-few-images",
                f"{table.name}: data.{split} is {limit}, but there are only {len(rows)} {split} "
                "images",
                fix=f"set data.{split} to at most {len(rows)}",
            )
        if limit is not None and limit < len(rows):
            notes.append(f"{limit} of {len(rows)} {split} images drawn with seed {options.seed}")
            rows = _draw(table.labels, rows, limit, stream(options.seed, "subsample", split))
        selection.append(rows)
    if not notes:
        return table
    return take_rows(table, np.sort(np.concatenate(selection)), tuple(notes))


def _draw(labels: np.ndarray, rows: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """`limit` of the rows: shuffle, lay the classes end to end, then take evenly."""
    rows = rng.permutation(rows)
    by_class = rows[np.argsort(labels[rows], kind="stable")]
    return by_class[(np.arange(limit) * len(rows)) // limit]


def take_rows(table: ImageTable, rows: np.ndarray, notes: tuple[str, ...] = ()) -> ImageTable:
    """The table with only these rows, in their order. The images are copied into memory."""
    images = np.asarray(table.images[rows])
    labels = table.labels[rows]
    split = table.split[rows]
    return replace(
        table,
        images=images,
        labels=labels,
        split=split,
        ids=table.ids[rows],
        groups=_take(table.groups, rows),
        site=_take(table.site, rows),
        given=_take(table.given, rows),
        fingerprint=fingerprint(images, labels, table.classes, split),
        notes=table.notes + notes,
    )


def _take(column: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if column is None else column[rows]
