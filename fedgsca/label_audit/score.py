"""From evidence to a ranking: how suspicious labels are, and how many are wrong.

Pure functions of numpy arrays; `given` are the labels under audit, (n,) class indices. Runs with
evidence heads have a posterior of the true class, and 1 - r_i(y_i) is the suspicion
(fedgsca/evidence.py, docs/evidence.md). Without heads (older and very short runs, test labels) it
is the loss of the received model, averaged over rounds, compared with the losses of the same given
class. Both were chosen by studies against the true labels (docs/audit.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedgsca import evidence as heads
from fedgsca.checked_labels import CheckedLabels
from fedgsca.engine.label_evidence import Evidence
from fedgsca.selector import class_relative, clean_probability, fit_selector
from fedgsca.support.text import percent
from fedgsca.wrong_count import CountModels, estimate_wrong, fit_models

# share of labels that a model may doubt although they are correct; from the study
DOUBT_SLACK = 0.05
# 90 % of a normal distribution lies within this many standard deviations
Z_90 = 1.645
# the smallest share of rounds -> how often that is
FREQUENCIES = ((0.8, "almost every time"), (0.5, "most times"), (1e-9, "only sometimes when"))
# the given label is named in a reason if the model gives it at least this probability
MIN_NAMED_PROBABILITY = 0.1
MIN_PER_CLASS = 3  # labels of every class on the priority list, if the model doubts so many


@dataclass(frozen=True)
class HeadVerdict:
    """What the evidence heads say about the labels of one site."""

    # (n, C): P(true class | image, given label)
    posterior: np.ndarray
    # for the number of wrong labels
    models: CountModels


@dataclass(frozen=True)
class LabelRanking:
    """The labels of one site, ordered by suspicion."""

    # (m,) rows, the most suspicious first; without labels that a person has checked
    order: np.ndarray
    # (n,) 0 to 1 by row, higher is worse; never rises along `order`
    suspicion: np.ndarray
    # (n,) class index: the most probable class other than the given one
    suggestion: np.ndarray
    # (n,) bool by row: on the priority list
    priority: np.ndarray
    # (n, C) by row: probabilities of the true class, of the evidence heads or else of the model
    probs: np.ndarray
    # None: the run has no evidence heads
    verdict: HeadVerdict | None = None
    # None: nobody has checked a label
    checked: CheckedLabels | None = None


@dataclass(frozen=True)
class ErrorEstimate:
    """A number of wrong labels, and the interval that contains the true one nine times in ten."""

    count: float
    low: float
    high: float
    can_tell: bool = True


def rank_labels(
    evidence: Evidence,
    given: np.ndarray,
    quota: float = 0.1,
    checked: CheckedLabels | None = None,
) -> LabelRanking:
    """Rank the labels `given`, (n,), by the evidence against them.

    `quota` is the share of the labels on the priority list, see `review_mask`. Labels that a person
    has `checked` are right and not listed.
    """
    verdict = judge_labels(evidence, given, checked)
    if verdict is None:
        probs = evidence.probs
        scores = relative_losses(evidence, given)
        suspicion = error_probability(scores)
    else:
        probs = verdict.posterior
        suspicion = heads.suspicion(probs, given)
        # near 1 the suspicion has too few digits for an order
        scores = heads.label_losses(probs, given)
    order = np.lexsort((np.arange(len(given)), -scores))
    if checked is not None:
        order = order[~checked.mask[order]]
        suspicion = np.where(checked.mask, 0.0, suspicion)
    other_probs = probs.copy()
    other_probs[np.arange(len(given)), given] = -1.0
    suggestion = other_probs.argmax(axis=1)
    priority = review_mask(order, probs, given, quota)
    return LabelRanking(order, suspicion, suggestion, priority, probs, verdict, checked)


def judge_labels(
    evidence: Evidence, given: np.ndarray, checked: CheckedLabels | None = None
) -> HeadVerdict | None:
    """The verdict of the evidence heads; None if the run has none."""
    judgement = evidence.judgement
    if judgement is None:
        return None
    posterior = judgement.transition(given, checked).posterior
    return HeadVerdict(posterior, fit_models(judgement, given, checked))


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
    order: np.ndarray, probs: np.ndarray, given: np.ndarray, quota: float
) -> np.ndarray:
    """(n,) bool: the priority list.

    It has the first `quota` of `order` and, of every given class, the first half-quota. Without the
    second part (at least three labels per class), rare classes would disappear behind frequent
    ones. A label that is the most probable class under probs, (n, C), is never on the list, so a
    clean site has few labels on it.
    """
    mask = np.zeros(len(given), bool)
    doubtful = order[probs[order].argmax(axis=1) != given[order]]
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


def count_errors(
    evidence: Evidence,
    given: np.ndarray,
    ranking: LabelRanking,
    mask: np.ndarray | None = None,
) -> ErrorEstimate:
    """Estimate how many labels (of those in `mask`, (n,) bool; default all) are wrong."""
    verdict = ranking.verdict
    if verdict is None:
        if ranking.checked is not None:
            doubtful = ~ranking.checked.mask
            mask = doubtful if mask is None else mask & doubtful
        return estimate_errors(evidence, given, ranking.suspicion, mask)
    estimate = estimate_wrong(verdict.models, mask)
    n = len(given) if mask is None else int(mask.sum())
    return ErrorEstimate(n * estimate.share, n * estimate.low, n * estimate.high, estimate.can_tell)


def estimate_errors(
    evidence: Evidence, given: np.ndarray, suspicion: np.ndarray, mask: np.ndarray | None = None
) -> ErrorEstimate:
    """The estimate without evidence heads.

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
    evidence: Evidence, given: np.ndarray, ranking: LabelRanking, count: int = 12
) -> dict[int, np.ndarray]:
    """Class index -> up to `count` rows whose labels are most certainly correct.

    The least suspicious ones of the class, among labels that the evidence heads agree with; without
    heads the smallest losses, among labels that the model agreed with in every round.
    """
    if ranking.verdict is None:
        agreement = evidence.votes[np.arange(len(given)), given] == evidence.rounds
        scores = evidence.losses
    else:
        agreement = ranking.probs.argmax(axis=1) == given
        scores = ranking.suspicion
    if ranking.checked is not None:
        # right, but they were checked because they did not look like it
        agreement = agreement & ~ranking.checked.mask
    examples = {}
    for label in range(ranking.probs.shape[1]):
        rows = np.flatnonzero((given == label) & agreement)
        examples[label] = rows[np.argsort(scores[rows], kind="stable")[:count]]
    return examples


