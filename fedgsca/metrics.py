"""Numbers for tables: macro scores, detection of wrong labels, the paper's stability metric. Needs numpy only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
    """Macro averages in percent."""

    f1: float
    recall: float
    precision: float


def confusion(true: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """(C, C) counts, row = true class, column = predicted class."""
    pair = np.asarray(true, dtype=np.int64) * num_classes + np.asarray(predicted, dtype=np.int64)
    return np.bincount(pair, minlength=num_classes**2).reshape(num_classes, num_classes)


def _rates(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F1, recall, precision of every class, 0 to 1; 0 where undefined (nothing to find, nothing found)."""
    hit = np.diag(matrix).astype(np.float64)
    support, found = matrix.sum(axis=1), matrix.sum(axis=0)
    f1 = 2.0 * hit / np.maximum(support + found, 1)
    return f1, hit / np.maximum(support, 1), hit / np.maximum(found, 1)


def scores(matrix: np.ndarray) -> Scores:
    """Macro F1, recall and precision in percent over all classes of a confusion matrix, absent ones counted as 0."""
    f1, recall, precision = (100.0 * float(rate.mean()) for rate in _rates(matrix))
    return Scores(f1, recall, precision)


def per_class(matrix: np.ndarray) -> list[dict[str, float]]:
    """One entry per class: f1, recall, precision in percent and support, the number of true samples."""
    table = zip(*_rates(matrix), matrix.sum(axis=1), strict=True)
    return [
        {
            "f1": 100.0 * float(f),
            "recall": 100.0 * float(r),
            "precision": 100.0 * float(p),
            "support": int(n),
        }
        for f, r, p, n in table
    ]


def auroc(score: np.ndarray, positive: np.ndarray) -> float | None:
    """Chance that a positive sample scores higher than a negative one (a tie counts half); None if either is missing.

    From ranks: the mean rank of the positives is all it takes.
    """
    positive = np.asarray(positive, dtype=bool)
    hits, misses = int(positive.sum()), int((~positive).sum())
    if hits == 0 or misses == 0:
        return None
    _, group, count = np.unique(score, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    rank = (last - 0.5 * (count - 1))[
        group
    ]  # the mean rank, from 1, of all samples with this score
    return float((rank[positive].sum() - hits * (hits + 1) / 2) / (hits * misses))


def detection(flagged: np.ndarray, wrong: np.ndarray) -> dict[str, float | None]:
    """How well the flags find the wrong labels: precision, recall (None where there is nothing to divide by), share flagged."""
    both, flags, errors = (int(np.count_nonzero(x)) for x in (flagged & wrong, flagged, wrong))
    return {
        "precision": both / flags if flags else None,
        "recall": both / errors if errors else None,
        "rate": flags / flagged.size if flagged.size else None,
    }


def stability(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], names: Iterable[str]
) -> float:
    """||theta_k - theta||^2 over the named (trainable) arrays: how far one site moved from the model it received.

    The paper's stability metric is the mean of this over the sites.
    """
    return float(
        sum(np.square(np.subtract(after[n], before[n], dtype=np.float64)).sum() for n in names)
    )


def headline(values: Sequence[float], last: int = 5) -> float:
    """The number we report: the mean over the last five rounds, so that neither luck nor a choice on the test set enters."""
    if not values:
        raise ValueError("no rounds to average")
    tail = values[-last:]
    return float(sum(tail) / len(tail))
