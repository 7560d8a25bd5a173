"""FedAvg (McMahan et al., AISTATS 2017): every site trains on its given labels, the server averages with weights n_k / N.

site:   theta_k <- E epochs of SGD on the cross-entropy, from theta
server: theta   <- sum_k (n_k / N) theta_k
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from fedgsca.aggregate import weighted_mean
from fedgsca.methods.base import MethodOptions, ServerState, register
from fedgsca.site import Site
from fedgsca.train import cross_entropy, train
from fedgsca.wire import Arrays, Extra, Payload, Update


@register
class FedAvg:
    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017"
    )
    head: ClassVar[str] = "linear"
    uploads: ClassVar[Mapping[str, Extra]] = {}
    downloads: ClassVar[Mapping[str, Extra]] = {}
    Options = MethodOptions

    def __init__(self, options: MethodOptions, rounds: int) -> None:
        self.options, self.rounds = options, rounds

    def start(self, weights: Arrays) -> ServerState:
        return ServerState(0, weights)

    def broadcast(self, state: ServerState, round: int) -> Payload:
        return Payload(round, state.weights)

    def local_update(self, payload: Payload, site: Site) -> Update:
        site.load(payload.weights)
        train(site, payload.round, cross_entropy)
        return Update(site.name, site.num_samples, site.weights())

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        return ServerState(state.round + 1, weighted_mean(updates, state.weights))
