"""From evidence to a ranking: how suspicious each label is, what it should be instead, and how many are wrong.

Pure functions of numpy arrays; `given` are the labels under audit, (n,) class indices. The score and the window were chosen by a study
against the truth (benchmarks/audit.py, docs/audit.md): the loss of the received model, averaged over rounds, compared with the losses
of the same given class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedgsca.engine.label_evidence import Evidence
from fedgsca.selector import class_relative, clean_probability, fit_selector

SLACK = 0.05  # share of labels that a model may doubt though they are right; from the study
Z = 1.645  # 90 % of a normal distribution lies within


@dataclass(frozen=True)
class Ranking:
    order: np.ndarray  # (n,) rows, the most suspicious first
    suspicion: np.ndarray  # (n,) 0 to 1 by row; never rises along `order`
    suggested: np.ndarray  # (n,) the most probable class that is not the given one
    priority: np.ndarray  # (n,) bool by row: within the review quota


@dataclass(frozen=True)
class Estimate:
    """A number of wrong labels, and the interval that should hold the true one nine times in ten."""

    count: float
    low: float
    high: float


def rank(evidence: Evidence, given: np.ndarray, quota: float = 0.1) -> Ranking:
    scores = badness(evidence, given)
    order = np.lexsort((np.arange(len(given)), -scores))
    suspicion = wrong_probability(scores)
    other = evidence.probs.copy()
    other[np.arange(len(given)), given] = -1.0
    return Ranking(
        order, suspicion, other.argmax(axis=1), within_quota(order, evidence, given, quota)
    )


def badness(evidence: Evidence, given: np.ndarray) -> np.ndarray:
    """(n,) higher is worse: the mean loss, shifted so that all given classes have the same lower quartile."""
    return class_relative(evidence.losses, given, evidence.probs.shape[1])


def wrong_probability(scores: np.ndarray) -> np.ndarray:
    """(n,): posterior of the upper of two Gaussians; where the scores are one heap, 1 - exp(-loss), the probability missed."""
    fit = fit_selector(scores)
    return 1.0 - (
        np.exp(-np.maximum(scores, 0.0)) if fit is None else clean_probability(scores, fit)
    )


def within_quota(
    order: np.ndarray, evidence: Evidence, given: np.ndarray, quota: float
) -> np.ndarray:
    """(n,) bool: the first `quota` of the list, and of every given class the first half-quota of its own, three at least.

    Without the second part, rare classes vanish behind the frequent ones. A label that the model would give, too, is never in it:
    a clean site has few labels to review.
    """
    chosen = np.zeros(len(given), bool)
    doubted = order[evidence.probs[order].argmax(axis=1) != given[order]]
    chosen[doubted[: math.ceil(quota * len(given))]] = True
    for label in np.unique(given):
        mine = doubted[given[doubted] == label]
        chosen[mine[: max(3, math.ceil(quota * np.count_nonzero(given == label) / 2))]] = True
    return chosen


def confident_joint(probs: np.ndarray, given: np.ndarray) -> np.ndarray:
    """(C, C) estimated counts, row = given, column = true: confident learning (Northcutt et al., 2021) on the averaged outputs.

    A sample counts for the most probable class whose probability is at least that class's own average; rows are then scaled to
    the number of labels given.
    """
    classes = probs.shape[1]
    sizes = np.bincount(given, minlength=classes)
    own = np.bincount(given, weights=probs[np.arange(len(given)), given], minlength=classes)
    threshold = np.where(sizes > 0, own / np.maximum(sizes, 1), np.inf)
    confident = np.where(probs >= threshold, probs, -1.0)
    sure = confident.max(axis=1) >= 0
    counts = np.zeros((classes, classes))
    np.add.at(counts, (given[sure], confident[sure].argmax(axis=1)), 1.0)
    empty = counts.sum(axis=1) == 0
    counts[empty, empty.nonzero()[0]] = 1.0  # nobody was sure: nothing is known to be wrong
    return np.asarray(counts / counts.sum(axis=1, keepdims=True) * sizes[:, None])


def estimate(
    evidence: Evidence, given: np.ndarray, suspicion: np.ndarray, which: np.ndarray | None = None
) -> Estimate:
    """How many labels (of those in `which`, a mask) are wrong.

    Two estimates that err in opposite directions: the sum of suspicions counts hard but right labels, confident learning misses
    errors that the model has begun to learn. The count is their mean. The interval spans both, with the sampling error, and
    reaches further down by SLACK: a model doubts a few right labels even where none is wrong.
    """
    mask = np.ones(len(given), bool) if which is None else which
    n = int(mask.sum())
    if n == 0:
        return Estimate(0.0, 0.0, 0.0)
    joint = confident_joint(evidence.probs, given)
    wrong = 1.0 - np.diag(joint) / np.maximum(
        joint.sum(axis=1), 1.0
    )  # (C,) share of each given class
    both = sorted((float(suspicion[mask].mean()), float(wrong[given[mask]].mean())))
    error = [Z * math.sqrt(share * (1.0 - share) / n) for share in both]
    low, high = max(0.0, both[0] - error[0] - SLACK), min(1.0, both[1] + error[1])
    return Estimate(n * (both[0] + both[1]) / 2, n * low, n * high)


def clean_examples(evidence: Evidence, given: np.ndarray, count: int = 12) -> dict[int, np.ndarray]:
    """class -> rows of the labels that are most certainly right: smallest loss, and the model says so in every round."""
    agreed = evidence.votes[np.arange(len(given)), given] == evidence.rounds
    found = {}
    for label in range(evidence.probs.shape[1]):
        rows = np.flatnonzero((given == label) & agreed)
        found[label] = rows[np.argsort(evidence.losses[rows], kind="stable")[:count]]
    return found


def reason(
    evidence: Evidence, row: int, given: int, suggested: int, classes: tuple[str, ...]
) -> str:
    """In words, for a person who must decide."""
    votes, probs = evidence.votes[row], evidence.probs[row]
    of = f"of {evidence.rounds} round{'s' if evidence.rounds > 1 else ''}"
    if probs[given] >= probs[suggested]:
        return f"given {classes[given]}, the model agrees with {probs[given]:.2f} in {votes[given]} {of}"
    says = f"given {classes[given]}, the model says {classes[suggested]} with {probs[suggested]:.2f} in {votes[suggested]} {of}"
    return says if probs[given] < 0.1 else f"{says}, the given label with {probs[given]:.2f}"
