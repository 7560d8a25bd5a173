"""The single in-memory form of a data set, whatever its source."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedgsca.errors import DataError

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Table:
    """Images and labels in row order. Row ids and groups never leave the machine that made the table."""

    name: str
    images: np.ndarray  # (n, H, W, 3) uint8, usually a read-only memory map
    labels: np.ndarray  # (n,) int64 class indices
    classes: tuple[str, ...]  # class names in index order
    split: np.ndarray  # (n,) of "train" | "val" | "test"
    ids: np.ndarray  # (n,) str: file name or "train/17"
    fingerprint: str  # sha256 over images, labels, classes and split: names the data in a result
    groups: np.ndarray | None = None  # (n,) str: patient, slide or video
    site: np.ndarray | None = None  # (n,) str: hospital, where the source knows it
    white: int | None = (
        None  # what 16-bit grey was divided by, if there was any: later images must be, too
    )
    given: np.ndarray | None = (
        None  # (n,) int64: what sites train on, where the source has it beside `labels`, the reference
    )
    replaced: np.ndarray | None = (
        None  # (n,) int64: what was trained on before a csv of corrected labels took its place
    )
    group_word: str = "group"  # what a group is: patient, slide, video
    notes: tuple[str, ...] = field(
        default=()
    )  # things a person should know: skipped files, converted depths

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def trained_on(self) -> np.ndarray:
        """(n,) int64: the labels as given, where they stand beside a reference."""
        return self.labels if self.given is None else self.given

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def rows(self, split: str) -> np.ndarray:
        """Row numbers of one split, ascending."""
        return np.flatnonzero(self.split == split)


def empty(name: str, classes: Sequence[str], size: int) -> Table:
    """A table without images: the coordinator of a deployment knows the classes and has none of the images."""
    images, labels, words = (
        np.zeros((0, size, size, 3), np.uint8),
        np.zeros(0, np.int64),
        np.zeros(0, "<U8"),
    )
    return Table(
        name,
        images,
        labels,
        tuple(classes),
        words,
        words,
        fingerprint(images, labels, classes, words),
    )


def fingerprint(
    images: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    split: np.ndarray,
    *,
    digest: str | None = None,
) -> str:
    """The name of the data in a result: sha256 over images, labels, classes and split.

    `digest` is the sha256 of the images' raw bytes where it is known already (the cache keeps it), which saves reading them.
    """
    if digest is None:
        digest = images_digest(images)
    parts = repr(
        (tuple(images.shape), digest, tuple(map(str, classes)), np.asarray(split).tolist())
    )
    result = hashlib.sha256(parts.encode())
    result.update(np.ascontiguousarray(labels, dtype="<i8").tobytes())
    return result.hexdigest()


def images_digest(images: np.ndarray) -> str:
    """sha256 of the raw bytes, in slices so that a memory map larger than the memory passes through."""
    result = hashlib.sha256()
    for start in range(0, len(images), 256):
        result.update(np.ascontiguousarray(images[start : start + 256]).data)
    return result.hexdigest()


def check(table: Table) -> Table:
    """The one door through which every reader's table passes; returns it unchanged or raises DataError."""
    n = len(table)
    if n == 0:
        raise DataError(
            "todo.table-1",
            f"{table.name}: no images found",
            fix="point --data at a folder or file that contains images",
        )
    if table.images.dtype != np.uint8 or table.images.ndim != 4 or table.images.shape[-1] != 3:
        raise DataError(
            "todo.table-2",
            f"{table.name}: images must be (n, height, width, 3) uint8, found {table.images.shape} {table.images.dtype}",
            fix="convert the array, or store the images as files with a labels.csv",
        )
    for column in (table.images, table.split, table.ids, table.groups, table.site, table.given):
        if column is not None and len(column) != n:
            raise DataError(
                "todo.table-3",
                f"{table.name}: {n} labels but {len(column)} entries in another column",
                fix="rebuild the source",
            )
    for labels in (table.labels, table.given):
        if labels is not None and (labels.min() < 0 or labels.max() >= table.num_classes):
            raise DataError(
                "todo.table-4",
                f"{table.name}: labels run from {labels.min()} to {labels.max()} with {table.num_classes} classes",
                fix="labels must be 0 .. number of classes - 1",
            )
    stray = sorted(set(np.unique(table.split).tolist()) - set(SPLITS))
    if stray:
        raise DataError(
            "todo.table-5",
            f"{table.name}: unknown split {stray[0]!r}",
            fix=f"a split is one of {', '.join(SPLITS)}",
        )
    train = table.rows("train")
    if len(train) == 0:
        raise DataError(
            "todo.table-6",
            f"{table.name}: the training split is empty",
            fix="mark some rows with split = train",
        )
    if len(np.unique(table.labels[train])) < 2:
        raise DataError(
            "todo.table-7",
            f"{table.name}: the training images all carry one label ({table.classes[table.labels[train[0]]]})",
            fix="a classifier needs at least two classes; check the label column",
        )
    return table
