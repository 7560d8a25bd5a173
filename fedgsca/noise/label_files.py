"""Noise from files: a transition matrix (one is built in), or given labels for every image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedgsca.errors import ConfigError, ConfigProblem, DataError
from fedgsca.support.checked_labels import NO_ORIGINAL, CheckedLabels, mark_checked
from fedgsca.support.csv_table import LabelLine, read_label_lines

# How often pathologists A and B gave each label (rows) to the training images to which C gave each
# label (columns): facts of the Chaoyang data set; normal, serrated, adenocarcinoma, adenoma.
_A = ((801, 77, 5, 12), (327, 638, 10, 15), (0, 2, 1383, 6), (2, 106, 6, 631))
_B = ((1041, 288, 24, 97), (84, 465, 12, 161), (1, 6, 1349, 8), (4, 64, 19, 398))
# problems of a file of given labels that are printed
_MAX_PROBLEMS = 5


def chaoyang_matrix() -> np.ndarray:
    """(4, 4): the label of one of three pathologists, drawn at random, if C's label is true."""
    counts = [np.array(table, dtype=np.float64).T for table in (_A, _B)]
    rates = [table / table.sum(axis=1, keepdims=True) for table in counts]
    return np.asarray((rates[0] + rates[1] + np.eye(4)) / 3)


MATRICES = {"chaoyang": chaoyang_matrix}


def read_matrix(name: str, num_classes: int) -> np.ndarray:
    """A built-in matrix, or a (C, C) csv: row = true class, column = given class."""
    path = Path(name)
    try:
        matrix = MATRICES[name]() if name in MATRICES else np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "noise.unreadable-matrix",
            f"the noise matrix {path} cannot be read: {error}",
            fix="give a csv file of numbers, one row per true class",
        ) from None
    if matrix.shape != (num_classes, num_classes):
        raise ConfigError(
            "noise.matrix-shape",
            f"the noise matrix {path} has the shape {matrix.shape}, "
            f"but the data has {num_classes} classes",
            fix="give one row and one column per class",
        )
    return matrix


def chaoyang_annotators() -> np.ndarray:
    """(3, 4, 4): pathologists A, B and C, if C's label is true."""
    counts = [np.array(table, dtype=np.float64).T for table in (_A, _B)]
    return np.stack([*(table / table.sum(axis=1, keepdims=True) for table in counts), np.eye(4)])


def read_annotators(name: str, num_classes: int) -> np.ndarray:
    """(A, C, C): transition matrices of annotators, from a csv with one block of C rows each.

    `chaoyang` is built in.
    """
    try:
        if name == "chaoyang":
            rows = chaoyang_annotators().reshape(-1, 4)
        else:
            rows = np.loadtxt(Path(name), delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "noise.unreadable-annotators",
            f"the annotators' matrices {name} cannot be read: {error}",
            fix="give a csv file of numbers: for each annotator one row per true class",
        ) from None
    fits = rows.shape[1] == num_classes and len(rows) % num_classes == 0 and len(rows) > 0
    if not fits or (rows < 0).any() or not np.allclose(rows.sum(axis=1), 1.0, atol=1e-6):
        raise ConfigError(
            "noise.annotators-shape",
            f"{name} has {len(rows)} rows of {rows.shape[1]} numbers, which are not transition "
            f"matrices of annotators for {num_classes} classes",
            fix=f"give {num_classes} rows per annotator, each with {num_classes} probabilities "
            "that sum to 1",
        )
    return np.asarray(rows.reshape(-1, num_classes, num_classes))


def read_given(
    path: Path, ids: np.ndarray, classes: tuple[str, ...], labels: np.ndarray
) -> tuple[np.ndarray, CheckedLabels | None]:
    """(n,) given labels from a csv with the columns file and label (a class name or its number).

    `ids` (n,) are the names of the images. Images that the file does not name keep `labels` (n,).
    Also the labels that a person has checked, by the columns checked and original.
    """
    try:
        lines = read_label_lines(path)
    except DataError as error:
        raise ConfigError(
            "noise.unreadable-labels-file",
            error.message,
            fix=f"check the file given to noise.given: {error.fix}",
        ) from None
    row_of = {str(name): row for row, name in enumerate(ids)}
    given, problems = _apply_labels(lines, row_of, _number_classes(classes), labels)
    if problems:
        raise ConfigError(
            "noise.invalid-labels-file",
            f"{path} has {len(problems)} invalid line(s):",
            fix="use the file and class names that `fedgsca data check` lists",
            problems=problems[:_MAX_PROBLEMS],
        )
    index = _number_classes(classes)
    mask = np.zeros(len(ids), bool)
    original = np.full(len(ids), NO_ORIGINAL)
    for line in lines:
        row = row_of[line.image_id]
        mask[row] = bool(line.checked)
        original[row] = index.get(line.original, NO_ORIGINAL)
    return given, mark_checked(mask, original)


def _number_classes(classes: tuple[str, ...]) -> dict[str, int]:
    """Class names and, where no class is called so, class numbers -> class index."""
    index = {name: c for c, name in enumerate(classes)}
    for c in range(len(classes)):
        index.setdefault(str(c), c)
    return index


def _apply_labels(
    lines: Sequence[LabelLine],
    row_of: Mapping[str, int],
    index: Mapping[str, int],
    labels: np.ndarray,
) -> tuple[np.ndarray, list[ConfigProblem]]:
    """The labels with those of the file, and the lines that name no image or no class."""
    given = labels.copy()
    problems = []
    for line, file, label, _, original in lines:
        if file not in row_of:
            message = f"line {line}: unknown image {file!r}"
            problems.append(ConfigProblem("noise.unknown-image", message))
        elif original and original not in index:
            message = f"line {line}: unknown class {original!r} in the column original"
            problems.append(ConfigProblem("noise.unknown-class", message))
        elif label not in index:
            message = f"line {line}: unknown class {label!r}"
            problems.append(ConfigProblem("noise.unknown-class", message))
        else:
            given[row_of[file]] = index[label]
    return given, problems
