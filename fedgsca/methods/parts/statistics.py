"""Numbers that describe one site's samples: class shares and means, losses on other scales, LID.

LID, the local intrinsic dimensionality of predictions, is FedCorr's (section 3.2; estimator of
Amsaleg et al., KDD 2015). A model that memorises wrong labels spreads its softmax vectors over more
directions, so the mean LID of a site's predictions is larger where more of its labels are wrong.
"""

from __future__ import annotations

import math

import numpy as np


def log_prior(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """(C,): logarithms of the class shares at a site.

    A class without samples counts as one sample, because log 0 breaks every loss.
    """
    counts = np.bincount(labels, minlength=num_classes)
    return np.asarray(np.log(np.maximum(counts, 1) / max(len(labels), 1)))


def class_means(
    values: np.ndarray, labels: np.ndarray, num_classes: int, *, least: int = 1
) -> np.ndarray:
    """(C,): mean of the finite values (n,) of each given class; NaN for fewer than `least`."""
    finite = np.isfinite(values)
    sums = np.bincount(labels[finite], weights=values[finite], minlength=num_classes)
    counts = np.bincount(labels[finite], minlength=num_classes)
    return np.asarray(np.where(counts >= least, sums / np.maximum(counts, 1), np.nan))


# ---- losses on scales that two Gaussians fit better than cross-entropy with its long tail ----


def double_softmax_losses(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(n,): cross-entropy of the softmax of probabilities (n, C), log sum_c exp(p_c) - p_y.

    Published code of FedCorr and FedDiv computes it by giving probabilities to a function that
    expects logits. It is bounded and nearly 1 - p_y.
    """
    p_y = probs[np.arange(len(labels)), labels]
    return np.asarray(np.log(np.exp(probs).sum(axis=1)) - p_y)


def unit_range(losses: np.ndarray) -> np.ndarray:
    """(n,): losses moved and scaled to 0..1; equal losses become 0."""
    low, high = float(losses.min(initial=np.inf)), float(losses.max(initial=-np.inf))
    if not high > low:
        return np.zeros(len(losses))
    return np.asarray((losses - low) / (high - low))


# ---- LID ----


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
