"""Weights by the neighbours of an image, after WANN (Di Salvo et al., 2024), in a federation.

    site k:  k_i  <- the smallest of SIZES such that most of the k_i most similar other images of
                     the site (cosine of features) have the label y_i
             eta_i <- SIZES[0] / k_i, or 0 if there is none
             theta_k <- E epochs of SGD on  sum_i eta_i CE_i / b
    server:  theta <- sum_k (n_k / N) theta_k

WANN classifies by a vote of neighbours with such reliabilities. That needs the images of all
hospitals in one place, so here the reliabilities weigh the loss of a linear head or a network
instead. On frozen features they are computed once; else with the features of each received model.
A site without a reliable label trains on all of them alike. Weights stay at the site.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedgsca.methods.base import Card, Lateness, Method, ServerState, register
from fedgsca.methods.parts.averaging import average_models, broadcast_model, start_from
from fedgsca.methods.site import Site
from fedgsca.methods.train import Batch, evaluate_site, train
from fedgsca.support.lazy_torch import F, Tensor, nn, torch
from fedgsca.wire import Arrays, Payload, Update

SIZES = (5, 10, 20, 40)
BLOCK = 512  # rows compared at a time


def reliabilities(features: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """eta (n,) float32 from features (n, D) and given labels (n,); ties are not a majority."""
    n = len(labels)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit = (features / np.maximum(lengths, 1e-12)).astype(np.float32)
    weights = np.zeros(n, np.float32)
    largest = min(SIZES[-1], n - 1)
    for start in range(0, n if largest > 0 else 0, BLOCK):
        cosine = unit[start : start + BLOCK] @ unit.T
        rows = np.arange(start, start + len(cosine))
        cosine[np.arange(len(rows)), rows] = -np.inf
        nearest = np.argsort(-cosine, axis=1, kind="stable")[:, :largest]
        votes = np.cumsum(np.eye(num_classes)[labels[nearest]], axis=1)  # (b, largest, C)
        for size in reversed(SIZES):
            tally = votes[:, min(size, largest) - 1]
            own_votes = tally[np.arange(len(rows)), labels[rows]]
            tally[np.arange(len(rows)), labels[rows]] = -1.0
            weights[rows[own_votes > tally.max(axis=1)]] = SIZES[0] / size
            tally[np.arange(len(rows)), labels[rows]] = own_votes
    return weights


@register
class FedWANN(Method):
    """See the module docstring."""

    name = "fedwann"
    card = Card(
        title="FedWANN",
        paper="Di Salvo et al., An Embedding is Worth a Thousand Noisy Labels, TMLR 2025; its "
        "weights in a federation by this package",
        order=17,
        passes=4.0,
    )
    late = Lateness("the server averages models, and nothing else travels", is_tolerated=True)

    def start(self, weights: Arrays, seed: int) -> ServerState:
        """The initial model."""
        return start_from(weights)

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The global model."""
        return broadcast_model(state, round)

    def local_update(self, payload: Payload, site: Site) -> Update:
        """E epochs of SGD on the weighted loss of the given labels."""
        site.load(payload.weights)
        weights = self._weights(payload.round, site)
        site.note(clean=weights > 0)
        if not weights.any():
            weights = np.ones_like(weights)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            losses = F.cross_entropy(model(batch.x), batch.y, reduction="none")
            return (losses * torch.from_numpy(weights[batch.rows]).to(losses.device)).mean()

        train(site, payload.round, objective)
        return Update(site.name, site.num_samples, site.weights())

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The mean of the models, weighted by n_k."""
        return average_models(state, updates)

    def _weights(self, round: int, site: Site) -> np.ndarray:
        """eta (n,): those of an earlier round on frozen features, which do not change."""
        memory = site.recall(round)
        if not site.samples.are_images and "reliability" in memory:
            return np.asarray(memory["reliability"])
        features = evaluate_site(site, features=True).features
        assert features is not None
        weights = reliabilities(features, site.labels, site.num_classes)
        if not site.samples.are_images:
            site.remember(round, reliability=weights)
        return weights
