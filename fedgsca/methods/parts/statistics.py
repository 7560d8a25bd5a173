"""Small parts that several methods share: schedules, statistics of a site, grouping of sites, distances.

The numpy half works on what crosses the wire or on what a site knows about itself; the torch half works inside a training step.
The proximal term is in train.py (it is part of the loop's vocabulary), mixup in mixup.py.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from fedgsca.wire import Arrays


def rounds_of(share: float, rounds: int) -> int:
    """A stage given as a share of all rounds, in rounds: at least one, so that no stage vanishes from a short run."""
    return max(1, round(share * rounds))


def rampup(t: float, begin: float, end: float) -> float:
    """exp(-5 (1 - clip((t - begin) / (end - begin), 0, 1))^2): from e^-5 = 0.0067 at `begin` to 1 at `end` and after."""
    done = float(np.clip((t - begin) / (end - begin), 0.0, 1.0)) if end > begin else float(t >= end)
    return float(np.exp(-5.0 * (1.0 - done) ** 2))


def log_prior(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """(C,) log of the class shares at a site; a class without samples counts as one sample, because log 0 breaks every loss."""
    counts = np.bincount(labels, minlength=num_classes)
    return np.asarray(np.log(np.maximum(counts, 1) / max(len(labels), 1)))


def class_means(
    values: np.ndarray, labels: np.ndarray, num_classes: int, *, least: int = 1
) -> np.ndarray:
    """(C,) mean of the finite values of each given class; NaN where a class has fewer than `least`."""
    fine = np.isfinite(values)
    sums = np.bincount(labels[fine], weights=values[fine], minlength=num_classes)
    counts = np.bincount(labels[fine], minlength=num_classes)
    return np.asarray(np.where(counts >= least, sums / np.maximum(counts, 1), np.nan))


def nearer_second(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(..., C) points and (2, C) centres -> (...,) bool: strictly nearer to the second centre; False on a tie."""
    squares = np.square(points[..., None, :] - centres).sum(axis=-1)  # (..., 2)
    return np.asarray(squares[..., 1] < squares[..., 0])


def two_means(points: np.ndarray, starts: int = 64) -> np.ndarray:
    """(K, C) points -> (2, C) centres of the best of many 2-means; both the same if the points cannot be divided.

    Every start is a point and the point farthest from it. Trying them all replaces random starts and votes: no dice on the
    server, and the same sites give the same groups on every machine.
    """
    best, lowest = np.repeat(points.mean(axis=0, keepdims=True), 2, axis=0), np.inf
    for first in np.unique(
        np.linspace(0, len(points) - 1, min(starts, len(points))).round().astype(int)
    ):
        farthest = int(np.square(points - points[first]).sum(axis=1).argmax())
        centres, members = points[[first, farthest]], None
        for _ in range(100):
            second = nearer_second(points, centres)
            if (
                second.all()
                or not second.any()
                or (members is not None and (second == members).all())
            ):
                break
            members = second
            centres = np.stack([points[~second].mean(axis=0), points[second].mean(axis=0)])
        if members is None:
            continue
        spread = float(np.square(points - centres[members.astype(int)]).sum())
        if spread < lowest:
            best, lowest = centres, spread
    return best


def model_distance(a: Arrays, b: Arrays, kind: Literal["layers", "flat"] = "layers") -> float:
    """Distance of two models over floating tensors, BatchNorm statistics included.

    layers: the sum over tensors of the L2 norm of their difference; flat: one L2 norm of the whole difference.
    """
    squares = [
        float(np.square(np.subtract(a[name], b[name], dtype=np.float64)).sum())
        for name in sorted(a)
        if a[name].dtype.kind == "f"
    ]
    return float(np.sqrt(squares).sum() if kind == "layers" else np.sqrt(np.sum(squares)))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the chosen entries; exactly zero, with zero gradient, if none is chosen."""
    chosen = mask.to(values.dtype)
    return (values * chosen).sum() / chosen.sum().clamp(min=1.0)
