"""Weighted mean of site models: ordered, dtype-preserving, streaming.

Updates arrive one after the other in the order of site names, are added in float64 and forgotten, so memory does not grow with the
number of sites and the bytes of the result do not depend on who answered first. Integer buffers (BatchNorm's counters) take the
maximum and keep their type: a weighted mean would turn them into floats, a classic bug of published code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from fedgsca.wire import Arrays, Update


class WeightedMean:
    """sum_k w_k a_k / sum_k w_k, one update at a time."""

    def __init__(self) -> None:
        self._sums: dict[str, np.ndarray] = {}
        self._dtypes: dict[str, np.dtype[np.generic]] = {}
        self.total = 0.0

    def add(self, arrays: Arrays, weight: float) -> None:
        if not (math.isfinite(weight) and weight > 0.0):
            return
        first = not self._sums
        self.total += weight
        for name, value in arrays.items():
            if first:
                self._dtypes[name] = value.dtype
            if value.dtype.kind != "f":
                self._sums[name] = (
                    value.copy() if first else np.asarray(np.maximum(self._sums[name], value))
                )
            elif first:
                self._sums[name] = np.asarray(np.multiply(value, weight, dtype=np.float64))
            else:
                self._sums[name] += np.asarray(np.multiply(value, weight, dtype=np.float64))

    def result(self) -> dict[str, np.ndarray] | None:
        """The mean in the original types; None if nothing with a positive weight was added."""
        if self.total <= 0.0:
            return None
        mean: dict[str, np.ndarray] = {}
        for name, value in self._sums.items():
            dtype = self._dtypes[name]
            # asarray: numpy turns arrays of shape () into scalars on the way
            mean[name] = np.asarray(
                (value / self.total).astype(dtype) if dtype.kind == "f" else value
            )
        return mean


def count_samples(update: Update) -> float:
    """n_k, the weight of a site in FedAvg."""
    return float(update.num_samples)


def weighted_mean(
    updates: Iterable[Update],
    fallback: Arrays,
    weight: Callable[[Update], float] = count_samples,
) -> dict[str, np.ndarray]:
    """FedAvg's server step (weights n_k / N); with no usable update the model stays what it was."""
    mean = WeightedMean()
    for update in updates:
        mean.add(update.weights, weight(update))
    return mean.result() or dict(fallback)
