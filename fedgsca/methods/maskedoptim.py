"""MaskedOptim (Jiang et al., 2025): FedELC with masked labels and a geometric median.

    stage 1, switch    as FedELC
    stage 2            clean site:  LA
                       noisy site:  L = L_c / C + alpha L_o + beta L_e / C on labels that are
                                    learned; L_o counts only the share `keep` of each batch with the
                                    smallest cross-entropy (the mask);
                                    sends (1 - pull) theta_k + pull theta
    server             theta <- geometric median of the models, in all stages

The geometric median of a tensor is the point with the smallest sum of distances to the sites'
tensors (Weiszfeld's steps from the mean).

Where publication, published code and this file differ. We have read the code and the abstract, not
every equation of the paper; points that we could only take from the code are marked (code).
  mask      the 80 % of a batch with the smallest losses, only in L_o (code; masks of L_c and L_e
            are commented out there). The masked terms are still divided by the entire batch (code).
  pull      0.2 (code: a moving average of the received and the trained model, at noisy sites).
  median    tensor by tensor and with equal weights (code); `median = model` takes one median of the
            entire model, `weighting = samples` weights by n_k. Ten steps at most (code). In the
            version of the code that we read, the server compares the method's name with another
            spelling than the command line offers, so that it falls back to FedAvg's mean:
            `median = none`. The publication describes the median, which is the default here.
  buffers   BatchNorm's counters take the maximum; the code computes a median of integers.
  the rest  as FedELC, see fedgsca/methods/fedelc.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from fedgsca.methods.fedelc import FedELC, note_labels
from fedgsca.methods.parts.two_stages import (
    SWITCH,
    WARMUP,
    CorrectionSettings,
    LabelMask,
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
from fedgsca.support.lazy_torch import F, Tensor, torch
from fedgsca.wire import Arrays, Extra, Payload, Update

_STEPS = 10
_SMALLEST = 1e-5


class MaskedOptimOptions(PublishedOptions):
    """Options of MaskedOptim; "official" is the published code."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {
        "warmup": 20,
        "grouping": "mixtures",
        "median": "none",
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
    keep: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="share of a batch, with the smallest losses, whose given labels count; "
        "official 0.8",
    )
    pull: float = Field(
        default=0.2,
        ge=0,
        lt=1,
        description="share of the received model in what a noisy site sends; official 0.2",
    )
    median: Literal["tensors", "model", "none"] = Field(
        default="tensors",
        description="geometric median of each tensor, of the model, or none: FedAvg's mean, which "
        "the published code falls back to",
    )
    weighting: Literal["equal", "samples"] = Field(
        default="equal", description="median: weights of the sites, equal (official) or by samples"
    )


def small_loss_mask(keep: float) -> LabelMask:
    """The mask of a batch (b,): 1 for the int(keep b) samples with the smallest cross-entropy."""

    def mask(logits: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(logits, y, reduction="none")
        order = torch.argsort(losses, stable=True)
        weights = torch.zeros_like(losses)
        weights[order[: int(keep * len(y))]] = 1.0
        return weights

    return mask


def geometric_median(points: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """(D,): the point with the smallest weighted sum of distances to `points` (K, D).

    `shares` (K,) sum to 1. Ten of Weiszfeld's steps from the weighted mean, fewer where it settles.
    """
    median = shares @ points
    for _ in range(_STEPS):
        distances = np.linalg.norm(points - median, axis=1)
        weights = shares / np.maximum(distances, _SMALLEST)
        update = (weights / weights.sum()) @ points
        step = float(np.linalg.norm(update - median))
        median = update
        if step < _SMALLEST:
            break
    return np.asarray(median)


def median_model(
    models: Sequence[Arrays], shares: np.ndarray, scope: Literal["tensors", "model"]
) -> dict[str, np.ndarray]:
    """The geometric median of the models, tensor by tensor or as a whole."""
    names = [name for name, value in models[0].items() if value.dtype.kind == "f"]
    stacks = {}
    for name in names:
        stacks[name] = np.stack([np.ravel(model[name]).astype(np.float64) for model in models])
    if scope == "model":
        vector = geometric_median(np.concatenate(list(stacks.values()), axis=1), shares)
        ends = np.cumsum([stack.shape[1] for stack in stacks.values()])
        medians = dict(zip(names, np.split(vector, ends[:-1]), strict=True))
    else:
        medians = {name: geometric_median(stack, shares) for name, stack in stacks.items()}
    result: dict[str, np.ndarray] = {}
    for name, value in models[0].items():
        if name in medians:
            result[name] = medians[name].reshape(value.shape).astype(value.dtype)
        else:
            result[name] = np.asarray(np.max([model[name] for model in models], axis=0))
    return result


@register
class MaskedOptim(Method):
    """See the module docstring."""

    name = "maskedoptim"
    card = Card(
        title="MaskedOptim",
        paper="Jiang et al., Robust Federated Learning against Noisy Clients via Masked "
        "Optimization, arXiv 2506.02079, 2025",
        order=15,
        passes=3.5,
    )
    uploads: ClassVar[Mapping[str, Extra]] = FedELC.uploads
    downloads: ClassVar[Mapping[str, Extra]] = FedELC.downloads
    late = Lateness(
        "models can be late; a verdict is fixed after the switch", is_tolerated=True, stage="stage"
    )
    Options = MaskedOptimOptions
    options: MaskedOptimOptions

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
        """The geometric median of the models and, at the switch, the rule."""
        extras = state.extras
        if stage_of(state, self.options.warmup) == WARMUP:
            nonempty = [update for update in updates if update.num_samples > 0]
        else:
            verdicts = judge(state, updates, self.options.grouping)
            nonempty = verdicts.updates
            extras = verdicts.rule
        if not nonempty:
            return ServerState(state.round + 1, state.weights, extras)
        if self.options.median == "none":
            return replace(average_models(state, nonempty), extras=extras)
        sizes = np.ones(len(nonempty))
        if self.options.weighting == "samples":
            sizes = np.array([float(update.num_samples) for update in nonempty])
        models = [update.weights for update in nonempty]
        weights = median_model(models, sizes / sizes.sum(), self.options.median)
        return ServerState(state.round + 1, weights, extras)

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Train with LA or, at a noisy site, with learned labels; then move towards theta."""
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
            weights = pull_towards(site.weights(), payload.weights, self.options.pull)
        else:
            train(site, payload.round, adjusted_cross_entropy(site))
            weights = site.weights()
        if memory:
            site.remember(payload.round, **memory)
        extras = {**stand.extras, "corrected": np.array(num_corrections)}
        return Update(site.name, site.num_samples, weights, extras)

    def _learn_labels(self, round: int, site: Site, memory: Arrays) -> np.ndarray:
        """u (n, C) after a round of training."""
        options = self.options
        settings = CorrectionSettings(
            options.scale, options.label_rate, options.given_weight, options.entropy_weight
        )
        first = initial_logits(site.labels, site.num_classes, options.scale)
        mask = small_loss_mask(options.keep)
        return train_with_labels(site, round, memory.get("labels", first), settings, mask)


def pull_towards(weights: Arrays, anchor: Arrays, share: float) -> dict[str, np.ndarray]:
    """(1 - share) theta_k + share theta; integer buffers are those of theta_k."""
    result = {}
    for name, value in weights.items():
        if value.dtype.kind == "f":
            value = ((1.0 - share) * value + share * anchor[name]).astype(value.dtype)
        result[name] = value
    return result
