"""The single in-memory form of a data set, whatever its source."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedgsca.errors import DataError
from fedgsca.support.checked_labels import CheckedLabels

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class ImageTable:
    """Images and labels in row order.

    Row ids and groups never leave the machine that built the table.
    """

    name: str
    # (n, H, W, 3) uint8, usually a read-only memory map; (n, 0, 0, 3) if there are features only
    images: np.ndarray
    # (n,) int64 class indices; -1 for images of no class, which only open-set noise appends
    labels: np.ndarray
    # class names in index order
    classes: tuple[str, ...]
    # (n,) of "train" | "val" | "test"
    split: np.ndarray
    # (n,) str: file name or "train/17"
    ids: np.ndarray
    # sha256 over images, labels, classes and split: names the data in a result
    fingerprint: str = ""
    # (n,) str: patient, slide or video
    groups: np.ndarray | None = None
    # (n,) str: hospital, where the source states it
    site: np.ndarray | None = None
    # the value of 16-bit grey that became white, if there was any: later images need the same
    white: int | None = None
    # (n,) int64: what sites train on, where the source has it beside `labels`, the reference
    given: np.ndarray | None = None
    # (n,) int64: what sites trained on before a csv of corrected labels took its place
    replaced_labels: np.ndarray | None = None
    # the source has no split column: the test images were drawn when it was read
    has_drawn_split: bool = False
    # what a group is: patient, slide, video
    group_word: str = "group"
    # names of classes from the lowest grade to the highest, as in `classes`; (): no order
    order: tuple[str, ...] = ()
    # a class name in the source -> the name here, where names.toml or site.toml gives it another
    class_names: Mapping[str, str] = field(default_factory=dict)
    # sha256 of the images alone, where a cache keeps it; "": not known
    image_digest: str = ""
    # the table of the source, to whose rows open-set noise has appended the last ones of this table
    source_table: ImageTable | None = None
    # (n, D) float32: the user's own features, where a file has them
    features: np.ndarray | None = None
    # labels, of those that sites train on, that a person has checked; None: none of them
    checked: CheckedLabels | None = None
    # what a person should know: skipped files, converted depths
    notes: tuple[str, ...] = ()

    @property
    def has_images(self) -> bool:
        """Whether there are pictures to look at, or features only."""
        return bool(self.images.shape[1])

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return len(self.classes)

    @property
    def trained_on(self) -> np.ndarray:
        """(n,) int64: the labels that sites train on, `given` where there is such a column."""
        return self.labels if self.given is None else self.given

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def rows(self, split: str) -> np.ndarray:
        """Row numbers of one split, ascending."""
        return np.flatnonzero(self.split == split)


def empty_table(name: str, classes: Sequence[str], size: int) -> ImageTable:
    """A table without images.

    The coordinator of a deployment knows the classes and has none of the images.
    """
    images = np.zeros((0, size, size, 3), np.uint8)
    labels = np.zeros(0, np.int64)
    words = np.zeros(0, "<U8")
    return with_fingerprint(ImageTable(name, images, labels, tuple(classes), words, words))


def with_fingerprint(table: ImageTable, **columns: Any) -> ImageTable:
    """The table with other columns, and with the fingerprint of what it contains then.

    The caller that changes `images` also says their `image_digest`; "": it is not known.
    """
    table = replace(table, **columns)
    digest = table.image_digest or images_digest(table.images)
    parts = repr((tuple(table.images.shape), digest, tuple(table.classes), table.split.tolist()))
    result = hashlib.sha256(parts.encode())
    result.update(np.ascontiguousarray(table.labels, dtype="<i8").tobytes())
    if table.features is not None:
        result.update(f"{table.features.shape}|{images_digest(table.features)}".encode())
    if table.checked is not None:
        result.update(table.checked.to_bytes())
    return replace(table, fingerprint=result.hexdigest())


def images_digest(images: np.ndarray) -> str:
    """sha256 of the raw bytes, in slices so that a memory map larger than the memory passes."""
    result = hashlib.sha256()
    for start in range(0, len(images), 256):
        result.update(np.ascontiguousarray(images[start : start + 256]).data)
    return result.hexdigest()


def check_table(table: ImageTable) -> ImageTable:
    """Every reader's table passes through this check: returned unchanged, or a DataError."""
    if len(table) == 0:
        raise DataError(
            "data.no-images",
            f"{table.name} contains no images",
            fix="point --data at a folder or file that contains images",
        )
    _check_columns(table)
    _check_splits(table)
    return table


def _check_columns(table: ImageTable) -> None:
    """Shapes, lengths and the range of the labels."""
    n = len(table)
    images = table.images
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
        raise DataError(
            "data.image-shape",
            f"{table.name}: images must be uint8 of shape (n, height, width, 3), "
            f"got {images.dtype} of shape {images.shape}",
            fix="convert the array, or store the images as files with a labels.csv",
        )
    columns = (images, table.split, table.ids, table.groups, table.site, table.given)
    for column in (*columns, table.features, table.checked):
        if column is not None and len(column) != n:
            raise DataError(
                "data.column-length",
                f"{table.name}: there are {n} labels, but another column has {len(column)} entries",
                fix="create the source again so that all columns have one entry per image",
            )
    for labels in (table.labels, table.given):
        if labels is None:
            continue
        if labels.min() < 0 or labels.max() >= table.num_classes:
            raise DataError(
                "data.label-range",
                f"{table.name}: labels must be between 0 and {table.num_classes - 1} "
                f"({table.num_classes} classes), got {labels.min()} to {labels.max()}",
                fix="number the classes 0, 1, 2, ... without gaps",
            )


def _check_splits(table: ImageTable) -> None:
    """Split names, and a training split from which something can be learned."""
    unknown_splits = sorted(set(np.unique(table.split).tolist()) - set(SPLITS))
    if unknown_splits:
        raise DataError(
            "data.unknown-split",
            f"{table.name}: unknown split {unknown_splits[0]!r}",
            fix=f"use one of: {', '.join(SPLITS)}",
        )
    train = table.rows("train")
    if len(train) == 0:
        raise DataError(
            "data.no-training-images",
            f"{table.name}: the training split is empty",
            fix="mark some rows with split = train",
        )
    if len(np.unique(table.labels[train])) < 2:
        label = table.classes[table.labels[train[0]]]
        raise DataError(
            "data.one-class",
            f"{table.name}: all training images have the same label, {label!r}",
            fix="check the label column; a classifier needs at least two classes",
        )
