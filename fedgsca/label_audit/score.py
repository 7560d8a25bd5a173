"""From evidence to a ranking: how suspicious labels are, and how many are wrong.

Pure functions of numpy arrays; `given` are the labels under audit, (n,) class indices. The score
and the window of rounds were chosen by a study against the true labels (benchmarks/audit.py,
docs/audit.md): the loss of the received model, averaged over rounds, compared with the losses of
the same given class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedgsca.engine.label_evidence import Evidence
from fedgsca.selector import class_relative, clean_probability, fit_selector
from fedgsca.support.text import plural

# share of labels that a model may doubt although they are correct; from the study
DOUBT_SLACK = 0.05
# 90 % of a normal distribution lies within this many standard deviations
Z_90 = 1.645
# the given label is named in a reason if the model gives it at least this probability
MIN_NAMED_PROBABILITY = 0.1
MIN_PER_CLASS = 3  # labels of every class on the priority list, if the model doubts so many


@dataclass(frozen=True)
class LabelRanking:
    """The labels of one site, ordered by suspicion."""

    # (n,) rows, the most suspicious first
    order: np.ndarray
    # (n,) 0 to 1 by row, higher is worse; never rises along `order`
    suspicion: np.ndarray
    # (n,) class index: the most probable class other than the given one
    suggestion: np.ndarray
    # (n,) bool by row: on the priority list
    priority: np.ndarray


@dataclass(frozen=True)
class ErrorEstimate:
    """A number of wrong labels, and the interval that contains the true one nine times in ten."""

    count: float
    low: float
    high: float


def rank_labels(evidence: Evidence, given: np.ndarray, quota: float = 0.1) -> LabelRanking:
    """Rank the labels `given`, (n,), by the evidence against them.

    `quota` is the share of the labels on the priority list, see `review_mask`.
    """
    scores = relative_losses(evidence, given)
    order = np.lexsort((np.arange(len(given)), -scores))
    suspicion = error_probability(scores)
    probs = evidence.probs.copy()
    probs[np.arange(len(given)), given] = -1.0
    suggestion = probs.argmax(axis=1)
    return LabelRanking(order, suspicion, suggestion, review_mask(order, evidence, given, quota))


def relative_losses(evidence: Evidence, given: np.ndarray) -> np.ndarray:
    """(n,) higher is worse: the mean loss, shifted to the same lower quartile for every class."""
    return class_relative(evidence.losses, given, evidence.probs.shape[1])


def error_probability(scores: np.ndarray) -> np.ndarray:
    """(n,) 0 to 1: the posterior of the upper of two Gaussian components fitted to `scores`, (n,).

    Where the scores have a single mode it is 1 - exp(-loss), one minus the probability of the given
    label.
    """
    fit = fit_selector(scores)
    if fit is None:
        return np.asarray(1.0 - np.exp(-np.maximum(scores, 0.0)))
    return np.asarray(1.0 - clean_probability(scores, fit))


def review_mask(
    order: np.ndarray, evidence: Evidence, given: np.ndarray, quota: float
) -> np.ndarray:
    """(n,) bool: the priority list.

    It has the first `quota` of `order` and, of every given class, the first half-quota. Without the
    second part (at least three labels per class), rare classes would disappear behind frequent
    ones. A label that the model agrees with is never on the list, so a clean site has few labels on
    it.
    """
    mask = np.zeros(len(given), bool)
    doubtful = order[evidence.probs[order].argmax(axis=1) != given[order]]
    mask[doubtful[: math.ceil(quota * len(given))]] = True
    for label in np.unique(given):
        class_rows = doubtful[given[doubtful] == label]
        half_quota = math.ceil(quota * np.count_nonzero(given == label) / 2)
        mask[class_rows[: max(MIN_PER_CLASS, half_quota)]] = True
    return mask


def confident_joint(probs: np.ndarray, given: np.ndarray) -> np.ndarray:
    """(C, C) estimated counts, row = given class, column = true class, from `probs`, (n, C).

    Confident learning (Northcutt et al., 2021) on the averaged outputs: a sample counts for the
    most probable class whose probability is at least that class's own average; rows are then scaled
    to the number of labels given.
    """
    classes = probs.shape[1]
    sizes = np.bincount(given, minlength=classes)
    self_confidence = probs[np.arange(len(given)), given]
    totals = np.bincount(given, weights=self_confidence, minlength=classes)
    threshold = np.where(sizes > 0, totals / np.maximum(sizes, 1), np.inf)
    confident = np.where(probs >= threshold, probs, -1.0)
    sure = confident.max(axis=1) >= 0
    counts = np.zeros((classes, classes))
    np.add.at(counts, (given[sure], confident[sure].argmax(axis=1)), 1.0)
    empty = counts.sum(axis=1) == 0
    counts[empty, empty.nonzero()[0]] = 1.0  # no confident sample: no evidence of an error
    return np.asarray(counts / counts.sum(axis=1, keepdims=True) * sizes[:, None])


def estimate_errors(
    evidence: Evidence, given: np.ndarray, suspicion: np.ndarray, mask: np.ndarray | None = None
) -> ErrorEstimate:
    """Estimate how many labels (of those in `mask`, (n,) bool; default all) are wrong.

    Two estimates err in opposite directions: the sum of suspicions also counts hard but correct
    labels, confident learning misses errors that the model has begun to learn. The count is their
    mean. The interval spans both, with the sampling error, and reaches further down by DOUBT_SLACK:
    a model doubts a few correct labels even where none is wrong.
    """
    if mask is None:
        mask = np.ones(len(given), bool)
    n = int(mask.sum())
    if n == 0:
        return ErrorEstimate(0.0, 0.0, 0.0)
    joint = confident_joint(evidence.probs, given)
    error_rates = 1.0 - np.diag(joint) / np.maximum(joint.sum(axis=1), 1.0)  # (C,) by given class
    by_suspicion = float(suspicion[mask].mean())
    by_joint = float(error_rates[given[mask]].mean())
    lower, upper = sorted((by_suspicion, by_joint))
    low = max(0.0, lower - _sampling_error(lower, n) - DOUBT_SLACK)
    high = min(1.0, upper + _sampling_error(upper, n))
    return ErrorEstimate(n * (lower + upper) / 2, n * low, n * high)


def _sampling_error(share: float, n: int) -> float:
    """Half the width of the 90 % interval of a share observed on n labels."""
    return Z_90 * math.sqrt(share * (1.0 - share) / n)


def select_clean_examples(
    evidence: Evidence, given: np.ndarray, count: int = 12
) -> dict[int, np.ndarray]:
    """Class index -> up to `count` rows whose labels are most certainly correct.

    The smallest losses of the class, among labels that the model agreed with in every round.
    """
    agreement = evidence.votes[np.arange(len(given)), given] == evidence.rounds
    examples = {}
    for label in range(evidence.probs.shape[1]):
        rows = np.flatnonzero((given == label) & agreement)
        examples[label] = rows[np.argsort(evidence.losses[rows], kind="stable")[:count]]
    return examples


def describe_reason(
    evidence: Evidence, row: int, given: int, suggestion: int, classes: tuple[str, ...]
) -> str:
    """Why this label is on the priority list, in words for the person who decides about it."""
    votes = evidence.votes[row]
    probs = evidence.probs[row]
    rounds = plural(evidence.rounds, "round")
    start = f"given {classes[given]}, the model"
    if probs[given] >= probs[suggestion]:
        return f"{start} agrees (mean probability {probs[given]:.2f}, {votes[given]} of {rounds})"
    reason = (
        f"{start} says {classes[suggestion]} with {probs[suggestion]:.2f}"
        f" in {votes[suggestion]} of {rounds}"
    )
    if probs[given] < MIN_NAMED_PROBABILITY:
        return reason
    return f"{reason}, the given label with {probs[given]:.2f}"
