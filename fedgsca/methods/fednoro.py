"""FedNoRo (Wu et al., IJCAI 2023): find noisy sites by their class losses, distil there, keep their models at a distance.

    stage 1, warm-up   site:   logit-adjusted cross-entropy  LA = CE(z + log pi_k, y),  pi_k = class shares of the given labels
                       server: FedAvg
    switch, one round  site:   m_k (C,) = mean loss of the received model on each given class; sends m_k; trains as in stage 1
                       server: two groups of sites by m_k (each class scaled to 0..1); the one with larger losses is noisy
    stage 2            clean site:  LA
                       noisy site:  lam_t KL(q || softmax(z + log pi_k)) + (1 - lam_t) LA,  q = softmax(z of theta / 0.8)
                                    theta as received;  lam_t rises to 0.8 by exp(-5 (1 - progress)^2)
                       server: weights n_k exp(-d_k);  d_k = distance to the nearest clean model / the largest of these;
                               0 for clean sites

Truly federated. The published code gathers all losses in one process and hands out verdicts by client number. Here the
server broadcasts the rule (lowest and highest loss per class, and the two group centres: 4 C numbers), and a site compares
the m_k in its own memory with it. Nearest-centre is what 2-means converged to, so site and server agree, nobody's verdict is
told to others, and a site that was away at the switch (or joins later) measures itself on the model it then receives. In
stage 2 a site adds its verdict to its update. A rule over two sites tells each the other's class losses; with more sites it
tells extremes and means.

Verdicts are fixed after the switch. In the switch round the server applies the distance-aware weights already; only the
distillation starts one round later than in the published code, where lam_10 is 0.005.

Choices. (1) The published grouping is a full-covariance Gaussian mixture, nine seeds and a vote; with four points in ten
dimensions it stays at its 2-means start, so this is 2-means, from every start and without dice. (2) `distance`: the
published code sums the norms of the tensors' differences, a later benchmark takes one norm of all; default as published. (3)
A class absent at a site, or with fewer than five images there (its mean would be about single images), takes the lowest loss
of that class, as published (the benchmark's 0 would mean "very clean"). (4) Losses are measured without augmentation. (5)
log 0 of an absent class is replaced by one sample (published: minus infinity, patched in the loss). (6) No clean or no noisy
site: FedAvg. The end of the ramp is a share of the rounds, so that short runs reach the full weight too.

Memory: in stage 2 the server holds all models of a round, K times the model, because d_k needs every clean one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.aggregate import weighted_mean
from fedgsca.methods.base import Method, MethodOptions, ServerState, register
from fedgsca.methods.parts.statistics import (
    class_means,
    log_prior,
    model_distance,
    nearer_second,
    rampup,
    rounds_of,
    two_means,
)
from fedgsca.site import Site
from fedgsca.train import Batch, Objective, evaluate_site, train
from fedgsca.wire import SMALLEST_GROUP, Arrays, Extra, Payload, Update

WARMUP, SWITCH, ROBUST = 0, 1, 2


class FedNoRoOptions(MethodOptions):
    warmup: int = Field(10, ge=0, description="T_1, rounds of stage 1; official 10")
    ramp_end: float = Field(
        0.49,
        ge=0,
        le=1,
        description="share of the rounds at which lam reaches its full value; official 49 of 100",
    )
    strength: float = Field(
        0.8, ge=0, le=1, description="full value of lam, the weight of the teacher; official 0.8"
    )
    temperature: float = Field(
        0.8, gt=0, description="of the teacher; below 1 sharpens; official 0.8"
    )
    distance: Literal["layers", "flat"] = Field(
        "layers", description="of two models: sum of the tensors' norms (official) or one norm"
    )


def grouping(losses: np.ndarray) -> dict[str, np.ndarray]:
    """The rule from the sites' class losses (K, C), NaN = class absent. In `centres` the clean group comes first."""
    known = np.where(np.isfinite(losses), losses, np.nan)
    nowhere = np.isnan(known).all(axis=0)
    low = np.nanmin(np.where(nowhere, 0.0, known), axis=0)
    high = np.nanmax(np.where(nowhere, 0.0, known), axis=0)
    centres = two_means(scaled(losses, low, high))
    return {
        "low": low,
        "high": high,
        "centres": centres[np.argsort(centres.sum(axis=1), kind="stable")],
    }


