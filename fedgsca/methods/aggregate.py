"""Weighted mean of site models: ordered, dtype-preserving, streaming.

Updates arrive one after the other in the order of site names, are added in float64 and forgotten.
So memory does not grow with the number of sites, and the bytes of the result do not depend on who
answered first. Integer buffers (BatchNorm's counters) take the maximum and keep their type: a
weighted mean would turn them into floats, a classic bug of published code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from fedgsca.wire import Arrays, Update

# the last part of the names of arrays that a network computes rather than trains
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def is_buffer(name: str) -> bool:
    """Whether a named array is a statistic of BatchNorm rather than a trained parameter.

    A server that does more than averaging, such as momentum, does it to parameters only: half a
    step too far, a variance is negative. Buffers take the mean of the sites.
    """
    return name.rpartition(".")[2] in _BUFFERS


class WeightedMean:
    """sum_k w_k a_k / sum_k w_k, one update at a time."""

    def __init__(self) -> None:
        self._sums: dict[str, np.ndarray] = {}
        self._dtypes: dict[str, np.dtype[np.generic]] = {}
        self.total = 0.0

    def add(self, arrays: Arrays, weight: float) -> None:
        """Add one model. A weight that is not finite or not positive leaves it out."""
        if not (math.isfinite(weight) and weight > 0.0):
            return
        is_first = not self._sums
        self.total += weight
        for name, value in arrays.items():
            if is_first:
                self._dtypes[name] = value.dtype
                self._sums[name] = self._start_sum(value, weight)
            elif value.dtype.kind != "f":
                self._sums[name] = np.asarray(np.maximum(self._sums[name], value))
            else:
                self._sums[name] += np.asarray(np.multiply(value, weight, dtype=np.float64))

    @staticmethod
    def _start_sum(value: np.ndarray, weight: float) -> np.ndarray:
        if value.dtype.kind != "f":
            return value.copy()
        return np.asarray(np.multiply(value, weight, dtype=np.float64))

    def result(self) -> dict[str, np.ndarray] | None:
        """The mean in the original types; None if nothing with a positive weight was added."""
        if self.total <= 0.0:
            return None
        mean: dict[str, np.ndarray] = {}
        for name, value in self._sums.items():
            dtype = self._dtypes[name]
            if dtype.kind == "f":
                value = (value / self.total).astype(dtype)
            mean[name] = np.asarray(value)  # numpy turns arrays of shape () into scalars on the way
        return mean


def count_samples(update: Update) -> float:
    """n_k, the weight of a site in FedAvg."""
    return float(update.num_samples)


def weighted_mean(
    updates: Iterable[Update],
    fallback: Arrays,
    weight: Callable[[Update], float] = count_samples,
) -> dict[str, np.ndarray]:
    """The mean of the updates' weights; without a usable update, `fallback`.

    The default weights n_k are FedAvg's.
    """
    mean = WeightedMean()
    for update in updates:
        mean.add(update.weights, weight(update))
    return mean.result() or dict(fallback)