def describe_label(
    evidence: Evidence, ranking: LabelRanking, row: int, given: int, classes: tuple[str, ...]
) -> str:
    """Why this label is on the list, in words for the person who decides about it."""
    if ranking.verdict is None:
        suggestion = int(ranking.suggestion[row])
        return describe_reason(evidence, row, given, suggestion, classes)
    return _describe_verdict(evidence, ranking, row, given, classes)


def describe_reason(
    evidence: Evidence, row: int, given: int, suggestion: int, classes: tuple[str, ...]
) -> str:
    """The reason in a run without evidence heads."""
    probs = evidence.probs[row]
    if probs[given] >= probs[suggestion]:
        frequency = describe_frequency(int(evidence.votes[row, given]), evidence.rounds)
        agreement = f"the model agrees ({percent(probs[given], 0)}){frequency}"
        return f"labelled {classes[given]}; {agreement}"
    frequency = describe_frequency(int(evidence.votes[row, suggestion]), evidence.rounds)
    reason = (
        f"labelled {classes[given]}; the model says {classes[suggestion]}"
        f" ({percent(probs[suggestion], 0)}){frequency}"
    )
    return reason + _describe_given(float(probs[given]), classes[given])


def _describe_verdict(
    evidence: Evidence, ranking: LabelRanking, row: int, given: int, classes: tuple[str, ...]
) -> str:
    suggestion = int(ranking.suggestion[row])
    probs = ranking.probs[row]
    if probs[given] >= probs[suggestion]:
        start = f"labelled {classes[given]}; the evidence agrees ({percent(probs[given], 0)})"
        return f"{start}{_describe_votes(evidence, row, given)}"
    reason = (
        f"labelled {classes[given]}; the evidence says {classes[suggestion]}"
        f" ({percent(probs[suggestion], 0)}){_describe_votes(evidence, row, suggestion)}"
    )
    return reason + _describe_given(float(probs[given]), classes[given])


def _describe_given(probability: float, name: str) -> str:
    if probability < MIN_NAMED_PROBABILITY:
        return ""
    return f"; {percent(probability, 0)} for {name}"


def _describe_votes(evidence: Evidence, row: int, label: int) -> str:
    """How often the model chose this class; nothing where there was no model."""
    if not evidence.has_model:
        return ""
    frequency = describe_frequency(int(evidence.votes[row, label]), evidence.rounds)
    return f"; the model said so{frequency.removeprefix(',')}"


def describe_frequency(votes: int, rounds: int) -> str:
    """How often the model chose a class, in words: it looked at the image once in every round.

    Nothing if it looked only once or never.
    """
    if rounds < 2:
        return ""
    share = votes / rounds
    if share == 1:
        return ", every time it looked at the image"
    for least, words in FREQUENCIES:
        if share >= least:
            return f", {words} it looked at the image"
    return ", never when it looked at the image"
