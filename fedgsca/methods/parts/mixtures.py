"""A mixture of two Gaussians over a few sites, as published code fits it with scikit-learn.

FedCorr fits one to the sites' LIDs (one number each), FedNoRo nine of them to the sites' class
losses (C numbers each) and lets them vote. With four sites both are fragile, which is why our
defaults divide sites by least squares (clustering.py); these are for the authors' own choice.

The steps are those of scikit-learn's `GaussianMixture` with its defaults: hard groups of 2-means as
the start, full covariances with 1e-6 added to their diagonal, at most 100 steps, until the mean
log-likelihood changes by less than 1e-3. Only the random starts of its 2-means differ.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fedgsca.methods.parts.clustering import nearer_second, two_means
from fedgsca.rng import stream

RIDGE = 1e-6
MAX_STEPS = 100
TOLERANCE = 1e-3
# as published: random_state 0 to 8
VOTES = 9


@dataclass(frozen=True)
class Mixture:
    """Two Gaussians over vectors of D numbers; the component with the smaller means is first."""

    # (2, D)
    means: np.ndarray
    # (2, D, D)
    covariances: np.ndarray
    # (2,)
    weights: np.ndarray

    def log_joint(self, points: np.ndarray) -> np.ndarray:
        """(K, 2): log P(z = g) + log N(point; mean_g, covariance_g) of points (K, D)."""
        columns = []
        for mean, covariance, weight in zip(
            self.means, self.covariances, self.weights, strict=True
        ):
            factor = np.linalg.cholesky(covariance)
            white = np.linalg.solve(factor, (points - mean).T)  # (D, K)
            log_det = 2.0 * np.log(np.diag(factor)).sum()
            constant = len(mean) * np.log(2.0 * np.pi) + log_det
            columns.append(np.log(weight) - 0.5 * (constant + np.square(white).sum(axis=0)))
        return np.stack(columns, axis=1)

    def in_second(self, points: np.ndarray) -> np.ndarray:
        """(K,) bool: is a point (K, D) more likely of the second component?"""
        joint = self.log_joint(points)
        return np.asarray(joint[:, 1] > joint[:, 0])


def fit_mixture(points: np.ndarray, in_second: np.ndarray) -> Mixture:
    """EM on points (K, D), from the hard groups `in_second`, (K,) bool."""
    responsibilities = np.stack([~in_second, in_second], axis=1).astype(np.float64)
    previous = -np.inf
    mixture = _maximise(points, responsibilities)
    for _ in range(MAX_STEPS):
        joint = mixture.log_joint(points)
        evidence = np.logaddexp(joint[:, 0], joint[:, 1])
        mixture = _maximise(points, np.exp(joint - evidence[:, None]))
        likelihood = float(evidence.mean())
        if abs(likelihood - previous) < TOLERANCE:
            break
        previous = likelihood
    order = np.argsort(mixture.means.sum(axis=1), kind="stable")
    return Mixture(mixture.means[order], mixture.covariances[order], mixture.weights[order])


def _maximise(points: np.ndarray, responsibilities: np.ndarray) -> Mixture:
    """The M-step: responsibilities (K, 2) of points (K, D)."""
    mass = responsibilities.sum(axis=0) + 10 * np.finfo(np.float64).eps
    means = responsibilities.T @ points / mass[:, None]
    covariances = []
    for g in range(2):
        difference = points - means[g]
        spread = (responsibilities[:, g, None] * difference).T @ difference / mass[g]
        covariances.append(spread + RIDGE * np.eye(points.shape[1]))
    return Mixture(means, np.stack(covariances), mass / mass.sum())


def fit_two_groups(points: np.ndarray) -> Mixture | None:
    """The mixture from the best 2-means division of points (K, D); None if they are all equal."""
    centres = two_means(points)
    if (centres[0] == centres[1]).all():
        return None
    return fit_mixture(points, nearer_second(points, centres))


def vote_of_mixtures(points: np.ndarray) -> Mixture | None:
    """The mixture of the most frequent division among nine random starts; None if all are equal.

    points (K, D). The first of equally frequent divisions wins, as published.
    """
    if len(points) < 2 or (points == points[0]).all():
        return None
    mixtures = []
    divisions = []
    for number in range(VOTES):
        rng = stream(number, "mixture", "start")
        mixture = fit_mixture(points, _random_two_means(points, rng))
        mixtures.append(mixture)
        divisions.append(tuple(mixture.in_second(points).tolist()))
    counts = Counter(divisions)
    best = max(counts.values())
    winner = next(i for i, division in enumerate(divisions) if counts[division] == best)
    return mixtures[winner]


def _random_two_means(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(K,) bool: 2-means from a random point and a second one, drawn by squared distance from it.

    At least one point is in each group.
    """
    first = int(rng.integers(len(points)))
    squares = np.square(points - points[first]).sum(axis=1)
    if squares.sum() == 0:
        return np.asarray(np.arange(len(points)) != first)
    second = int(rng.choice(len(points), p=squares / squares.sum()))
    centres = points[[first, second]]
    members = nearer_second(points, centres)
    for _ in range(MAX_STEPS):
        if members.all() or not members.any():
            break
        centres = np.stack([points[~members].mean(axis=0), points[members].mean(axis=0)])
        following = nearer_second(points, centres)
        if (following == members).all():
            break
        members = following
    if members.all() or not members.any():
        members = np.arange(len(points)) == second
    return np.asarray(members)
