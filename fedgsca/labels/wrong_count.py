"""How many labels of a site are wrong: a share with an interval, or "cannot tell".

One model of the labels would answer with one number, and the number depends on three choices: who
judges (evidence.py: the federation, or the site alone), how far the opinion is sharpened (kappa),
and how strongly the transition matrix T is held to "symmetric". So a grid of models answers. Each
is weighed by how well it explains labels that it has not seen: T is fitted to four fifths of the
labels and explains the last fifth. A model that fits T to chance explains its own labels well and
those of others badly. Where the judges disagree and explain the labels equally well, the interval
contains both answers.

    for every judge, kappa and prior of T:
        T, pi, s   <- EM on all labels; s_i = 1 - r_i(y_i)               fit_models
        l          <- log-likelihood of each fifth, T from the others
    share        mean over models of mean_i s_i, weights ~ exp(l / WIDEN)  estimate_wrong
    interval     quantiles over models, by the same weights; up to the share of labels
                 that the judges contradict

All models assume that the labels of easy and of hard images are wrong equally often. People err on
hard images, where a judge is unsure and blames the image: such errors are not counted. But a label
that the judges agree with is hardly ever wrong, so the interval ends where they contradict.

Constants were chosen by a study on validation images (docs/evidence.md). Symbols as in evidence.py:
n samples, C classes, M models; `given` (n,) are the labels y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedgsca.evidence import (
    MIN_USEFUL,
    POWERS,
    Judgement,
    SiteEvidence,
    estimate_transition,
    explain_opinions,
    suspicion,
)
from fedgsca.support.checked_labels import NO_ORIGINAL, CheckedLabels, mark_checked

# of the grid: pseudo-samples behind each row of T
COUNT_PRIORS = (5.0, 40.0, 320.0)
# log-odds of a prior of T against the next weaker one before any label is seen: simpler ones first
SIMPLICITY = 1.0
# parts of the labels that take turns in being explained
NUM_PARTS = 5
# likelihoods are raised to 1 / WIDEN, because no model of the grid is the truth
WIDEN = 4.0
# share of the models' weight outside the interval, on each side
TAIL = 0.05
# 90 % of a normal distribution lies within
Z = 1.645
# share of labels that evidence may doubt although they are correct
SLACK = 0.01
# an interval that is wider says that the share is unknown
MAX_WIDTH = 0.25
# models are weighed by at most so many labels: more cost time and change nothing
MAX_WEIGHED = 4000
# a model that is sure of a label is wrong about it at least so often
MIN_CHANCE = 0.02
# models with a smaller weight, relative to the best one, do not matter
MIN_WEIGHT = 1e-3


@dataclass(frozen=True)
class WrongShare:
    """The share of wrong labels with an interval that holds it about nine times in ten."""

    share: float
    low: float
    high: float
    # False: the evidence explains too little, or too many shares are plausible
    can_tell: bool


@dataclass(frozen=True)
class CountModels:
    """Models of one site's labels."""

    # (M, n): under each model, the probability that a label is wrong
    suspicions: np.ndarray
    # (M,): log-likelihood of labels that T has not seen, and the log-odds of the model
    log_weights: np.ndarray
    # what the better judge explains of labels that it has not seen; 0 or less: nothing
    share_explained: float
    # (n,) bool: labels that the judges together contradict
    contradictions: np.ndarray
    # (n,) bool: labels that a person has checked, which are right; None: none of them
    certain: np.ndarray | None = None

    def weights(self) -> np.ndarray:
        """(M,): sum 1."""
        exponentials = np.exp((self.log_weights - self.log_weights.max()) / WIDEN)
        return np.asarray(exponentials / exponentials.sum())


def fit_models(
    evidence: SiteEvidence, given: np.ndarray, checked: CheckedLabels | None = None
) -> CountModels:
    """Fit the grid to the labels (n,) of one site, and weigh its models.

    The models are about the labels as they were before anybody `checked` them. What a check has
    shown is one more observation by which they are weighed, so a review makes the count surer.
    """
    n = len(given)
    certain = None if checked is None else checked.mask
    current, review = given, checked
    if checked is not None:
        has_original = checked.original != NO_ORIGINAL
        given = np.where(has_original, checked.original, given)
        checked = mark_checked(checked.mask & ~has_original)
    if len(np.unique(given)) < 2:
        # nothing to explain
        return CountModels(np.zeros((1, n)), np.zeros(1), 0.0, np.zeros(n, bool), certain)
    rows = np.arange(0, n, math.ceil(n / MAX_WEIGHED))
    part = None if checked is None else checked.part(rows)
    judgements = list(evidence.judgements.values())
    # (judges, powers, priors); the strongest prior of T is the simplest model
    likelihoods = np.stack([explain_grid(judgement, given, rows, part) for judgement in judgements])
    simplicity = SIMPLICITY * np.arange(len(COUNT_PRIORS))
    log_weights = likelihoods * n / len(rows) + simplicity
    limit = log_weights.max() + WIDEN * math.log(MIN_WEIGHT)
    suspicions = []
    for judge, power, prior in np.argwhere(log_weights >= limit):
        opinion, reference = judgements[judge].opinion(POWERS[power])
        fit = estimate_transition(
            opinion, given, reference, checked=checked, row_prior=COUNT_PRIORS[prior]
        )
        suspicions.append(suspicion(fit.posterior, given))
    weights = log_weights[log_weights >= limit]
    doubts = np.stack(suspicions)
    if review is not None:
        weights = weights + _explain_review(doubts, current, review)
    contradictions = evidence.opinion().argmax(axis=1) != given
    return CountModels(doubts, weights, evidence.share_explained, contradictions, certain)