def scaled(losses: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Each class to 0..1 over the sites; an absent class, and one in which all sites are alike, is 0."""
    width = high - low
    return np.asarray(
        np.where(
            np.isfinite(losses) & (width > 0), (losses - low) / np.where(width > 0, width, 1.0), 0.0
        )
    )


def is_noisy(losses: np.ndarray, rule: Arrays) -> bool:
    """The verdict on one site, the same at the site and at the server."""
    return bool(nearer_second(scaled(losses, rule["low"], rule["high"]), rule["centres"]))


def distance_weights(
    models: Sequence[Arrays],
    sizes: Sequence[int],
    noisy: Sequence[bool],
    kind: Literal["layers", "flat"],
) -> list[float]:
    """n_k exp(-d_k); with only one kind of site all d_k are 0."""
    clean = [model for model, bad in zip(models, noisy, strict=True) if not bad]
    far = [
        min((model_distance(model, other, kind) for other in clean), default=0.0) if bad else 0.0
        for model, bad in zip(models, noisy, strict=True)
    ]
    largest = max(far, default=0.0) or 1.0
    return [size * float(np.exp(-d / largest)) for size, d in zip(sizes, far, strict=True)]


@register
class FedNoRo(Method):
    name = "fednoro"
    title = "FedNoRo"
    paper = "Wu et al., FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label Noise, IJCAI 2023"
    order = 7
    passes = 3.7
    uploads: ClassVar[Mapping[str, Extra]] = {
        "class_losses": Extra(
            ("C",),
            f"at the switch: mean loss of the received model on each given class; NaN: below {SMALLEST_GROUP} images",
            optional=True,
            low=0,
            nan=True,
        ),
        "noisy": Extra(
            (),
            "after the switch: 1 if this site counts itself to the noisy group",
            optional=True,
            low=0,
            high=1,
        ),
    }
    downloads: ClassVar[Mapping[str, Extra]] = {
        "stage": Extra(
            (), "0 warm-up, 1 switch (measure the class losses), 2 robust training", low=0, high=2
        ),
        "low": Extra(
            ("C",), "lowest loss of each class over the sites at the switch", optional=True, low=0
        ),
        "high": Extra(
            ("C",), "highest loss of each class over the sites at the switch", optional=True, low=0
        ),
        "centres": Extra(
            (2, "C"),
            "centres of the clean and of the noisy group, in scaled class losses",
            optional=True,
        ),
    }
    Options = FedNoRoOptions
    options: FedNoRoOptions

    def __init__(self, options: FedNoRoOptions, rounds: int) -> None:
        self.options, self.rounds = options, rounds
        self.end = rounds_of(options.ramp_end, rounds)

    # ---- server ----

    def start(self, weights: Arrays, seed: int) -> ServerState:
        return ServerState(0, weights)

    def stage(self, state: ServerState) -> int:
        return (
            ROBUST
            if "centres" in state.extras
            else SWITCH
            if state.round >= self.options.warmup
            else WARMUP
        )

    def broadcast(self, state: ServerState, round: int) -> Payload:
        return Payload(round, state.weights, {"stage": np.array(self.stage(state)), **state.extras})

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        stage, rule = self.stage(state), state.extras
        if stage == WARMUP:
            return ServerState(state.round + 1, weighted_mean(updates, state.weights), rule)
        held = [update for update in updates if update.num_samples > 0]
        if stage == SWITCH and held:
            rule = grouping(np.stack([update.extras["class_losses"] for update in held]))
            noisy = [is_noisy(update.extras["class_losses"], rule) for update in held]
        else:
            noisy = [bool(update.extras.get("noisy", 0)) for update in held]
        factors = distance_weights(
            [u.weights for u in held], [u.num_samples for u in held], noisy, self.options.distance
        )
        weights = dict(zip((update.site for update in held), factors, strict=True))
        return ServerState(
            state.round + 1,
            weighted_mean(held, state.weights, lambda update: weights[update.site]),
            rule,
        )

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        site.load(payload.weights)
        if site.num_samples == 0:
            return Update(site.name, 0, site.weights())
        stage, noisy, extras = int(payload.extras["stage"]), False, {}
        if stage == SWITCH:
            extras["class_losses"] = self._measure(payload.round, site)
        elif stage == ROBUST:
            memory = site.recall(payload.round)
            noisy = is_noisy(
                memory["class_losses"] if memory else self._measure(payload.round, site),
                payload.extras,
            )
            extras["noisy"] = np.array(int(noisy))
        lam = (
            self.options.strength * rampup(payload.round, self.options.warmup, self.end)
            if noisy
            else 0.0
        )
        train(site, payload.round, self._objective(site, lam))
        return Update(site.name, site.num_samples, site.weights(), extras)

    def _measure(self, round: int, site: Site) -> np.ndarray:
        """m_k of the received model, kept for all later rounds."""
        losses = class_means(
            evaluate_site(site).losses, site.labels, site.num_classes, least=SMALLEST_GROUP
        )
        site.remember(round, class_losses=losses)
        return losses

    def _objective(self, site: Site, lam: float) -> Objective:
        prior = torch.from_numpy(log_prior(site.labels, site.num_classes)).float().to(site.device)
        teacher = (
            copy.deepcopy(site.model).eval() if lam else None
        )  # as received: nothing has been trained yet

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            student = F.log_softmax(model(batch.x) + prior, dim=1)
            supervised = F.nll_loss(student, batch.y)
            if teacher is None:
                return supervised
            with torch.no_grad():
                target = F.softmax(teacher(batch.x) / self.options.temperature, dim=1)
            return lam * F.kl_div(student, target, reduction="batchmean") + (1.0 - lam) * supervised

        return objective
