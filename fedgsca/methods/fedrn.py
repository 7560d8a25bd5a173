"""FedRN (Kim et al., CIKM 2022): sites select samples with the help of reliable neighbours.

After a warm-up with FedAvg, one round at site k; h_j is the head that site j trained last:

    own model   P_k(clean | x_i) from two Gaussians on the losses of the site's own last model
    neighbours  the `neighbours` sites j with the largest score
                s_j = alpha e_j + (1 - alpha) sim_j,   s_k = alpha e_k + (1 - alpha)
                e_j: accuracy of j's model on j's given labels; sim_j: cosine similarity of j's and
                k's outputs for one input of Gaussian noise; both scaled to 0..1 over the sites
    fine-tune   h_j <- one epoch on the samples that the own model calls clean
    ensemble    P(clean | x_i) = sum_j s_j P_j(clean | x_i) / sum_j s_j over k and its neighbours
    train       theta_k <- E epochs from theta on the samples with P > 0.5, given labels
    up          theta_k, e_k, the output for the noise input

    server:     theta <- sum_k n_k/N theta_k; sends the heads, e and outputs of the sites

What travels. A site that is to use other sites' models must receive them: this is the only method
here in which sites see each other's (linear) heads, without names. Only the SLOTS sites with the
largest e_j travel.

Where paper, published code and this file differ. The code was read in a revision before its
release; the paper's equations could not be read.
  bodies      the code copies whole models from site to site. Here a neighbour is its head on the
              received theta's features, which is the same for frozen features; for trained networks
              it saves K models per site and round.
  constants   alpha 0.5 and two neighbours in the released options; the authors of a later benchmark
              use 0.6 and one. Warm-up: a fifth of the rounds.
  noise input an image (or a feature vector) of standard normal numbers that all sites draw from the
              experiment's seed; the code makes one in its only process.
  similarity  of the logits, as in the code.
  fewer than two samples left: the site trains on all given labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedgsca.methods.base import (
    Card,
    Lateness,
    Method,
    MethodOptions,
    ServerState,
    Share,
    ShareBelowOne,
    average_models,
    register,
    rounds_of,
)
from fedgsca.methods.label_loss import LabelLoss
from fedgsca.methods.parts.optimisers import SGD
from fedgsca.methods.parts.statistics import unit_range
from fedgsca.methods.site import Site, load_weights
from fedgsca.methods.train import evaluate, evaluate_site, train
from fedgsca.rng import stream
from fedgsca.selector import clean_probability, fit_selector
from fedgsca.support.lazy_torch import F, Tensor, nn, torch
from fedgsca.wire import Arrays, Extra, Payload, Update

# sites whose heads travel to all others
SLOTS = 8
# regularisation of the mixture in the published code, here a lower bound of the variances
_VAR_FLOOR = 5e-4
_WEIGHT = "head.weight"
_BIAS = "head.bias"
_SITE = "site/"


class FedRNOptions(MethodOptions):
    """Options of FedRN; "official" is the published code."""

    warmup: Share = Field(
        default=0.2, description="share of the rounds with FedAvg; official 100 of 500"
    )
    neighbours: int = Field(default=2, ge=0, le=SLOTS, description="per site; official 2")
    alpha: Share = Field(default=0.5, description="weight of a neighbour's expertise; official 0.5")
    threshold: ShareBelowOne = Field(
        default=0.5, description="clean probability that a sample must exceed"
    )


def loss_probabilities(losses: np.ndarray) -> np.ndarray:
    """(n,): P(clean) of losses (n,) under two Gaussians; 1 where there are no two modes."""
    unit_losses = unit_range(losses)
    fit = fit_selector(unit_losses, var_floor=_VAR_FLOOR)
    return np.ones(len(losses)) if fit is None else clean_probability(unit_losses, fit)


def reliability(expertise: np.ndarray, outputs: np.ndarray, row: int, alpha: float) -> np.ndarray:
    """s (K,) of all sites for the one in `row`, from expertise (K,) and outputs (K, C)."""
    norms = np.maximum(np.linalg.norm(outputs, axis=1), 1e-12)
    similarity = outputs @ outputs[row] / (norms * norms[row])
    scores = alpha * unit_range(expertise) + (1.0 - alpha) * unit_range(similarity)
    scores[row] = alpha * unit_range(expertise)[row] + (1.0 - alpha)
    return np.asarray(scores)


def ensemble(probabilities: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """(n,): mean of P (J, n) with weights s (J,); equal weights if all are 0."""
    weights = scores if scores.sum() > 0 else np.ones(len(scores))
    return np.asarray(weights @ probabilities / weights.sum())


@register
class FedRN(Method):
    """See the module docstring."""

    name = "fedrn"
    card = Card(
        title="FedRN",
        paper="Kim et al., FedRN: Exploiting k-Reliable Neighbors Towards Robust Federated "
        "Learning, CIKM 2022",
        order=14,
        passes=6.0,
    )
    takes_loss = True
    uploads: ClassVar[Mapping[str, Extra]] = {
        "expertise": Extra((), "accuracy of the site's model on its given labels", low=0, high=1),
        "output": Extra(("C",), "the model's logits for one input of random noise"),
        "selected": Extra((), "samples that the site trained on", diagnostic=True, low=0),
    }
    downloads: ClassVar[Mapping[str, Extra]] = {
        "stage": Extra((), "0: FedAvg, 1: selection", low=0, high=1),
        "heads": Extra(
            (SLOTS, "C", "D"),
            f"head weights of up to {SLOTS} sites, without names; NaN: no such site",
            optional=True,
            nan=True,
        ),
        "biases": Extra((SLOTS, "C"), "head biases of these sites", optional=True, nan=True),
        "expertise": Extra((SLOTS,), "expertise of these sites", optional=True, nan=True),
        "outputs": Extra((SLOTS, "C"), "outputs of these sites", optional=True, nan=True),
    }
    late = Lateness("heads and outputs of a late update would describe an older model of the site")
    Options = FedRNOptions
    options: FedRNOptions

    # ---- server ----

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The global model and, after the warm-up, the heads of the most expert sites."""
        first = rounds_of(self.options.warmup, self.rounds) if self.options.warmup else 1
        names = sorted(name.rpartition("/")[0] for name in state.extras if name.endswith("/output"))
        if round < first or not names:
            return Payload(round, state.weights, {"stage": np.array(0)})
        names.sort(key=lambda name: -float(state.extras[f"{name}/expertise"]))
        extras = {"stage": np.array(1)}
        keys = {"heads": "head", "biases": "bias", "expertise": "expertise", "outputs": "output"}
        for array_name, key in keys.items():
            extras[array_name] = _stack([state.extras[f"{name}/{key}"] for name in names[:SLOTS]])
        return Payload(round, state.weights, extras)

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The mean of the models, and what each site sent last."""
        extras = dict(state.extras)

        def weigh(update: Update) -> float:
            if update.num_samples > 0:
                place = f"{_SITE}{update.site}"
                extras[f"{place}/head"] = np.asarray(update.weights[_WEIGHT])
                extras[f"{place}/bias"] = np.asarray(update.weights[_BIAS])
                extras[f"{place}/expertise"] = np.asarray(update.extras["expertise"], np.float64)
                extras[f"{place}/output"] = np.asarray(update.extras["output"], np.float64)
            return float(update.num_samples)

        mean = average_models(state, updates, weigh)
        return ServerState(mean.round, mean.weights, extras)

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Select with the neighbours' help, train on the selection, measure the own expertise."""
        site.load(payload.weights)
        memory = site.recall(payload.round)
        rows = np.arange(site.num_samples)
        if int(payload.extras["stage"]) and memory:
            rows = self._select(payload, site, memory)
        loss = LabelLoss(site, payload.round)
        train(site, payload.round, loss, rows, site.labels[rows])
        loss.save()
        weights = site.weights()
        evaluation = evaluate(site.model, site.samples, site.device)
        output = noise_output(site)
        site.remember(payload.round, output=output, **weights)
        accuracy = float(np.mean(evaluation.predictions == site.labels)) if len(rows) else 0.0
        extras = {
            "expertise": np.array(accuracy),
            "output": output,
            "selected": np.array(len(rows)),
        }
        return Update(site.name, site.num_samples, weights, extras)

    def _select(self, payload: Payload, site: Site, memory: Arrays) -> np.ndarray:
        """(m,) rows that the ensemble of the own last model and its neighbours calls clean."""
        hidden = evaluate_site(site, features=True).features
        assert hidden is not None
        own_losses = _losses_of_last_model(site, memory)
        site.load(payload.weights)
        own_probability = loss_probabilities(own_losses)
        probabilities = [own_probability]
        heads, scores = self._neighbours(payload, memory)
        clean = np.flatnonzero(own_probability > self.options.threshold)
        for head in heads:
            finetune(head, hidden, clean, site, payload.round)
            probabilities.append(loss_probabilities(head_losses(head, hidden, site.labels)))
        probability = ensemble(np.stack(probabilities), scores)
        selection = probability > self.options.threshold
        site.note(losses=own_losses, clean=selection, clean_probability=probability)
        rows = np.flatnonzero(selection)
        return rows if len(rows) >= 2 else np.arange(site.num_samples)

    def _neighbours(
        self, payload: Payload, memory: Arrays
    ) -> tuple[list[NeighbourHead], np.ndarray]:
        """The heads of the most reliable neighbours, and the scores of the site and of these."""
        extras = payload.extras
        is_site = np.isfinite(extras["expertise"])
        outputs = np.vstack([memory["output"], extras["outputs"][is_site]])
        accuracy = extras["expertise"][is_site]
        # the own row is the one with the own output; a site that is not among them has no row
        own_rows = np.flatnonzero((extras["outputs"][is_site] == memory["output"]).all(axis=1))
        own_accuracy = accuracy[own_rows[0]] if len(own_rows) else float(np.median(accuracy))
        expertise = np.append(own_accuracy, accuracy)
        scores = reliability(expertise, outputs, 0, self.options.alpha)
        order = [row for row in np.argsort(-scores[1:], kind="stable") if row not in own_rows]
        chosen_rows = order[: self.options.neighbours]
        heads = []
        for row in np.flatnonzero(is_site)[chosen_rows]:
            heads.append(NeighbourHead(extras["heads"][row], extras["biases"][row]))
        return heads, np.append(scores[0], scores[1:][chosen_rows])


