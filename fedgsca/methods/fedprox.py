"""FedProx (Li et al., MLSys 2020): FedAvg with a proximal term that keeps a site near the model it received.

    site:   theta_k <- E epochs of SGD on  CE + (mu / 2) ||theta_k - theta||^2   over the trainable parameters
    server: theta   <- sum_k (n_k / N) theta_k

The norm is squared, as in the paper (one published benchmark sums unsquared norms, whose gradient is undefined at theta_k = theta).
BatchNorm's running statistics are buffers and do not enter. With one local epoch the term is nearly inactive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from fedgsca.aggregate import weighted_mean
from fedgsca.methods.base import MethodOptions, ServerState, register
from fedgsca.site import Site
from fedgsca.train import Batch, cross_entropy, proximal, train
from fedgsca.wire import Arrays, Extra, Payload, Update


class FedProxOptions(MethodOptions):
    mu: float = Field(
        0.01, ge=0, description="strength of the proximal term; the paper's grid: 1e-3 .. 1"
    )


@register
class FedProx:
    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    head: ClassVar[str] = "linear"
    uploads: ClassVar[Mapping[str, Extra]] = {}
    downloads: ClassVar[Mapping[str, Extra]] = {}
    Options = FedProxOptions

    def __init__(self, options: FedProxOptions, rounds: int) -> None:
        self.options, self.rounds = options, rounds

    def start(self, weights: Arrays) -> ServerState:
        return ServerState(0, weights)

    def broadcast(self, state: ServerState, round: int) -> Payload:
        return Payload(round, state.weights)

    def local_update(self, payload: Payload, site: Site) -> Update:
        site.load(payload.weights)
        anchor = [parameter.detach().clone() for parameter in site.model.parameters()]

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            return cross_entropy(model, batch) + proximal(model, anchor, self.options.mu)

        train(site, payload.round, objective)
        return Update(site.name, site.num_samples, site.weights())

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        return ServerState(state.round + 1, weighted_mean(updates, state.weights))
