"""LID, local intrinsic dimensionality, of a model's predictions.

FedCorr, section 3.2; estimator of Amsaleg et al., KDD 2015. A model that memorises wrong labels
spreads its softmax vectors over more directions, so the mean LID of a site's predictions is larger
where more of its labels are wrong. One number per site is all that the server needs to tell clean
sites from noisy ones.
"""

from __future__ import annotations

import math

import numpy as np

# duplicates have distance 0, whose logarithm is not finite
MIN_DISTANCE = 1e-12
# mean logarithm of distances that are equal up to rounding: no dimension can be read from them
SMALLEST_LOG = 1e-6
# distances are computed for this many samples at a time: memory stays at 512 x n
_CHUNK = 512


def lid_from_distances(distances: np.ndarray) -> np.ndarray:
    """(n,): -[mean_j log(r_j / r_m)]^-1 from the ascending distances (n, m) to the m nearest.

    NaN where all distances are equal up to rounding: it would be a LID of 1e6 and more.
    """
    r = np.maximum(distances, MIN_DISTANCE)
    mean_log = np.log(r / r[:, -1:]).mean(axis=1)  # <= 0
    with np.errstate(divide="ignore"):
        return np.where(mean_log < -SMALLEST_LOG, -1.0 / mean_log, np.nan)


def nearest_distances(points: np.ndarray, neighbours: int) -> np.ndarray:
    """(n, m): ascending distances to the m = min(neighbours, n - 1) nearest other points.

    One matrix product finds the neighbours. |a|^2 + |b|^2 - 2ab has no digits left for close
    points, so the m distances that count are then measured directly.
    """
    x = np.asarray(points, dtype=np.float64)
    n = len(x)
    m = min(neighbours, n - 1)
    if m < 1:
        return np.empty((n, 0))
    squares = np.einsum("ij,ij->i", x, x)
    chunks = []
    for start in range(0, n, _CHUNK):
        block = x[start : start + _CHUNK]
        # |b|^2 - 2ab: |a|^2 does not change the order within a row
        ranking = squares - 2.0 * (block @ x.T)
        # a sample is not its own neighbour
        ranking[np.arange(len(block)), np.arange(start, start + len(block))] = np.inf
        nearest = np.argpartition(ranking, m - 1, axis=1)[:, :m]
        distances = np.linalg.norm(x[nearest] - block[:, None, :], axis=2)
        chunks.append(np.sort(distances, axis=1))
    return np.concatenate(chunks)


def mean_lid(probs: np.ndarray, neighbours: int = 20) -> float:
    """A site's mean LID over its softmax vectors (n, C); NaN for too few different samples."""
    distances = nearest_distances(probs, neighbours)
    if distances.shape[1] < 2:  # one distance is always equal to the largest
        return math.nan
    lids = lid_from_distances(distances)
    return float(np.nanmean(lids)) if np.isfinite(lids).any() else math.nan
