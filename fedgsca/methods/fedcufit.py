"""Agreement in a chain of heads, after CUFIT (Yu et al., NeurIPS 2024), in a federation.

Three heads on the same features. Each chooses the samples of the next: those on which its
prediction is the given label. Only the last one is the model.

    site k, round 0:  all three heads train on all samples
    later             A_1 <- {i : argmax g_1(x_i) = y_i}, A_2 <- {i : argmax g_2(x_i) = y_i}
                      with the guides g_1, g_2 as received, which have not yet seen this epoch
                      g_1 <- one epoch on all samples, g_2 <- one on A_1, theta_k <- E epochs on A_2
    up                theta_k, g_1, g_2
    server:           means of all three, weighted by n_k

CUFIT fine-tunes adapters of a foundation model; here a guide is a linear head on the features of
the model as received, which is the same on frozen features. In the paper the three train at once,
batch by batch. A site whose A_2 has fewer than two samples trains on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np

from fedgsca.evidence import softmax
from fedgsca.methods.aggregate import WeightedMean
from fedgsca.methods.base import Card, Lateness, Method, ServerState, register
from fedgsca.methods.site import Site
from fedgsca.methods.train import cross_entropy, draw_weighted, evaluate_site, train
from fedgsca.wire import Extra, Payload, Update

GUIDES = 2
GUIDE_ARRAYS = ("guides", "guide_biases")


def predict(weight: np.ndarray, bias: np.ndarray, features: np.ndarray) -> np.ndarray:
    """(n,): the most probable class under a linear head (C, D), (C,)."""
    return np.asarray((features @ weight.T + bias).argmax(axis=1))


def train_guide(
    weight: np.ndarray,
    bias: np.ndarray,
    features: np.ndarray,
    rows: np.ndarray,
    site: Site,
    round: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The head after an epoch of SGD on the given labels of `rows` (m,)."""
    weight, bias = weight.astype(np.float32), bias.astype(np.float32)
    labels, hyper = site.labels[rows], site.hyper
    rng = site.rng(round, "guides")
    order = rng.permutation(len(rows))
    if hyper.class_balance > 0 and len(rows):
        order = draw_weighted(labels, order, hyper.class_balance, rng)
    for start in range(0, len(order), hyper.batch_size):
        batch = order[start : start + hyper.batch_size]
        x = features[rows[batch]]
        gradient = softmax(x @ weight.T + bias)
        gradient[np.arange(len(batch)), labels[batch]] -= 1.0
        gradient *= np.float32(hyper.lr_at(round) / len(batch))
        weight = weight - gradient.T @ x
        bias = bias - gradient.sum(axis=0)
    return weight, bias


@register
class FedCUFIT(Method):
    """See the module docstring."""

    name = "fedcufit"
    card = Card(
        title="FedCUFIT",
        paper="Yu et al., Curriculum Fine-tuning of Vision Foundation Model for Medical Image "
        "Classification Under Label Noise, NeurIPS 2024; in a federation by this package",
        order=16,
        passes=4.0,
    )
    uploads: ClassVar[Mapping[str, Extra]] = {
        "guides": Extra((GUIDES, "C", "D"), "weights of the two guiding heads", vote="mean"),
        "guide_biases": Extra((GUIDES, "C"), "biases of the two guiding heads", vote="mean"),
        "selected": Extra((), "samples that the site trained on", diagnostic=True, low=0),
    }
    downloads: ClassVar[Mapping[str, Extra]] = {
        "guides": Extra((GUIDES, "C", "D"), "mean weights of the guiding heads", optional=True),
        "guide_biases": Extra((GUIDES, "C"), "mean biases of the guiding heads", optional=True),
    }
    late = Lateness("heads are averaged, and nothing else travels", is_tolerated=True)

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Choose by the guides as received; train the guides and the model."""
        site.load(payload.weights)
        all_rows = np.arange(site.num_samples)
        features = evaluate_site(site, features=True).features
        assert features is not None
        shape = (GUIDES, site.num_classes, features.shape[1])
        weights = payload.extras.get("guides", np.zeros(shape, np.float32))
        biases = payload.extras.get("guide_biases", np.zeros(shape[:2], np.float32))
        rows = [all_rows] * (GUIDES + 1)
        if "guides" in payload.extras:
            for guide in range(GUIDES):
                agreement = predict(weights[guide], biases[guide], features) == site.labels
                rows[guide + 1] = np.flatnonzero(agreement)
        guides = []
        for guide in range(GUIDES):
            pair = (weights[guide], biases[guide])
            guides.append(train_guide(*pair, features, rows[guide], site, payload.round))
        selection = rows[GUIDES] if len(rows[GUIDES]) >= 2 else all_rows
        site.note(clean=np.isin(all_rows, selection))
        train(site, payload.round, cross_entropy, selection, site.labels[selection])
        extras = {
            "guides": np.stack([weight for weight, _ in guides]),
            "guide_biases": np.stack([bias for _, bias in guides]),
            "selected": np.array(len(selection)),
        }
        return Update(site.name, site.num_samples, site.weights(), extras)

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The means of the models and of the guides, weighted by n_k."""
        models, guides = WeightedMean(), WeightedMean()
        for update in updates:
            models.add(update.weights, update.num_samples)
            arrays = {name: np.asarray(update.extras[name]) for name in GUIDE_ARRAYS}
            guides.add(arrays, update.num_samples)
        weights = models.result() or state.weights
        return ServerState(state.round + 1, weights, guides.result() or state.extras)
