"""A user's own features: one vector per image, from any network, in an .npz file.

    features  (n, D) numbers
    files     (n,) names as in labels.csv; optional where the file is a source of its own

These make it a source of its own, without images:

    labels    (n,) class names, or class numbers 0, 1, 2, ...
    classes   (C,) names of numbered classes; optional, as are groups, split and site, (n,) each
    checked   (n,) bool, the labels that a person has checked; optional
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgsca.data.build_table import sort_classes
from fedgsca.data.file_list import check_class_count
from fedgsca.data.partition import choose_split
from fedgsca.data.reader import READERS, Reader, ReaderOptions
from fedgsca.data.table import ImageTable, check_table, with_fingerprint
from fedgsca.errors import DataError, FedgscaError
from fedgsca.support.checked_labels import mark_checked
from fedgsca.support.text import one_line, plural

# the file that is found by itself in a folder of images
FILE_NAME = "features.npz"
MAX_WIDTH = 65_536
_COLUMNS = ("files", "labels", "groups", "split", "site", "classes", "checked")
_MAX_NAMES = 3  # that an error lists


@dataclass(frozen=True)
class FeatureFile:
    """The arrays of a file, checked one by one."""

    path: Path
    # (n, D) float32, finite
    features: np.ndarray
    # the optional arrays that the file has
    columns: Mapping[str, np.ndarray]


def has_features(path: Path) -> bool:
    """Whether this is an .npz file with an array `features`, and no images."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False  # the reader of images says what is wrong with the file
    return "features.npy" in names and "train_images.npy" not in names


@contextmanager
def archive_errors(path: Path) -> Iterator[None]:
    """Turn the many types of errors that a damaged .npz file raises into one with a fix."""
    try:
        yield
    except FedgscaError:
        raise
    except FileNotFoundError:
        raise DataError(
            "data.npz-not-found",
            f"the file {path} does not exist",
            fix="check the path of the .npz file",
        ) from None
    except Exception as error:  # headers are Python text: their parser raises many types
        if "Object arrays" in str(error):
            raise DataError(
                "data.object-array",
                f"{path}: an array holds Python objects, which only an unsafe pickle can restore",
                fix="store text as np.array(names, dtype=str) and numbers as plain arrays",
            ) from None
        reason = one_line(str(error)) or type(error).__name__
        raise DataError(
            "data.damaged-npz",
            f"{path} is not a readable .npz archive ({reason})",
            fix="copy, download or write the file again; it may be incomplete",
        ) from error


def read_features(path: Path) -> FeatureFile:
    """Read and check the arrays of a file; a pickle inside it is refused."""
    with archive_errors(path), np.load(path, allow_pickle=False) as archive:
        if "features" not in archive:
            content = ", ".join(sorted(archive)[:12]) or "nothing"
            raise DataError(
                "data.npz-arrays",
                f"{path} does not contain features; it contains {one_line(content)}",
                fix="store the vectors as an array named features, of shape (n, D)",
            )
        features = _check_features(path, archive["features"])
        columns = {}
        for name in _COLUMNS:
            if name in archive:
                columns[name] = _check_column(path, name, archive[name], len(features))
    return FeatureFile(path, features, columns)


def _check_features(path: Path, features: np.ndarray) -> np.ndarray:
    """(n, D) float32."""
    shape = features.shape
    if features.ndim != 2 or not shape[0] or not 1 <= shape[1] <= MAX_WIDTH:
        raise DataError(
            "data.feature-shape",
            f"{path}: features must have the shape (n, D), one vector of 1 to {MAX_WIDTH:,} numbers"
            f" per image; got {shape}",
            fix="pool maps and tokens to one vector per image, then store one row per image",
        )
    if features.dtype.kind not in "fiu":
        raise DataError(
            "data.feature-type",
            f"{path}: features must be numbers, got {features.dtype}",
            fix="store them as float32",
        )
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(features, dtype=np.float32)
    invalid_rows = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
    if len(invalid_rows):
        first = ", ".join(map(str, invalid_rows[:_MAX_NAMES].tolist()))
        raise DataError(
            "data.feature-not-finite",
            f"{path}: {len(invalid_rows)} of {plural(len(numbers), 'vector')} contain NaN or"
            f" infinity (rows {first})",
            fix="compute these vectors again (half precision overflows above 65,504), or leave the"
            " rows out",
        )
    return numbers


def _check_column(path: Path, name: str, column: np.ndarray, count: int) -> np.ndarray:
    """One entry per vector, as text or, for labels, as numbers; `classes` has its own length."""
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1 or (name != "classes" and len(column) != count):
        raise DataError(
            "data.column-length",
            f"{path}: {name} has the shape {column.shape}, but there are"
            f" {plural(count, 'feature vector')}",
            fix="store one entry per row of features",
        )
    if name == "checked":
        return check_marks(path, name, column, count)
    if name == "labels" and column.dtype.kind in "iu":
        return column.astype(np.int64)
    if name == "labels" and column.dtype.kind not in "US":
        raise DataError(
            "data.label-type",
            f"{path}: labels must be class names or class numbers, got {column.dtype}",
            fix="store labels as text, or as integers 0, 1, 2, ...",
        )
    if column.dtype.kind == "S":
        return np.char.decode(column, "utf-8", "replace")
    return column.astype(str)


