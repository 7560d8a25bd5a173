"""Two groups of sites, from one number or one vector per site. Deterministic: no random starts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fedgsca.rng import stream

MAX_STEPS = 100


def nearer_second(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(...,) bool: is a point (..., C) strictly nearer to the second of two centres (2, C)?"""
    squares = np.square(points[..., None, :] - centres).sum(axis=-1)  # (..., 2)
    return np.asarray(squares[..., 1] < squares[..., 0])


def two_means(points: np.ndarray, starts: int = 64) -> np.ndarray:
    """(2, C): centres of the best of many runs of 2-means on points (K, C).

    Both centres are the same if the points cannot be divided. Every start is a point and the point
    farthest from it. Trying them all replaces random starts and votes: the server needs no
    randomness, and the same sites give the same groups on every machine.
    """
    best = np.repeat(points.mean(axis=0, keepdims=True), 2, axis=0)
    lowest = np.inf
    indices = np.linspace(0, len(points) - 1, min(starts, len(points))).round().astype(int)
    for first in np.unique(indices):
        farthest = int(np.square(points - points[first]).sum(axis=1).argmax())
        result = _iterate_means(points, points[[first, farthest]])
        if result is None:
            continue
        centres, in_second = result
        spread = float(np.square(points - centres[in_second.astype(int)]).sum())
        if spread < lowest:
            best = centres
            lowest = spread
    return best


def _iterate_means(points: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Centres (2, C) and membership (K,) bool of the second group; None if a group stays empty."""
    members = None
    for _ in range(MAX_STEPS):
        in_second = nearer_second(points, centres)
        if in_second.all() or not in_second.any():
            break
        if members is not None and (in_second == members).all():
            break
        members = in_second
        centres = np.stack([points[~in_second].mean(axis=0), points[in_second].mean(axis=0)])
    return None if members is None else (centres, members)


def best_cut(values: np.ndarray, *, guard: float = 0.0) -> float | None:
    """The number that divides a few numbers in two: least squares over every cut of them, sorted.

    It replaces a two-component mixture, which on K = 4 numbers depends on its random start and
    takes its variances from one or two values. None where there are no two groups: fewer than two
    finite values, all equal, or a range below `guard` times their mean (a cut always exists, but
    for equally noisy sites it would be arbitrary).
    """
    x = np.sort(np.asarray(values, dtype=np.float64)[np.isfinite(values)])
    if len(x) < 2 or x[-1] - x[0] <= guard * abs(x.mean()) or x[-1] == x[0]:
        return None
    scatter = [_scatter(x[:i]) + _scatter(x[i:]) for i in range(1, len(x))]
    cut = 1 + int(np.argmin(scatter))
    return float(0.5 * (x[cut - 1] + x[cut]))


def _scatter(x: np.ndarray) -> float:
    """Sum of squared deviations from the mean."""
    return float(((x - x.mean()) ** 2).sum())


# ---- mixtures of two Gaussians over a few sites, as published code fits them ----
# FedCorr fits one to the sites' LIDs (one number each), FedNoRo nine of them to the sites' class
# losses (C numbers each) and lets them vote. With four sites both are fragile, which is why our
# defaults divide sites by least squares; these are for the authors' own choice. The steps are those
# of scikit-learn's `GaussianMixture` with its defaults: hard groups of 2-means as the start, full
# covariances with 1e-6 added to their diagonal, at most 100 steps, until the mean log-likelihood
# changes by less than 1e-3. Only the random starts of its 2-means differ.


RIDGE = 1e-6
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
    result = _iterate_means(points, points[[first, second]])
    return np.asarray(np.arange(len(points)) == second) if result is None else result[1]
