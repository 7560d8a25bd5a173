"""The server half of FedAvg as plain functions, for every method whose server only averages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedgsca.methods.aggregate import count_samples, weighted_mean
from fedgsca.methods.base import ServerState
from fedgsca.wire import Arrays, Payload, Update


def start_from(weights: Arrays) -> ServerState:
    """The state before the first round: the initial model and nothing else."""
    return ServerState(0, weights)


def broadcast_model(state: ServerState, round: int) -> Payload:
    """A message that holds the global model and nothing else."""
    return Payload(round, state.weights)


def average_models(
    state: ServerState,
    updates: Iterable[Update],
    weight: Callable[[Update], float] = count_samples,
) -> ServerState:
    """theta <- sum_k w_k theta_k / sum_k w_k; by default w_k = n_k. Without updates: as it was.

    The extras of the state are kept. A server that needs the mean for something else calls
    `fedgsca.methods.aggregate.weighted_mean`.
    """
    weights = weighted_mean(updates, state.weights, weight)
    return ServerState(state.round + 1, weights, state.extras)
