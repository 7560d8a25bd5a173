"""Noise that comes from files: a transition matrix (one is built in), or given labels for every image."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from fedgsca.errors import ConfigError

# How often pathologists A and B gave each label (rows) to the training images that C gave each label (columns); facts of the Chaoyang
# data set: normal, serrated, adenocarcinoma, adenoma.
_A = ((801, 77, 5, 12), (327, 638, 10, 15), (0, 2, 1383, 6), (2, 106, 6, 631))
_B = ((1041, 288, 24, 97), (84, 465, 12, 161), (1, 6, 1349, 8), (4, 64, 19, 398))


def pathologists() -> np.ndarray:
    """(4, 4): the label that one of the three, drawn at random, gives to an image whose true label is C's."""
    given = [np.array(counts, dtype=np.float64).T for counts in (_A, _B)]
    rates = [counts / counts.sum(axis=1, keepdims=True) for counts in given]
    return np.asarray((rates[0] + rates[1] + np.eye(4)) / 3)


MATRICES = {"chaoyang": pathologists}


def read_matrix(name: str, num_classes: int) -> np.ndarray:
    """A built-in matrix, or a (C, C) csv: row = true class, column = given class; rows must sum to one."""
    path = Path(name)
    try:
        matrix = MATRICES[name]() if name in MATRICES else np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "todo.label-files-1",
            f"noise matrix {path} cannot be read: {error}",
            fix="a csv of numbers, one row per true class",
        ) from None
    if matrix.shape != (num_classes, num_classes):
        raise ConfigError(
            "todo.label-files-2",
            f"noise matrix {path} is {matrix.shape}, the data has {num_classes} classes",
            fix="one row and column per class",
        )
    return matrix


def read_given(
    path: Path, ids: np.ndarray, classes: tuple[str, ...], labels: np.ndarray
) -> np.ndarray:
    """Given labels (n,) in row order from a csv with columns file,label (a class name or its number); rows not named keep `labels`."""
    known, names = (
        {str(name): row for row, name in enumerate(ids)},
        {name: i for i, name in enumerate(classes)},
    )
    names |= {str(i): i for i in range(len(classes)) if str(i) not in names}
    given, problems = labels.copy(), []
    try:
        with open(path, newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle)
            if reader.fieldnames is None or not {"file", "label"} <= set(reader.fieldnames):
                raise ConfigError(
                    "todo.label-files-3",
                    f"{path} lacks the columns file and label (found: {reader.fieldnames})",
                    fix="first line: file,label",
                )
            for line, entry in enumerate(reader, start=2):
                row, label = known.get(entry["file"] or ""), names.get(entry["label"] or "")
                if row is None:
                    problems.append(f"line {line}: no image is called {entry['file']!r}")
                elif label is None:
                    problems.append(f"line {line}: no class is called {entry['label']!r}")
                else:
                    given[row] = label
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "todo.label-files-4",
            f"{path} cannot be read: {error}",
            fix="check the path given to noise.given",
        ) from None
    if problems:
        raise ConfigError(
            "todo.label-files-5",
            f"{path} has {len(problems)} bad lines:\n  " + "\n  ".join(problems[:5]),
            fix="use the names that `fedgsca data check` lists",
        )
    return given
