"""Steps of the server (`aggregation.server`): what the mean of the sites says is a gradient.

    FedAvgM   v <- 0.9 v + d,                             theta <- theta + eta v
    FedAdam   m <- 0.9 m + 0.1 d,  v <- 0.99 v + 0.01 d^2, theta <- theta + eta m / (sqrt(v) + tau)

d is the method's next model minus the one that the sites received (Hsu et al., 2019; Reddi et al.,
Adaptive Federated Optimization, ICLR 2021; tau = 0.001). Moments are in the checkpoint. BatchNorm's
statistics take the method's mean: half a step too far, a variance is negative.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from fedgsca.methods.aggregate import is_buffer
from fedgsca.methods.base import Method, ServerState, WrappedMethod
from fedgsca.wire import Arrays, Update

MOMENTUM, FIRST, SECOND, TAU = 0.9, 0.9, 0.99, 1e-3


class MethodWithServerSteps(WrappedMethod):
    """A method whose next model is a step of the server instead of the mean; moments stay there."""

    prefix = "server."

    def __init__(self, method: Method, kind: str, rate: float) -> None:
        """`kind` is momentum or adam, `rate` the eta of the server."""
        super().__init__(method)
        self.kind = kind
        self.rate = rate

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """A step from the model of the round towards the method's next one."""
        method_state, moments = self.split_state(state)
        next_state = self.method.aggregate(method_state, updates)
        weights = dict(next_state.weights)
        next_moments: dict[str, np.ndarray] = {}
        for name, value in next_state.weights.items():
            old = state.weights.get(name)
            has_gradient = value.dtype.kind == "f" and not is_buffer(name)
            if old is None or not has_gradient or old.shape != value.shape:
                continue
            change = value.astype(np.float64) - np.asarray(old, np.float64)
            step, own_moments = self._step(name, change, moments)
            next_moments |= own_moments
            weights[name] = np.asarray(old + self.rate * step).astype(value.dtype)
        extras = {**next_state.extras, **next_moments}
        return replace(next_state, weights=weights, extras=extras)

    def _step(
        self, name: str, change: np.ndarray, moments: Arrays
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The direction of one array, and its next moments."""
        first_key, second_key = f"{self.prefix}first.{name}", f"{self.prefix}second.{name}"
        first = moments.get(first_key, np.zeros_like(change))
        if self.kind == "momentum":
            first = MOMENTUM * first + change
            return first, {first_key: first}
        second = moments.get(second_key, np.zeros_like(change))
        first = FIRST * first + (1 - FIRST) * change
        second = SECOND * second + (1 - SECOND) * change**2
        return first / (np.sqrt(second) + TAU), {first_key: first, second_key: second}
