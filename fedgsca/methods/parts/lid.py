"""LID, local intrinsic dimensionality, of a model's predictions (FedCorr, section 3.2; estimator of Amsaleg et al., KDD 2015).

A model that memorises wrong labels spreads its softmax vectors over more directions, so the mean LID of a site's predictions is
larger where more of its labels are wrong. One number per site is all that the server needs to part clean from noisy sites.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

NEAREST = 1e-12  # duplicates have distance 0, whose logarithm is not a number
_ROWS = 512  # distances are found for this many samples at a time: memory stays at 512 x n


def lid_from_distances(distances: np.ndarray) -> np.ndarray:
    """(n,): -[mean_j log(r_j / r_m)]^-1 from the ascending distances (n, m) to the m nearest; NaN where all are equal."""
    r = np.maximum(distances, NEAREST)
    mean_log = np.log(r / r[:, -1:]).mean(axis=1)  # <= 0
    with np.errstate(divide="ignore"):
        return np.where(mean_log < -1e-12, -1.0 / mean_log, np.nan)


def nearest_distances(points: np.ndarray, neighbours: int) -> np.ndarray:
    """(n, m) ascending distances to the m = min(neighbours, n - 1) nearest other points.

    One matrix product finds who is near; |a|^2 + |b|^2 - 2ab has no digits left for close points, so the m distances that count
    are then measured directly.
    """
    x = np.asarray(points, dtype=np.float64)
    n, m = len(x), min(neighbours, len(x) - 1)
    if m < 1:
        return np.empty((n, 0))
    squares, found = np.einsum("ij,ij->i", x, x), []
    for start in range(0, n, _ROWS):
        block = x[start : start + _ROWS]
        ranking = squares - 2.0 * (
            block @ x.T
        )  # |b|^2 - 2ab: |a|^2 does not change the order within a row
        ranking[np.arange(len(block)), np.arange(start, start + len(block))] = (
            np.inf
        )  # a sample is not its own neighbour
        near = np.argpartition(ranking, m - 1, axis=1)[:, :m]
        found.append(np.sort(np.linalg.norm(x[near] - block[:, None, :], axis=2), axis=1))
    return np.concatenate(found)


def mean_lid(probs: np.ndarray, neighbours: int = 20) -> float:
    """A site's mean LID over its softmax vectors (n, C); NaN where there are too few different samples to tell."""
    distances = nearest_distances(probs, neighbours)
    if distances.shape[1] < 2:  # one distance is always equal to the largest
        return math.nan
    lids = lid_from_distances(distances)
    return float(np.nanmean(lids)) if np.isfinite(lids).any() else math.nan


@dataclass(frozen=True)
class Groups:
    """Two heaps of numbers. A value above the boundary belongs to the upper one."""

    boundary: float
    low: float  # mean of each
    high: float


def two_groups(values: np.ndarray, *, guard: float = 0.0) -> Groups | None:
    """The best cut of a handful of numbers in two: least squares over every cut of the sorted values, hence deterministic.

    It takes the place of a two-component mixture, which on K = 4 numbers depends on its random start and whose variances rest
    on one or two values. None where there are no two groups to part: fewer than two finite values, all equal, or a range below
    `guard` times their mean (a cut always exists, but with equally noisy sites it would be arbitrary).
    """
    x = np.sort(np.asarray(values, dtype=np.float64)[np.isfinite(values)])
    if len(x) < 2 or x[-1] - x[0] <= guard * abs(x.mean()) or x[-1] == x[0]:
        return None
    scatter = [
        ((x[:i] - x[:i].mean()) ** 2).sum() + ((x[i:] - x[i:].mean()) ** 2).sum()
        for i in range(1, len(x))
    ]
    cut = 1 + int(np.argmin(scatter))
    return Groups(float(0.5 * (x[cut - 1] + x[cut])), float(x[:cut].mean()), float(x[cut:].mean()))
