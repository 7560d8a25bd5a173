"""Numbers for tables: macro scores, detection of wrong labels, the paper's stability metric.

Only numpy is needed. Matrices are confusion matrices (C, C): row = true class, column = predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict

import numpy as np

# the last rounds of a run: always tested, and the reported scores are their mean
HEADLINE_ROUNDS = 5


class Scores(NamedTuple):
    """Macro averages in percent."""

    f1: float
    recall: float
    precision: float


class ClassScores(TypedDict):
    """Scores of one class in percent, and its number of true samples; ready for JSON."""

    f1: float
    recall: float
    precision: float
    support: int


class Detection(TypedDict):
    """How well flags find wrong labels, as shares; None where there is nothing to divide by."""

    precision: float | None
    recall: float | None
    # share of all samples that is flagged
    rate: float | None


def confusion(true: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """(C, C) counts from labels (n,) and predictions (n,)."""
    pair = np.asarray(true, dtype=np.int64) * num_classes + np.asarray(predicted, dtype=np.int64)
    return np.bincount(pair, minlength=num_classes**2).reshape(num_classes, num_classes)


def _class_rates(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F1, recall and precision of every class, each (C,), 0 to 1; 0 where undefined."""
    hits = np.diag(matrix).astype(np.float64)
    support = matrix.sum(axis=1)
    predictions = matrix.sum(axis=0)
    f1 = 2.0 * hits / np.maximum(support + predictions, 1)
    return f1, hits / np.maximum(support, 1), hits / np.maximum(predictions, 1)


def scores(matrix: np.ndarray) -> Scores:
    """Macro F1, recall and precision in percent over all classes; absent classes count as 0."""
    f1, recall, precision = (100.0 * float(rate.mean()) for rate in _class_rates(matrix))
    return Scores(f1, recall, precision)


def per_class(matrix: np.ndarray) -> list[ClassScores]:
    """The scores of every class, in order."""
    support = matrix.sum(axis=1)
    rows: list[ClassScores] = []
    for f1, recall, precision, n in zip(*_class_rates(matrix), support, strict=True):
        rows.append(
            {
                "f1": 100.0 * float(f1),
                "recall": 100.0 * float(recall),
                "precision": 100.0 * float(precision),
                "support": int(n),
            }
        )
    return rows


def quadratic_kappa(matrix: np.ndarray) -> float | None:
    """Agreement of grades beyond chance: 1 is perfect, 0 is chance; an error of two grades costs 4.

    `matrix` (C, C) counts images by label and prediction, both from the lowest to the highest
    grade. None where there is only one grade.
    """
    places = np.arange(len(matrix))
    costs = (places[:, None] - places) ** 2
    total = matrix.sum()
    if not total:
        return None
    chance = np.outer(matrix.sum(axis=1), matrix.sum(axis=0)) / total
    expected_cost = float((costs * chance).sum())
    return None if not expected_cost else 1.0 - float((costs * matrix).sum()) / expected_cost


def auroc(score: np.ndarray, positive: np.ndarray) -> float | None:
    """Probability that a positive sample scores higher than a negative one; a tie counts half.

    score (n,), positive (n,) bool. None if there is no positive or no negative sample. It follows
    from the mean rank of the positive samples.
    """
    positive = np.asarray(positive, dtype=bool)
    num_positive = int(positive.sum())
    num_negative = int((~positive).sum())
    if num_positive == 0 or num_negative == 0:
        return None
    _, group, count = np.unique(score, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    # the mean rank, from 1, of all samples with the same score
    rank = (last - 0.5 * (count - 1))[group]
    rank_sum = rank[positive].sum() - num_positive * (num_positive + 1) / 2
    return float(rank_sum / (num_positive * num_negative))


def detection(flags: np.ndarray, wrong: np.ndarray) -> Detection:
    """How well flags (n,) bool find the wrong labels (n,) bool."""
    num_hits = int(np.count_nonzero(flags & wrong))
    num_flags = int(np.count_nonzero(flags))
    num_wrong = int(np.count_nonzero(wrong))
    return {
        "precision": _share(num_hits, num_flags),
        "recall": _share(num_hits, num_wrong),
        "rate": _share(num_flags, flags.size),
    }


def _share(part: int, total: int) -> float | None:
    return part / total if total else None


def stability(
    theta: Mapping[str, np.ndarray], theta_k: Mapping[str, np.ndarray], names: Iterable[str]
) -> float:
    """||theta_k - theta||^2 (Eq. 18) over the named arrays, how far a site moved its model.

    `theta` is the model as received, `theta_k` as trained by the site; `names` are the trainable
    arrays. The paper's stability metric is the mean of this over the sites.
    """
    total = 0.0
    for name in names:
        difference = np.subtract(theta_k[name], theta[name], dtype=np.float64)
        total += np.square(difference).sum()
    return float(total)


def headline(values: Sequence[float], last: int = HEADLINE_ROUNDS) -> float:
    """The number that is reported: the mean over the last five rounds.

    So neither luck nor a choice on the test set enters it.
    """
    if not values:
        raise ValueError("no rounds to average")
    tail = values[-last:]
    return float(sum(tail) / len(tail))
