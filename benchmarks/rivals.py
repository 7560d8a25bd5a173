"""Other ways to rank the labels of one hospital, each on the same frozen features.

    name          what makes a label suspicious                                      higher is worse
    cleanlab      a logistic regression that has not seen the image gives it a low probability
    aled          a Gaussian of another class explains the image better, seen from the line between
                  the two class means and a random direction (label error detection, `statlab`)
    simifeat      few of the ten most similar images, and of the image itself, have the label
    aum           its margin is small on average while a linear head trains on all labels
                  (Pleiss et al., NeurIPS 2020)
    selfclean     the nearest image of another class is nearer than the nearest of the same class
                  (Groeger et al., NeurIPS 2024)
    knn           few of the ten most similar other images have the label
    repeated-cv   ten cross-validated ridge regressions disagree with it (the idea of ReCoV)

Every function takes features (n, D), given labels (n,), the number of classes C and a seed, and
returns a suspicion (n,). They are rankings, not counts; none of them sees a true label. Facts are
from the papers; `aled` is for more than two classes here, by pairs of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fedgsca.evidence import STEP, layer_normalise, softmax
from fedgsca.labels.second_opinion import (
    nearest_rows,
    out_of_sample_probs,
    unit_vectors,
)
from fedgsca.rng import stream

# features (n, D), given (n,), classes, seed -> suspicion (n,)
Ranking = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]

NEIGHBOURS = 10
# of aum: passes over the labels, and rows of a step
AUM_EPOCHS = 20
AUM_BATCH = 32
# of aled: random directions, as in `statlab`
DIRECTIONS = 10
# of repeated-cv
REPETITIONS = 10
FOLDS = 5
_TINY = 1e-12


def margins(scores: np.ndarray, given: np.ndarray) -> np.ndarray:
    """(n,): the score of the given label minus the largest other one, of scores (n, C)."""
    rows = np.arange(len(given))
    others = scores.copy()
    others[rows, given] = -np.inf
    return np.asarray(scores[rows, given] - others.max(axis=1))


# ---- neighbours ----


def neighbour_votes(features: np.ndarray, given: np.ndarray, num_classes: int) -> np.ndarray:
    """(n, C): labels of the ten most similar other images (cosine)."""
    nearest = nearest_rows(unit_vectors(features), NEIGHBOURS)
    votes = np.zeros((len(given), num_classes))
    np.add.at(votes, (np.arange(len(given))[:, None], given[nearest]), 1.0)
    return votes


def rank_by_knn(features: np.ndarray, given: np.ndarray, num_classes: int, seed: int) -> np.ndarray:
    """(n,): the share of the neighbours with another label."""
    votes = neighbour_votes(features, given, num_classes)
    return np.asarray(1.0 - votes[np.arange(len(given)), given] / votes.sum(axis=1))


def rank_by_simifeat(
    features: np.ndarray, given: np.ndarray, num_classes: int, seed: int
) -> np.ndarray:
    """(n,): 1 - cosine of the one-hot label and the votes of the neighbours and the image itself.

    The ranking of Zhu et al. (ICML 2022), without their threshold.
    """
    votes = neighbour_votes(features, given, num_classes)
    rows = np.arange(len(given))
    votes[rows, given] += 1.0
    return np.asarray(1.0 - votes[rows, given] / np.linalg.norm(votes, axis=1))


def rank_by_selfclean(
    features: np.ndarray, given: np.ndarray, num_classes: int, seed: int
) -> np.ndarray:
    """(n,): s^2 / (s^2 + o^2) of the cosine distances to the nearest same and other label."""
    unit = unit_vectors(features)
    distances = 1.0 - unit @ unit.T
    np.fill_diagonal(distances, np.inf)
    is_same = given[:, None] == given
    # 2 is the largest cosine distance: a class with one image is as far as can be
    same = np.minimum(np.where(is_same, distances, np.inf).min(axis=1), 2.0) ** 2
    other = np.minimum(np.where(is_same, np.inf, distances).min(axis=1), 2.0) ** 2
    return np.asarray(same / np.maximum(same + other, _TINY))


# ---- heads ----


def label_quality(
    probs: np.ndarray, given: np.ndarray, method: str = "self_confidence"
) -> np.ndarray:
    """(n,) cleanlab's label quality scores, lower is worse."""
    from cleanlab.rank import get_label_quality_scores

    return np.asarray(get_label_quality_scores(given, probs, method=method))


def rank_by_cleanlab(
    features: np.ndarray, given: np.ndarray, num_classes: int, seed: int
) -> np.ndarray:
    """(n,): cleanlab's self-confidence of a cross-validated logistic regression, reversed."""
    probs = out_of_sample_probs(layer_normalise(features), given, num_classes)
    return 1.0 - label_quality(probs, given)


def rank_by_aum(features: np.ndarray, given: np.ndarray, num_classes: int, seed: int) -> np.ndarray:
    """(n,): minus the mean margin after each pass of SGD over all labels, with the heads' step."""
    x = layer_normalise(np.asarray(features, dtype=np.float32)).astype(np.float32)
    n, width = x.shape
    weight = np.zeros((width, num_classes), np.float32)
    bias = np.zeros(num_classes, np.float32)
    onehot = np.eye(num_classes, dtype=np.float32)[given]
    total = np.zeros(n)
    for epoch in range(AUM_EPOCHS):
        order = stream(seed, "aum", epoch).permutation(n)
        for start in range(0, n, AUM_BATCH):
            rows = order[start : start + AUM_BATCH]
            gap = softmax(x[rows] @ weight + bias) - onehot[rows]
            gap *= np.float32(STEP / width / len(rows))
            weight -= x[rows].T @ gap
            bias -= gap.sum(axis=0)
        total += margins(x @ weight + bias, given)
    return -total / AUM_EPOCHS


