"""Noise that comes from files: a transition matrix, or given labels for every image."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from fedgsca.errors import ConfigError


def read_matrix(path: Path, num_classes: int) -> np.ndarray:
    """A (C, C) csv, row = true class, column = given class; rows must sum to one."""
    try:
        matrix = np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"noise matrix {path} cannot be read: {error}", fix="a csv of numbers, one row per true class"
        ) from None
    if matrix.shape != (num_classes, num_classes):
        raise ConfigError(
            f"noise matrix {path} is {matrix.shape}, the data has {num_classes} classes", fix="one row and column per class"
        )
    return matrix


def read_given(path: Path, ids: np.ndarray, classes: tuple[str, ...], labels: np.ndarray) -> np.ndarray:
    """Given labels (n,) in row order from a csv with columns file,label (a class name or its number); rows not named keep `labels`."""
    known, names = {str(name): row for row, name in enumerate(ids)}, {name: i for i, name in enumerate(classes)}
    names |= {str(i): i for i in range(len(classes)) if str(i) not in names}
    given, problems = labels.copy(), []
    try:
        with open(path, newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle)
            if reader.fieldnames is None or not {"file", "label"} <= set(reader.fieldnames):
                raise ConfigError(
                    f"{path} lacks the columns file and label (found: {reader.fieldnames})", fix="first line: file,label"
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
        raise ConfigError(f"{path} cannot be read: {error}", fix="check the path given to noise.given") from None
    if problems:
        raise ConfigError(
            f"{path} has {len(problems)} bad lines:\n  " + "\n  ".join(problems[:5]),
            fix="use the names that `fedgsca data check` lists",
        )
    return given