def check_marks(path: Path, name: str, marks: np.ndarray, count: int) -> np.ndarray:
    """(n,) bool from an array of an .npz file that says which labels a person has checked."""
    if marks.ndim == 2 and marks.shape[1] == 1:
        marks = marks[:, 0]
    if marks.shape != (count,):
        raise DataError(
            "data.column-length",
            f"{path}: {name} has the shape {marks.shape}, but there are {plural(count, 'label')}",
            fix="store one entry per label, True for those that a person has checked",
        )
    if marks.dtype.kind not in "biu" or not np.isin(marks, (0, 1)).all():
        raise DataError(
            "data.checked-value",
            f"{path}: {name} has values other than 0 and 1",
            fix="store True or 1 for a label that a person has checked, False or 0 for any other",
        )
    return marks.astype(bool)


# ---- features beside images ----


def attach_features(table: ImageTable, path: Path) -> ImageTable:
    """The table with the vectors of a file, found by the names of the images."""
    file = read_features(path)
    if "files" not in file.columns:
        raise DataError(
            "data.features-without-names",
            f"{path} has features, but no array files that says which vector belongs to which"
            " image",
            fix=f"add files: the names as in the data, such as {str(table.ids[0])!r}",
        )
    row_of = _row_of_name(file)
    missing = [str(name) for name in table.ids if str(name) not in row_of]
    if missing:
        raise DataError(
            "data.images-without-features",
            f"{path} has no features for {len(missing)} of {plural(len(table), 'image')}, first"
            f" {one_line(missing[0])!r}; its first name is {one_line(next(iter(row_of)))!r}",
            fix="use the names of labels.csv, and compute the missing vectors",
        )
    features = file.features[[row_of[str(name)] for name in table.ids]]
    notes = list(table.notes)
    num_others = len(row_of) - len(table)
    if num_others:
        notes.append(f"{plural(num_others, 'vector')} of {path.name} for images not used here")
    return with_features(replace(table, notes=tuple(notes)), features, path)


def with_features(table: ImageTable, features: np.ndarray, path: Path) -> ImageTable:
    """The table with (n, D) vectors in the order of its rows, and what to know about them."""
    notes = [f"{features.shape[1]} own features per image from {path.name}"]
    num_constant = int(np.count_nonzero(features.min(axis=1) == features.max(axis=1)))
    if num_constant and features.shape[1] > 1:
        text = plural(num_constant, "feature vector has", "feature vectors have")
        notes.append(f"{text} the same number in every entry: a failed image?")
    return with_fingerprint(table, features=features, notes=(*table.notes, *notes))


# ---- a source of its own ----


def _read_source(location: str, options: ReaderOptions) -> ImageTable:
    """The table of a file; its images are empty."""
    file = read_features(Path(location).expanduser())
    labels, classes = _read_labels(file)
    columns = file.columns
    ids = np.array([f"row/{i}" for i in range(len(labels))])
    if "files" in columns:
        ids = np.array(list(_row_of_name(file)))
    groups = columns.get("groups")
    if groups is not None:
        groups = np.where(groups == "", ids, groups)
    split, split_notes = choose_split(
        columns.get("split"),
        labels,
        groups,
        options.test_fraction,
        options.seed,
        source=str(file.path),
    )
    table = ImageTable(
        name=file.path.stem,
        images=np.zeros((len(labels), 0, 0, 3), np.uint8),
        labels=labels,
        classes=classes,
        split=split,
        ids=ids,
        groups=groups,
        site=columns.get("site"),
        has_drawn_split="split" not in columns,
        checked=mark_checked(columns.get("checked", np.zeros(len(labels)))),
        notes=("features only: there are no images to look at", *split_notes),
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
    classes = () if names is None else tuple(map(str, names))
    is_number = labels.dtype.kind == "i"
    if is_number:
        check_class_count(file.path, labels)
    count = int(labels.max()) + 1 if is_number else 0
    if names is not None and (len(set(classes)) < len(classes) or len(classes) < count):
        raise DataError(
            "data.classes-array",
            f"{file.path}: classes has {plural(len(set(classes)), 'different name')} in"
            f" {plural(len(classes), 'entry', 'entries')}, and the labels need {count}",
            fix="store one name per class, in the order of the numbers",
        )
    if is_number:
        return labels, classes or tuple(f"class {i}" for i in range(count))
    words = [str(label) for label in labels]
    classes = classes or sort_classes(words)
    index = {name: i for i, name in enumerate(classes)}
    unknown_labels = sorted(set(words) - set(classes))
    if unknown_labels:
        raise DataError(
            "data.label-not-in-classes",
            f"{file.path}: the label {one_line(unknown_labels[0])!r} is not in classes",
            fix=f"add it to classes, or use one of: {', '.join(classes[:12])}",
        )
    return np.array([index[word] for word in words], dtype=np.int64), classes


def _row_of_name(file: FeatureFile) -> dict[str, int]:
    """The row of every name in the array `files`; a name that occurs twice is an error."""
    names = [str(name) for name in file.columns["files"]]
    row_of = {name: row for row, name in enumerate(names)}
    for row, name in enumerate(names):
        if row_of[name] != row:
            raise DataError(
                "data.feature-name-twice",
                f"{file.path}: files contains {one_line(name)!r} more than once",
                fix="store one vector per image",
            )
    return row_of


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