def _stack(arrays: list[np.ndarray]) -> np.ndarray:
    """(SLOTS, ...): the arrays, then NaN."""
    stack = np.full((SLOTS, *np.shape(arrays[0])), np.nan, np.asarray(arrays[0]).dtype)
    for row, array in enumerate(arrays):
        stack[row] = array
    return stack


class NeighbourHead:
    """The linear head of another site. nn.Linear would draw from torch's global generator."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray) -> None:
        self.weight = nn.Parameter(torch.from_numpy(np.array(weight)))
        self.bias = nn.Parameter(torch.from_numpy(np.array(bias)))

    def __call__(self, hidden: Tensor) -> Tensor:
        """(b, D) features -> (b, C) logits."""
        return F.linear(hidden, self.weight, self.bias)


def _losses_of_last_model(site: Site, memory: Arrays) -> np.ndarray:
    """(n,): losses of the model that the site trained last; the site's model is replaced by it."""
    load_weights(site.model, memory)
    site.evaluation = None
    return evaluate(site.model, site.samples, site.device).losses


def head_losses(head: NeighbourHead, hidden: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(n,): cross-entropy of a head on features (n, D)."""
    with torch.inference_mode():
        logits = head(torch.from_numpy(hidden))
        losses = F.cross_entropy(logits.double(), torch.from_numpy(labels), reduction="none")
    return losses.numpy()


def finetune(
    head: NeighbourHead, hidden: np.ndarray, rows: np.ndarray, site: Site, round: int
) -> None:
    """One epoch of the head on the features of `rows` (m,) with the given labels, in place."""
    hyper = site.hyper
    sgd = SGD([head.weight, head.bias], hyper.lr_at(round), hyper.momentum, hyper.weight_decay)
    order = rows[site.rng(round, "neighbours").permutation(len(rows))]
    for start in range(0, len(order), hyper.batch_size):
        batch = order[start : start + hyper.batch_size]
        sgd.zero_grad()
        logits = head(torch.from_numpy(hidden[batch]))
        torch.autograd.backward(F.cross_entropy(logits, torch.from_numpy(site.labels[batch])))
        sgd.step()


def noise_output(site: Site) -> np.ndarray:
    """(C,): logits of the site's model for an input of Gaussian noise, the same at all sites."""
    shape: tuple[int, ...] = site.samples.inputs.shape[1:]
    if site.samples.are_images:
        shape = (3, *shape[:2])
    noise = stream(site.seed, "fedrn", "noise").standard_normal((1, *shape))
    x = torch.from_numpy(noise.astype(np.float32)).to(site.device)
    site.model.eval()
    with torch.inference_mode():
        logits: Tensor = site.model(x)
    return logits[0].double().cpu().numpy()
