"""FILE.npz with an array `features`: vectors of any network beside labels, and no images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedgsca.checked_labels import mark_checked
from fedgsca.data.build_table import order_classes, split_note
from fedgsca.data.own_features import FeatureFile, has_features, read_features, with_features
from fedgsca.data.reader import READERS, Reader, ReaderOptions
from fedgsca.data.readers.npz import check_class_count
from fedgsca.data.split import split_rows
from fedgsca.data.table import ImageTable, check_table
from fedgsca.errors import DataError
from fedgsca.support.text import one_line, plural


def _read_source(location: str, options: ReaderOptions) -> ImageTable:
    """The table of a file; its images are empty."""
    file = read_features(Path(location).expanduser())
    labels, classes = _read_labels(file)
    columns = file.columns
    ids = _read_names(file)
    groups = columns.get("groups")
    if groups is not None:
        groups = np.where(groups == "", ids, groups)
    notes = ["features only: there are no images to look at"]
    split = columns.get("split")
    if split is None:
        fraction = options.test_fraction
        split = split_rows(labels, groups, fraction, options.seed, source=str(file.path))
        if fraction > 0:
            notes.append(split_note(split, groups, options.seed))
    table = ImageTable(
        name=file.path.stem,
        images=np.zeros((len(labels), 0, 0, 3), np.uint8),
        labels=labels,
        classes=classes,
        split=split,
        ids=ids,
        fingerprint="",
        groups=groups,
        site=columns.get("site"),
        has_drawn_split="split" not in columns,
        checked=mark_checked(columns.get("checked", np.zeros(len(labels)))),
        notes=tuple(notes),
    )
    return check_table(with_features(table, file.features, file.path))


def _read_labels(file: FeatureFile) -> tuple[np.ndarray, tuple[str, ...]]:
    """(n,) class numbers, and the names of the classes."""
    labels = file.columns.get("labels")
    if labels is None:
        raise DataError(
            "data.features-without-labels",
            f"{file.path} has features and no labels",
            fix="add labels, (n,); or, for features of an image folder, name the folder with --data"
            " and this file with --features",
        )
    names = file.columns.get("classes")
    if labels.dtype.kind == "i":
        check_class_count(file.path, labels)
        count = int(labels.max()) + 1
        classes = tuple(f"class {i}" for i in range(count))
        if names is not None:
            classes = _check_classes(file, names, count)
        return labels, classes
    words = [str(label) for label in labels]
    classes = order_classes(words)
    if names is not None:
        classes = _check_classes(file, names, 0)
    unknown_labels = sorted(set(words) - set(classes))
    if unknown_labels:
        raise DataError(
            "data.label-not-in-classes",
            f"{file.path}: the label {one_line(unknown_labels[0])!r} is not in classes",
            fix=f"add it to classes, or use one of: {', '.join(classes[:12])}",
        )
    index = {name: i for i, name in enumerate(classes)}
    return np.array([index[word] for word in words], dtype=np.int64), classes


def _check_classes(file: FeatureFile, names: np.ndarray, count: int) -> tuple[str, ...]:
    """The names of the array `classes`; `count` is how many the labels need."""
    classes = tuple(str(name) for name in names)
    if len(set(classes)) < len(classes) or len(classes) < count:
        raise DataError(
            "data.classes-array",
            f"{file.path}: classes has {plural(len(set(classes)), 'different name')} in"
            f" {plural(len(classes), 'entry', 'entries')}, and the labels need {count}",
            fix="store one name per class, in the order of the numbers",
        )
    return classes


def _read_names(file: FeatureFile) -> np.ndarray:
    """(n,) str: the names of the file, else "row/0", "row/1", ..."""
    names = file.columns.get("files")
    if names is None:
        return np.array([f"row/{i}" for i in range(len(file.features))])
    if len(np.unique(names)) < len(names):
        raise DataError(
            "data.feature-name-twice",
            f"{file.path}: files contains a name more than once",
            fix="store one vector per image",
        )
    return names


READERS.register(
    "features",
    Reader(
        form="FEATURES.npz",
        summary="features of your own network beside labels, without images",
        read=_read_source,
        recognises=has_features,
        order=15,
    ),
)