def rank_by_repeated_cv(
    features: np.ndarray, given: np.ndarray, num_classes: int, seed: int
) -> np.ndarray:
    """(n,): minus the mean margin of ridge regressions on other folds, over ten divisions.

    The strength of the ridge is the mean squared length of a vector, so it has no unit.
    """
    x = layer_normalise(np.asarray(features, dtype=np.float64))
    products = x @ x.T
    onehot = np.eye(num_classes)[given]
    n = len(given)
    ridge = products.trace() / n
    total = np.zeros(n)
    for repetition in range(REPETITIONS):
        folds = stream(seed, "repeated-cv", repetition).permutation(n) % FOLDS
        scores = np.zeros((n, num_classes))
        for fold in range(FOLDS):
            train, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            mean = onehot[train].mean(axis=0)
            system = products[np.ix_(train, train)] + ridge * np.eye(len(train))
            weights = np.linalg.solve(system, onehot[train] - mean)
            scores[test] = products[np.ix_(test, train)] @ weights + mean
        total += margins(scores, given)
    return -total / REPETITIONS


# ---- Gaussians ----


def robust_gaussian(points: np.ndarray, steps: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Mean (d,) and covariance (d, d) of points (m, d) without those far from the densest half.

    Concentration steps from the points nearest to the median (Rousseeuw's fast MCD, one start),
    scaled so that the median squared distance is that of a Gaussian; then once over the points
    within its 97.5 % ellipse.
    """
    m, d = points.shape
    spread = np.maximum(points.var(axis=0), _TINY)
    ridge = np.diag(1e-6 * spread)
    distances = (np.square(points - np.median(points, axis=0)) / spread).sum(axis=1)
    for _ in range(steps):
        half = np.argsort(distances, kind="stable")[: min(m, (m + d + 1) // 2)]
        mean, covariance = _fit_gaussian(points[half], ridge)
        distances = _squared_distances(points, mean, covariance)
    distances *= _chi_squared(0.0, d) / max(float(np.median(distances)), _TINY)
    return _fit_gaussian(points[distances <= _chi_squared(1.96, d)], ridge)


def _fit_gaussian(points: np.ndarray, ridge: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = points.mean(axis=0)
    return mean, (points - mean).T @ (points - mean) / len(points) + ridge


def _chi_squared(z: float, d: int) -> float:
    """The quantile of chi-squared where a normal variable has z (Wilson and Hilferty)."""
    return float(d * (1.0 - 2.0 / (9.0 * d) + z * np.sqrt(2.0 / (9.0 * d))) ** 3)


def _squared_distances(points: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """(n,): squared Mahalanobis distances."""
    gaps = points - mean
    return np.asarray((np.linalg.solve(covariance, gaps.T).T * gaps).sum(axis=1))


def log_density(points: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """(n,): log of the Gaussian density at points (n, d)."""
    squares = _squared_distances(points, mean, covariance)
    _, log_determinant = np.linalg.slogdet(covariance)
    return np.asarray(-0.5 * (squares + log_determinant + len(mean) * np.log(2.0 * np.pi)))


def other_class_share(
    features: np.ndarray, is_first: np.ndarray, directions: np.ndarray
) -> np.ndarray:
    """(n,): P(the class that is not given | image) of two classes; is_first (n,) bool.

    directions (A, D, d - 1) random ones; each joins the line between the two class means, and the
    densities are averaged over them, as in `statlab`.
    """
    axis = features[is_first].mean(axis=0) - features[~is_first].mean(axis=0)
    axis /= max(float(np.linalg.norm(axis)), _TINY)
    shares = np.array([is_first.mean(), 1.0 - is_first.mean()])
    logs = np.empty((len(directions), 2, len(features)))
    for index, direction in enumerate(directions):
        points = features @ np.column_stack([axis, direction])
        for side, mask in enumerate((is_first, ~is_first)):
            logs[index, side] = log_density(points, *robust_gaussian(points[mask]))
    top = logs.max(axis=(0, 1))
    densities = np.exp(logs - top).mean(axis=0) * shares[:, None]  # (2, n)
    other = np.where(is_first, densities[1], densities[0])
    return np.asarray(other / densities.sum(axis=0))


def rank_by_aled(
    features: np.ndarray, given: np.ndarray, num_classes: int, seed: int
) -> np.ndarray:
    """(n,): the largest `other_class_share` over the pairs with the given class.

    The published code has two classes. Classes of fewer than five labels have no Gaussian.
    """
    x = layer_normalise(np.asarray(features, dtype=np.float64))
    draws = stream(seed, "aled").standard_normal((DIRECTIONS, x.shape[1], 1))
    sizes = np.bincount(given, minlength=num_classes)
    classes = np.flatnonzero(sizes >= FOLDS)
    suspicion = np.zeros(len(given))
    for position, first in enumerate(classes):
        for second in classes[position + 1 :]:
            rows = np.flatnonzero((given == first) | (given == second))
            share = other_class_share(x[rows], given[rows] == first, draws)
            suspicion[rows] = np.maximum(suspicion[rows], share)
    return suspicion


RIVALS: Mapping[str, Ranking] = {
    "cleanlab": rank_by_cleanlab,
    "aled": rank_by_aled,
    "simifeat": rank_by_simifeat,
    "aum": rank_by_aum,
    "selfclean": rank_by_selfclean,
    "knn": rank_by_knn,
    "repeated-cv": rank_by_repeated_cv,
}