def _explain_review(doubts: np.ndarray, given: np.ndarray, review: CheckedLabels) -> np.ndarray:
    """(M,): log-likelihood of what a review has shown, by the models' doubts (M, n)."""
    rows = np.flatnonzero(review.original != NO_ORIGINAL)
    was_wrong = review.original[rows] != given[rows]
    probability = np.where(was_wrong, doubts[:, rows], 1.0 - doubts[:, rows])
    return np.asarray(np.log(np.maximum(probability, MIN_CHANCE)).sum(axis=1))


def explain_grid(
    judgement: Judgement, given: np.ndarray, rows: np.ndarray, checked: CheckedLabels | None
) -> np.ndarray:
    """(powers, priors): log-likelihoods of the labels in `rows`.

    `checked` are those in `rows` that a person has checked.
    """
    labels = given[rows]
    parts = assign_parts(labels)
    pairs = [judgement.opinion(power) for power in POWERS]
    opinions = np.stack([opinion[rows] for opinion, _ in pairs])
    references = np.stack([reference for _, reference in pairs])
    columns = []
    for row_prior in COUNT_PRIORS:
        column, _ = explain_opinions(
            opinions, labels, parts, references, checked=checked, row_prior=row_prior
        )
        columns.append(column)
    return np.array(columns).T


def assign_parts(given: np.ndarray) -> np.ndarray:
    """(n,) int64: the part of each label; every part has its share of every given class."""
    order = np.argsort(given, kind="stable")
    parts = np.empty(len(given), dtype=np.int64)
    parts[order] = np.arange(len(given)) % NUM_PARTS
    return parts


def estimate_wrong(models: CountModels, mask: np.ndarray | None = None) -> WrongShare:
    """The share of wrong labels among those in `mask` (n,) bool, such as a class; default: all.

    Labels that a person has checked count as right.
    """
    part = _estimate_part(models, mask)
    can_tell = models.share_explained >= MIN_USEFUL and part.high - part.low <= MAX_WIDTH
    if models.certain is not None and models.certain.all():
        can_tell = True
    return replace(part, can_tell=can_tell)


def _estimate_part(models: CountModels, mask: np.ndarray | None) -> WrongShare:
    """Share and interval of the labels in `mask` (n,) bool; None: of all."""
    if mask is None:
        mask = np.ones(models.suspicions.shape[1], bool)
    doubtful = mask if models.certain is None else mask & ~models.certain
    estimate = _estimate(models.suspicions[:, doubtful], models.contradictions[doubtful], models)
    factor = int(doubtful.sum()) / max(int(mask.sum()), 1)
    return replace(
        estimate,
        share=factor * estimate.share,
        low=factor * estimate.low,
        high=factor * estimate.high,
    )


def _estimate(
    suspicions: np.ndarray, contradictions: np.ndarray, models: CountModels
) -> WrongShare:
    """Share and interval of m labels, from the models' suspicions (M, m)."""
    n = suspicions.shape[1]
    if n == 0:
        return WrongShare(0.0, 0.0, 0.0, False)
    shares = suspicions.mean(axis=1)
    share = float(models.weights() @ shares)
    if models.share_explained < MIN_USEFUL:
        return WrongShare(share, 0.0, 1.0, False)
    weights = models.weights()
    # of the number among these labels, if T is known
    variance = float(weights @ (suspicions * (1.0 - suspicions)).sum(axis=1)) / n**2
    order = np.argsort(shares, kind="stable")
    total = np.cumsum(weights[order])
    lowest = min(share, float(shares[order[np.searchsorted(total, TAIL)]]))
    last = min(int(np.searchsorted(total, 1.0 - TAIL)), len(order) - 1)
    highest = max(share, float(shares[order[last]]))
    low = max(0.0, lowest - _margin(lowest, variance, n))
    high = min(1.0, highest + _margin(highest, variance, n))
    return WrongShare(share, low, max(high, float(contradictions.mean())), True)


def _margin(share: float, variance: float, n: int) -> float:
    """How far chance reaches: T is estimated from n labels, and they are a sample, too."""
    return Z * math.sqrt(max(variance + share * (1.0 - share) / n, 0.0)) + SLACK
