"""How many labels of a site are wrong: a share with an interval, or "cannot tell".

One model of the labels would answer with one number, and the number depends on two choices: how
far the opinions are sharpened (kappa), and how strongly the transition matrix T is held to
"symmetric". So a grid of models answers. Each is weighed by how well it explains labels that it has
not seen: T is fitted to four fifths of the labels and explains the last fifth. A model that fits T
to chance explains its own labels well and those of others badly.

    for every kappa and every prior of T:
        T, pi, s   <- EM on all labels; s_i = 1 - r_i(y_i)               fit_models
        l          <- log-likelihood of each fifth, T from the others
    share        mean over models of mean_i s_i, weights ~ exp(l)         estimate_wrong
    interval     quantiles over models, weights ~ exp(l / WIDEN)

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
    estimate_transition,
    explain_parts,
    normalise_mix,
    sharpen,
    suspicion,
)
from fedgsca.support.checked_labels import CheckedLabels

# the grid: kappa, and pseudo-samples behind each row of T
COUNT_POWERS = (0.85, 1.0, 1.2, 1.5, 2.0)
COUNT_PRIORS = (5.0, 20.0, 80.0, 320.0)
# log-odds of a prior of T against the next weaker one before any label is seen: simpler ones first
SIMPLICITY = 1.0
# parts of the labels that take turns in being explained
NUM_PARTS = 5
# likelihoods are raised to 1 / WIDEN for the interval, because no model of the grid is the truth
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
    # what the best model explains of labels that it has not seen; 0 or less: nothing
    share_explained: float
    # (n,) bool: labels that a person has checked, which are right; None: none of them
    certain: np.ndarray | None = None

    def weights(self, widen: float = 1.0) -> np.ndarray:
        """(M,): sum 1."""
        exponentials = np.exp((self.log_weights - self.log_weights.max()) / widen)
        return np.asarray(exponentials / exponentials.sum())


def fit_models(
    judgement: Judgement, given: np.ndarray, checked: CheckedLabels | None = None
) -> CountModels:
    """Fit the grid to the labels (n,) of one site, and weigh its models."""
    n = len(given)
    certain = None if checked is None else checked.mask
    if len(np.unique(given)) < 2:
        # nothing to explain
        return CountModels(np.zeros((1, n)), np.zeros(1), 0.0, certain)
    rows = np.arange(0, n, math.ceil(n / MAX_WEIGHED))
    part = None if checked is None else checked.part(rows)
    likelihoods, baseline = _explain_grid(judgement, given, rows, part)
    # the strongest prior of T is the simplest model
    simplicity = SIMPLICITY * np.arange(len(COUNT_PRIORS))
    log_weights = (likelihoods * n / len(rows) + simplicity).ravel()
    likely = np.flatnonzero(log_weights >= log_weights.max() + WIDEN * math.log(MIN_WEIGHT))
    suspicions = []
    for index in likely:
        power_index, prior_index = divmod(int(index), len(COUNT_PRIORS))
        opinion, reference = sharpen_to(judgement, COUNT_POWERS[power_index])
        row_prior = COUNT_PRIORS[prior_index]
        fit = estimate_transition(opinion, given, reference, checked=checked, row_prior=row_prior)
        suspicions.append(suspicion(fit.posterior, given))
    share_explained = 0.0
    if baseline < 0.0:
        share_explained = 1.0 - float(likelihoods.max()) / baseline
    return CountModels(np.stack(suspicions), log_weights[likely], share_explained, certain)


def _explain_grid(
    judgement: Judgement, given: np.ndarray, rows: np.ndarray, checked: CheckedLabels | None
) -> tuple[np.ndarray, float]:
    """Log-likelihoods of the labels in `rows` by power and prior, and by the label shares alone.

    `checked` are those in `rows` that a person has checked.
    """
    labels = given[rows]
    parts = assign_parts(labels)
    likelihoods = np.empty((len(COUNT_POWERS), len(COUNT_PRIORS)))
    baseline = 0.0
    for i, power in enumerate(COUNT_POWERS):
        opinion, reference = sharpen_to(replace(judgement, probs=judgement.probs[rows]), power)
        for j, row_prior in enumerate(COUNT_PRIORS):
            likelihoods[i, j], baseline = explain_parts(
                opinion, labels, parts, reference, checked=checked, row_prior=row_prior
            )
    return likelihoods, baseline


def assign_parts(given: np.ndarray) -> np.ndarray:
    """(n,) int64: the part of each label; every part has its share of every given class."""
    order = np.argsort(given, kind="stable")
    parts = np.empty(len(given), dtype=np.int64)
    parts[order] = np.arange(len(given)) % NUM_PARTS
    return parts


def sharpen_to(judgement: Judgement, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Opinion (n, C) and the site's mean opinion (C,) for a power that need not be of POWERS.

    The mix is interpolated between those of the neighbouring powers, on a log scale.
    """
    upper = min(max(int(np.searchsorted(POWERS, power)), 1), len(POWERS) - 1)
    low, high = POWERS[upper - 1], POWERS[upper]
    place = min(max((power - low) / (high - low), 0.0), 1.0)
    logs = np.log(judgement.references[[upper - 1, upper]])
    reference = normalise_mix(np.exp((1.0 - place) * logs[0] + place * logs[1]))
    return sharpen(judgement.probs, power), reference


