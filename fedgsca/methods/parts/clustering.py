"""Two groups of sites, from one number or one vector per site. Deterministic: no random starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_MAX_STEPS = 100


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
    for _ in range(_MAX_STEPS):
        in_second = nearer_second(points, centres)
        if in_second.all() or not in_second.any():
            break
        if members is not None and (in_second == members).all():
            break
        members = in_second
        centres = np.stack([points[~in_second].mean(axis=0), points[in_second].mean(axis=0)])
    return None if members is None else (centres, members)


@dataclass(frozen=True)
class Groups:
    """Two groups of numbers. A value above the boundary belongs to the upper one."""

    boundary: float
    # the mean of each group
    low: float
    high: float


def two_groups(values: np.ndarray, *, guard: float = 0.0) -> Groups | None:
    """The best division of a few numbers in two: least squares over every cut of the sorted values.

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
    boundary = float(0.5 * (x[cut - 1] + x[cut]))
    return Groups(boundary, float(x[:cut].mean()), float(x[cut:].mean()))


def _scatter(x: np.ndarray) -> float:
    """Sum of squared deviations from the mean."""
    return float(((x - x.mean()) ** 2).sum())
