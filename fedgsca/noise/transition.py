"""Label noise for simulations: given labels are drawn from a transition matrix T[true, given].

Every sample is drawn on its own, so the realised rate differs a little from the nominal one;
`realised` says by how much.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import numpy as np

from fedgsca.errors import ConfigError, DataError
from fedgsca.noise.base import NO_CLASS, Candidates, NoiseContext, SiteNoise


class RealisedNoise(TypedDict):
    """What noise did to the labels of one site, ready for JSON."""

    samples: int
    # share of wrong labels
    rate: float
    # counts[true][given]; a last row for images of none of the classes, if there are any
    counts: list[list[int]]


def transition_matrix(
    noise: SiteNoise,
    num_classes: int,
    candidates: Candidates | None = None,
    matrix: np.ndarray | None = None,
    class_counts: np.ndarray | None = None,
    annotators: np.ndarray | None = None,
    order: tuple[int, ...] = (),
) -> np.ndarray:
    """(C, C): probability of each given label (column) for each true class (row). Rows sum to one.

    `candidates`, `matrix` (C, C), `class_counts` (C,), how often each class occurs among the
    true labels of the site, and `annotators` (A, C, C) are for the kinds that need them; `order`
    are the indices of grades from the lowest.
    """
    context = NoiseContext(num_classes, candidates, matrix, class_counts, annotators, order=order)
    return matrix_in(noise, context)


def matrix_in(noise: SiteNoise, context: NoiseContext) -> np.ndarray:
    """`transition_matrix` with all that a kind may know in one object."""
    if not noise.definition.has_matrix:
        raise ConfigError(
            "noise.no-transition-matrix",
            f"noise {noise} depends on the image, so it has no transition matrix",
            fix="draw labels with it, and count them",
        )
    return noise.definition.transition_matrix(noise, context)


def corrupt(
    labels: np.ndarray,
    noise: SiteNoise,
    *,
    num_classes: int,
    candidates: Candidates | None = None,
    matrix: np.ndarray | None = None,
    annotators: np.ndarray | None = None,
    likeness: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    order: tuple[int, ...] = (),
    rng: np.random.Generator,
) -> np.ndarray:
    """(n,): the labels a site is given when its true ones are `labels`; always a new array.

    `likeness` (n, C) and `groups` (n,) are for the kinds that depend on the image.
    """
    context = NoiseContext(
        num_classes, candidates, matrix, None, annotators, likeness, groups, order=order
    )
    return corrupt_site(labels, noise, context, rng)


def corrupt_site(
    labels: np.ndarray, noise: SiteNoise, context: NoiseContext, rng: np.random.Generator
) -> np.ndarray:
    """`corrupt` with all that a kind may know in one object, but the counts of the classes."""
    num_classes = context.num_classes
    _check_labels(labels, num_classes)
    if noise.definition.replaces_images:
        raise ConfigError(
            "noise.replaces-images",
            f"noise {noise} replaces images and leaves the labels as they are",
            fix="use it in a simulation (noise.spec), which has the images",
        )
    context = replace(context, class_counts=np.bincount(labels, minlength=num_classes))
    depends_on_image = noise.definition.needs_likeness and context.likeness is not None
    if noise.definition.has_matrix and not depends_on_image:
        return corrupt_with(labels, matrix_in(noise, context), rng)
    rows = noise.definition.image_probabilities(noise, labels, context, rng)
    return _draw(rows, rng)


def corrupt_with(labels: np.ndarray, matrix: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n,): a given label for every sample, drawn from its true label's row of `matrix` (C, C).

    One uniform number per sample is drawn from `rng`.
    """
    matrix = np.asarray(matrix, dtype=np.float64)
    _check_matrix(matrix)
    _check_labels(labels, len(matrix))
    return _draw(matrix[labels], rng)


def _draw(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n,): a label for every row of probabilities (n, C), by one uniform number each."""
    edges = rows.cumsum(axis=1)
    # ends at exactly 1, so that a class with probability 0 is never drawn, not even by rounding
    edges /= edges[:, -1:]
    given = (rng.random(len(rows))[:, None] >= edges).sum(axis=1)
    return np.asarray(given, dtype=np.int64)


def _check_labels(labels: np.ndarray, num_classes: int) -> None:
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise DataError(
            "noise.label-out-of-range",
            f"labels range from {labels.min()} to {labels.max()}, "
            f"but the noise is defined for {num_classes} classes",
            fix="number the classes from 0 to the number of classes - 1",
        )


def _check_matrix(matrix: np.ndarray) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ConfigError(
            "noise.matrix-not-square",
            f"a transition matrix must be square, but this one has the shape {matrix.shape}",
            fix="give one row and one column per class",
        )
    finite = np.isfinite(matrix).all(axis=1)
    positive = (matrix >= 0).all(axis=1)
    complete = abs(matrix.sum(axis=1) - 1) < 1e-6
    bad_rows = np.flatnonzero(~(finite & positive & complete))
    if bad_rows.size:
        examples = "; ".join(f"row {i} is {matrix[i].tolist()}" for i in bad_rows[:3])
        raise ConfigError(
            "noise.matrix-not-probabilities",
            f"{bad_rows.size} of {len(matrix)} rows of the transition matrix are not "
            f"probabilities: {examples}",
            fix="use numbers of 0 or more; each row, a true class, must sum to 1",
        )


def realised(true: np.ndarray, given: np.ndarray, num_classes: int) -> RealisedNoise:
    """What the noise did: number of samples, share of wrong labels, and counts[true][given].

    The counts have C rows, and one more at the end where a true label is NO_CLASS.
    """
    is_foreign = true == NO_CLASS
    num_rows = num_classes + int(is_foreign.any())
    pairs = np.where(is_foreign, num_classes, true) * num_classes + given
    counts = np.bincount(pairs, minlength=num_rows * num_classes).reshape(num_rows, num_classes)
    rate = float(np.mean(true != given)) if true.size else 0.0
    return {"samples": int(true.size), "rate": rate, "counts": counts.tolist()}


# ---- matrices from files ----


# How often pathologists A and B gave each label (rows) to the training images to which C gave each
# label (columns): facts of the Chaoyang data set; normal, serrated, adenocarcinoma, adenoma.
_A = ((801, 77, 5, 12), (327, 638, 10, 15), (0, 2, 1383, 6), (2, 106, 6, 631))
_B = ((1041, 288, 24, 97), (84, 465, 12, 161), (1, 6, 1349, 8), (4, 64, 19, 398))


def chaoyang_annotators() -> np.ndarray:
    """(3, 4, 4): pathologists A, B and C, if C's label is true."""
    counts = [np.array(table, dtype=np.float64).T for table in (_A, _B)]
    return np.stack([*(table / table.sum(axis=1, keepdims=True) for table in counts), np.eye(4)])


def read_matrix(name: str, num_classes: int) -> np.ndarray:
    """A (C, C) csv: row = true class, column = given class.

    `chaoyang` is built in: the label of one of three pathologists, drawn at random.
    """
    try:
        if name == "chaoyang":
            matrix = np.asarray(chaoyang_annotators().mean(axis=0))
        else:
            matrix = np.loadtxt(Path(name), delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "noise.unreadable-matrix",
            f"the noise matrix {name} cannot be read: {error}",
            fix="give a csv file of numbers, one row per true class",
        ) from None
    if matrix.shape != (num_classes, num_classes):
        raise ConfigError(
            "noise.matrix-shape",
            f"the noise matrix {name} has the shape {matrix.shape}, "
            f"but the data has {num_classes} classes",
            fix="give one row and one column per class",
        )
    return matrix


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