def estimate_wrong(models: CountModels, mask: np.ndarray | None = None) -> WrongShare:
    """The share of wrong labels among those in `mask` (n,) bool; default: all.

    Whether one can tell is decided for the site as a whole. Labels that a person has checked count
    as right.
    """
    site = _estimate_part(models, None)
    can_tell = models.share_explained >= MIN_USEFUL and site.high - site.low <= MAX_WIDTH
    if models.certain is not None and models.certain.all():
        can_tell = True
    part = site if mask is None else _estimate_part(models, mask)
    return replace(part, can_tell=can_tell)


def _estimate_part(models: CountModels, mask: np.ndarray | None) -> WrongShare:
    """Share and interval of the labels in `mask` (n,) bool; None: of all."""
    if models.certain is None:
        suspicions = models.suspicions
        return _estimate(suspicions if mask is None else suspicions[:, mask], models)
    if mask is None:
        mask = np.ones(len(models.certain), bool)
    doubtful = mask & ~models.certain
    estimate = _estimate(models.suspicions[:, doubtful], models)
    factor = int(doubtful.sum()) / max(int(mask.sum()), 1)
    return replace(
        estimate,
        share=factor * estimate.share,
        low=factor * estimate.low,
        high=factor * estimate.high,
    )


def _estimate(suspicions: np.ndarray, models: CountModels) -> WrongShare:
    """Share and interval from the models' suspicions (M, m) of m labels."""
    n = suspicions.shape[1]
    if n == 0:
        return WrongShare(0.0, 0.0, 0.0, False)
    shares = suspicions.mean(axis=1)
    share = float(models.weights() @ shares)
    if models.share_explained < MIN_USEFUL:
        return WrongShare(share, 0.0, 1.0, False)
    weights = models.weights(WIDEN)
    # of the number among these labels, if T is known
    variance = float(weights @ (suspicions * (1.0 - suspicions)).sum(axis=1)) / n**2
    order = np.argsort(shares, kind="stable")
    total = np.cumsum(weights[order])
    lowest = min(share, float(shares[order[np.searchsorted(total, TAIL)]]))
    last = min(int(np.searchsorted(total, 1.0 - TAIL)), len(order) - 1)
    highest = max(share, float(shares[order[last]]))
    low = max(0.0, lowest - _margin(lowest, variance, n))
    high = min(1.0, highest + _margin(highest, variance, n))
    return WrongShare(share, low, high, True)


def _margin(share: float, variance: float, n: int) -> float:
    """How far chance reaches: T is estimated from n labels, and they are a sample, too."""
    return Z * math.sqrt(max(variance + share * (1.0 - share) / n, 0.0)) + SLACK
