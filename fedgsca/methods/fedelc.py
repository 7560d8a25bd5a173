"""FedELC (Jiang et al., CIKM 2024): noisy sites learn their labels together with the model.

    stage 1, warm-up   site:   logit-adjusted cross-entropy LA (as FedNoRo)
                       server: FedAvg
    switch, one round  site:   sends its mean loss per class; trains as in stage 1
                       server: two groups of sites; the one with larger losses is noisy
    stage 2            clean site:  LA
                       noisy site:  L = L_c / C + alpha L_o + beta L_e / C on labels that are
                                    learned (fedgsca/methods/parts/two_stages.py)
                       server: weights n_k exp(-d_k), d_k the distance to the nearest clean model

The learned labels, a distribution over the classes for every sample, stay at the site.

Where publication, published code and this file differ. We have read the code and the abstract, not
every equation of the paper; points that we could only take from the code are marked (code).
  grouping  the code votes over nine Gaussian mixtures (`mixtures`); default is 2-means. Every site
            applies the rule to itself (fedgsca/methods/fednoro.py).
  labels    at the end of a round they become K times the mean of themselves and the model's
            predictions (code).
  lambda    1000 for the mean over 64 samples, whatever the batch size here; the code drops the last
            incomplete batch of an epoch, here its labels learn too.
  epochs    the code has five local epochs and thus five steps of the labels in a round; the number
            here is `train.epochs`.
  teacher   the code computes a teacher's weight as FedNoRo does, and does not use it.
  warm-up   official 20 of 120 rounds; here 10 rounds, as for FedNoRo.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedgsca.methods.base import (
    Card,
    Lateness,
    Method,
    PublishedOptions,
    SampleMemory,
    ServerState,
    average_models,
    register,
)
from fedgsca.methods.fednoro import FedNoRo, distance_weights
from fedgsca.methods.parts.two_stages import (
    SWITCH,
    WARMUP,
    CorrectionSettings,
    adjusted_cross_entropy,
    broadcast_stage,
    initial_logits,
    judge,
    stage_of,
    take_stand,
    train_with_labels,
)
from fedgsca.methods.site import Samples, Site
from fedgsca.methods.train import train
from fedgsca.support.lazy_torch import Tensor, torch
from fedgsca.wire import Arrays, Extra, Payload, Update


class FedELCOptions(PublishedOptions):
    """Options of FedELC; "official" is the published code."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {
        "warmup": 20,
        "grouping": "mixtures",
    }

    warmup: int = Field(
        default=10, ge=0, description="rounds of stage 1; official 20 of 120 rounds"
    )
    scale: float = Field(
        default=10.0, gt=0, description="K, the logit of the given label at first; official 10"
    )
    label_rate: float = Field(
        default=1000.0, ge=0, description="lambda, learning rate of the labels; official 1000"
    )
    given_weight: float = Field(
        default=0.5, ge=0, description="alpha, weight of the given labels; official 0.5"
    )
    entropy_weight: float = Field(
        default=0.2, ge=0, description="beta, weight of the predictions' entropy; official 0.2"
    )
    grouping: Literal["two-means", "mixtures"] = Field(
        default="two-means",
        description="clean and noisy sites: 2-means, or a vote of Gaussian mixtures (official)",
    )


def whole_batch(logits: Tensor, y: Tensor) -> Tensor:
    """(b,): every given label counts."""
    return torch.ones_like(y, dtype=torch.float32)


@register
class FedELC(Method):
    """See the module docstring."""

    name = "fedelc"
    card = Card(
        title="FedELC",
        paper="Jiang et al., Tackling Noisy Clients in Federated Learning with End-to-end Label "
        "Correction, CIKM 2024",
        order=12,
        passes=3.5,
    )
    uploads: ClassVar[Mapping[str, Extra]] = {
        **FedNoRo.uploads,
        "corrected": Extra((), "labels that differ from the given ones", diagnostic=True, low=0),
    }
    downloads: ClassVar[Mapping[str, Extra]] = FedNoRo.downloads
    late = Lateness(
        "models can be late; a verdict is fixed after the switch", is_tolerated=True, stage="stage"
    )
    Options = FedELCOptions
    options: FedELCOptions

    # ---- server ----

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The global model, the stage and, after the switch, the rule."""
        return broadcast_stage(state, round, self.options.warmup)

    def new_memory(self, samples: Samples, site: str, seed: int) -> SampleMemory:
        """Learning a label begins with the given one."""
        labels = initial_logits(samples.labels, samples.num_classes, self.options.scale)
        return {**super().new_memory(samples, site, seed), "": {"labels": labels}}

    def asks_all_sites(self, state: ServerState) -> bool:
        """The groups are formed from the losses of all sites."""
        return stage_of(state, self.options.warmup) == SWITCH

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """FedAvg in the warm-up; then the mean weighted by n_k exp(-d_k), and the rule."""
        if stage_of(state, self.options.warmup) == WARMUP:
            return average_models(state, updates)
        verdicts = judge(state, updates, self.options.grouping)
        models = [update.weights for update in verdicts.updates]
        sizes = [update.num_samples for update in verdicts.updates]
        weights = distance_weights(models, sizes, verdicts.noisy, "layers")
        names = [update.site for update in verdicts.updates]
        weight_of = dict(zip(names, weights, strict=True))
        mean = average_models(state, verdicts.updates, lambda update: weight_of[update.site])
        return replace(mean, extras=verdicts.rule)

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Train with LA or, at a noisy site, with labels that are learned."""
        site.load(payload.weights)
        if site.num_samples == 0:
            return Update(site.name, 0, site.weights(), {"corrected": np.array(0)})
        memory = dict(site.recall(payload.round))
        stand = take_stand(payload, site, memory)
        if stand.class_losses is not None:
            memory["class_losses"] = stand.class_losses
        num_corrections = 0
        if stand.noisy:
            memory["labels"] = self._learn_labels(payload.round, site, memory)
            num_corrections = note_labels(site, memory["labels"])
        else:
            train(site, payload.round, adjusted_cross_entropy(site))
        if memory:
            site.remember(payload.round, **memory)
        extras = {**stand.extras, "corrected": np.array(num_corrections)}
        return Update(site.name, site.num_samples, site.weights(), extras)

    def _learn_labels(self, round: int, site: Site, memory: Arrays) -> np.ndarray:
        """u (n, C) after a round of training."""
        options = self.options
        settings = CorrectionSettings(
            options.scale, options.label_rate, options.given_weight, options.entropy_weight
        )
        first = initial_logits(site.labels, site.num_classes, options.scale)
        return train_with_labels(site, round, memory.get("labels", first), settings, whole_batch)


def note_labels(site: Site, label_logits: np.ndarray) -> int:
    """Leave the learned labels for the site's records; the number that differs from the given."""
    labels = label_logits.argmax(axis=1)
    corrections = labels != site.labels
    site.note(
        corrected=labels,
        clean=~corrections,
        pseudo_rows=np.flatnonzero(corrections),
        pseudo_labels=labels[corrections],
    )
    return int(corrections.sum())
