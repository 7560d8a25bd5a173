"""Scores of one list of predictions under many weightings of the images, for confidence intervals.

A bootstrap draws images with replacement, so each draw is a weight for every image: how often it
was drawn. Images of one patient are not independent of each other; where groups are known, whole
groups are drawn and all images of a group have the same weight. The weights of a draw are the same
for every list of predictions of the same images, so that differences between models are paired.

Only numpy is needed. Scores are percentages; (d, ...) has one entry per draw, d draws in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedgsca.rng import stream

DRAWS = 1000
LEVEL = 0.95
# with fewer images (or patients), an interval would say more about the method than about the model
MIN_UNITS = 5
# entries of an array of weights that are in memory at once
_CHUNK_ENTRIES = 2_000_000


class ScoreDraws(NamedTuple):
    """Scores under d weightings; NaN where a score is not defined.

    `average_macro` turns the arrays of shape (d, C) into macro averages.
    """

    accuracy: np.ndarray  # (d,)
    f1: np.ndarray  # (d, C), also the next four
    recall: np.ndarray
    precision: np.ndarray
    auroc: np.ndarray  # one class versus the others
    average_precision: np.ndarray
    support: np.ndarray  # (d, C) weight of the images of each class


# ---- draws ----


def number_units(n: int, groups: np.ndarray | None) -> np.ndarray:
    """(n,) int: what is drawn, from 0: groups (n,) if they are known, else single images."""
    if groups is None:
        return np.arange(n)
    _, units = np.unique(np.asarray(groups), return_inverse=True)
    return np.asarray(units).reshape(n)


def draw_weights(
    units: np.ndarray, draws: int = DRAWS, *, address: str = ""
) -> Iterator[np.ndarray]:
    """The weights of all images, (d, n) in several parts with `draws` rows in total.

    They depend only on the number of units and the address: the same call gives the same draws.
    """
    num_units = int(units.max(initial=-1)) + 1
    rng = stream(0, "bootstrap", num_units, address)
    part_size = max(1, _CHUNK_ENTRIES // max(1, len(units)))
    for start in range(0, draws, part_size):
        size = min(part_size, draws - start)
        counts = np.empty((size, num_units))
        for i in range(size):
            picks = rng.integers(num_units, size=num_units)
            counts[i] = np.bincount(picks, minlength=num_units)
        yield counts[:, units]


def quantile_interval(values: np.ndarray) -> tuple[float, float] | None:
    """The percentile interval of draws (d,) that holds 95 % of them; None if none is defined."""
    defined_values = values[np.isfinite(values)]
    if not len(defined_values):
        return None
    tail = 0.5 * (1.0 - LEVEL)
    low, high = np.quantile(defined_values, [tail, 1.0 - tail])
    return float(low), float(high)


# ---- scores ----


class WeightedScorer:
    """Scores of probabilities (n, C) against labels (n,), for any weights of the images."""

    def __init__(self, labels: np.ndarray, probs: np.ndarray) -> None:
        self.labels = np.asarray(labels, dtype=np.int64)
        self.probs = np.asarray(probs, dtype=np.float64)
        n, self.num_classes = self.probs.shape
        predictions = self.probs.argmax(axis=1)
        # (n, C * C) one-hot: the cell of the confusion matrix to which an image belongs
        self._cells = np.zeros((n, self.num_classes**2))
        self._cells[np.arange(n), self.labels * self.num_classes + predictions] = 1.0

    def measure(self, weights: np.ndarray, *, with_ranks: bool = True) -> ScoreDraws:
        """The scores under weights (d, n); without ranks, AUROC and average precision are NaN."""
        size = self.num_classes
        matrices = (weights @ self._cells).reshape(-1, size, size)
        f1, recall, precision, accuracy = rate_matrices(matrices)
        auroc = np.full((len(weights), size), np.nan)
        average_precision = np.full((len(weights), size), np.nan)
        for c in range(size if with_ranks else 0):
            auroc[:, c], average_precision[:, c] = rank_scores(
                self.probs[:, c], self.labels == c, weights
            )
        support = matrices.sum(axis=2)
        return ScoreDraws(accuracy, f1, recall, precision, auroc, average_precision, support)


def join_draws(parts: Sequence[ScoreDraws]) -> ScoreDraws | None:
    """Several parts of the draws as one; None if there are none."""
    if not parts:
        return None
    return ScoreDraws(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def rate_matrices(
    matrices: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """F1, recall and precision (d, C), and accuracy (d,), of confusion matrices (d, C, C).

    As in fedgsca.metrics: 0 where a rate has nothing to divide by.
    """
    hits = np.einsum("dcc->dc", matrices)
    support = matrices.sum(axis=2)
    predictions = matrices.sum(axis=1)
    f1 = 200.0 * _divide(hits, support + predictions)
    recall = 100.0 * _divide(hits, support)
    precision = 100.0 * _divide(hits, predictions)
    accuracy = 100.0 * _divide(hits.sum(axis=1), support.sum(axis=1))
    return f1, recall, precision, accuracy


def rank_scores(
    score: np.ndarray, positive: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """AUROC and average precision (d,) in percent, of scores (n,) under weights (d, n).

    AUROC: the probability that a positive sample scores higher than a negative one; a tie counts
    half. Average precision: the sum over thresholds of precision times gain in recall. NaN where
    there is no positive, or (AUROC) no negative sample.
    """
    positive_rows = np.flatnonzero(positive)
    negative_rows = np.flatnonzero(~positive)
    positive_rows = positive_rows[np.argsort(score[positive_rows], kind="stable")]
    negative_rows = negative_rows[np.argsort(score[negative_rows], kind="stable")]
    thresholds = score[positive_rows]  # ascending; only they change the recall
    positives = weights[:, positive_rows]  # (d, number of positive samples)
    positive_until = _cumulate(positives)
    negative_until = _cumulate(weights[:, negative_rows])
    num_positive = positive_until[:, -1]
    num_negative = negative_until[:, -1]
    negative_below = negative_until[:, np.searchsorted(score[negative_rows], thresholds)]
    negative_upto = negative_until[:, np.searchsorted(score[negative_rows], thresholds, "right")]
    pairs = (positives * 0.5 * (negative_below + negative_upto)).sum(axis=1)
    # with the threshold at a score, all samples from there upwards count as positive
    positive_below = positive_until[:, np.searchsorted(thresholds, thresholds)]
    positive_above = num_positive[:, None] - positive_below
    negative_above = num_negative[:, None] - negative_below
    precision = _divide(positive_above, positive_above + negative_above)
    area = (positives * precision).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        auroc = 100.0 * pairs / (num_positive * num_negative)
        average_precision = 100.0 * area / num_positive
    return auroc, average_precision


def _cumulate(weights: np.ndarray) -> np.ndarray:
    """(d, m + 1): how much weight the first 0, 1, ... m columns have."""
    sums = np.zeros((weights.shape[0], weights.shape[1] + 1))
    np.cumsum(weights, axis=1, out=sums[:, 1:])
    return sums


def average_macro(values: np.ndarray, support: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """(d,): the mean of values (d, C) over the classes.

    A class without an image in a draw, or whose score is not defined, is left out of that draw;
    `absent` (C,) bool are classes that count with their value although they have no image at all.
    NaN if nothing is left.
    """
    is_counted = np.isfinite(values) & ((support > 0) | absent)
    total = np.where(is_counted, values, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total / is_counted.sum(axis=1))


def _divide(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The quotient; 0 where there is nothing to divide by."""
    quotient = np.zeros_like(part, dtype=np.float64)
    np.divide(part, total, out=quotient, where=total > 0)
    return quotient
