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
    PositiveShare,
    ServerState,
    ShareBelowOne,
    average_models,
    register,
)
from fedgsca.methods.fedelc import FedELC, FedELCOptions
from fedgsca.methods.parts.two_stages import WARMUP
from fedgsca.methods.site import Site
from fedgsca.support.lazy_torch import F, Tensor, torch
from fedgsca.wire import Arrays, Payload, Update

_STEPS = 10
_SMALLEST = 1e-5


class MaskedOptimOptions(FedELCOptions):
    """Options of MaskedOptim: those of FedELC and its own; "official" is the published code."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {**FedELCOptions.OFFICIAL, "median": "none"}

    keep: PositiveShare = Field(
        default=0.8,
        description="share of a batch, with the smallest losses, whose given labels count; "
        "official 0.8",
    )
    pull: ShareBelowOne = Field(
        default=0.2,
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


def small_loss_mask(logits: Tensor, y: Tensor, keep: float) -> Tensor:
    """(b,): 1 for the int(keep b) samples with the smallest cross-entropy, else 0."""
    losses = F.cross_entropy(logits, y, reduction="none")
    order = torch.argsort(losses, stable=True)
    weights = torch.zeros_like(losses)
    weights[order[: int(keep * len(y))]] = 1.0
    return weights


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
class MaskedOptim(FedELC):
    """See the module docstring."""

    name = "maskedoptim"
    card = Card(
        title="MaskedOptim",
        paper="Jiang et al., Robust Federated Learning against Noisy Clients via Masked "
        "Optimization, arXiv 2506.02079, 2025",
        order=15,
        passes=3.5,
    )
    Options = MaskedOptimOptions
    options: MaskedOptimOptions

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The geometric median of the models and, at the switch, the rule."""
        extras = state.extras
        if self.stage(state) == WARMUP:
            nonempty = [update for update in updates if update.num_samples > 0]
        else:
            verdicts = self.judge(state, updates, self.options.grouping)
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

    def mask_labels(self, logits: Tensor, y: Tensor) -> Tensor:
        """w (b,): the given labels with the smallest losses count."""
        return small_loss_mask(logits, y, self.options.keep)

    def weights_to_send(self, site: Site, payload: Payload, *, noisy: bool) -> Arrays:
        """The trained model; a noisy site moves it towards theta."""
        weights = site.weights()
        return pull_towards(weights, payload.weights, self.options.pull) if noisy else weights


def pull_towards(weights: Arrays, anchor: Arrays, share: float) -> dict[str, np.ndarray]:
    """(1 - share) theta_k + share theta; integer buffers are those of theta_k."""
    result = {}
    for name, value in weights.items():
        if value.dtype.kind == "f":
            value = ((1.0 - share) * value + share * anchor[name]).astype(value.dtype)
        result[name] = value
    return result
