"""FedELC (Jiang et al., CIKM 2024): noisy sites learn their labels together with the model.

    stage 1, warm-up   site:   logit-adjusted cross-entropy LA (as FedNoRo)
                       server: FedAvg
    switch, one round  site:   sends its mean loss per class; trains as in stage 1
                       server: two groups of sites; the one with larger losses is noisy
    stage 2            clean site:  LA
                       noisy site:  L = L_c / C + alpha L_o + beta L_e / C on labels that are
                                    learned
                       server: weights n_k exp(-d_k), d_k the distance to the nearest clean model

Sample i has label logits u_i (C,), at first K at its given label, 0 elsewhere; its label is the
distribution d_i = softmax(u_i) (PENCIL, Yi and Wu 2019). p_i is the model's prediction, y_i the
given label:

    L_c = mean_i KL(p_i || d_i)                    the model and the labels agree
    L_o = mean_i w_i (-log d_i(y_i))               the labels stay near the given ones; w_i = 1
    L_e = mean_i H(p_i)                            the model is certain
    u_i <- u_i - lambda dL/du_i                    once per epoch
    u_i <- K (softmax(u_i) + p_i) / 2              at the end of a round, p_i of the trained model

The learned labels stay at the site. Stages, verdicts and weights are those of FedNoRo
(fedgsca/methods/parts/two_stages.py).

Where publication, published code and this file differ. We have read the code and the abstract, not
every equation of the paper; points that we could only take from the code are marked (code).
  grouping  the code votes over nine Gaussian mixtures (`mixtures`); default is 2-means.
  labels    at the end of a round they become K times the mean of themselves and the model's
            predictions (code).
  lambda    1000 for the mean over 64 samples, whatever the batch size here, so that a small last
            batch moves its labels no faster; the code drops the last incomplete batch of an epoch,
            here its labels learn too.
  epochs    the code has five local epochs and thus five steps of the labels in a round; the number
            here is `train.epochs`.
  teacher   the code computes a teacher's weight as FedNoRo does, and does not use it.
  warm-up   official 20 of 120 rounds; here 10 rounds, as for FedNoRo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedgsca.methods.base import (
    Card,
    Count,
    NonNegative,
    Positive,
    SampleMemory,
    ServerState,
    average_models,
    register,
)
from fedgsca.methods.parts.two_stages import (
    CLASS_LOSSES,
    WARMUP,
    Grouping,
    TwoStageMethod,
    TwoStageOptions,
    adjusted_cross_entropy,
    average_by_distance,
)
from fedgsca.methods.site import Samples, Site
from fedgsca.methods.train import batches, evaluate, optimiser, precision, train
from fedgsca.support.lazy_torch import F, Tensor, torch
from fedgsca.wire import Arrays, Extra, Payload, Update

# the batch size of the published code, to which lambda belongs
PUBLISHED_BATCH = 64
# (logits (b, C), labels (b,)) -> weights w (b,) of the given labels
LabelMask = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class CorrectionSettings:
    """The constants of the loss and of the labels' steps."""

    # K, lambda, alpha, beta
    scale: float
    rate: float
    given_weight: float
    entropy_weight: float


class FedELCOptions(TwoStageOptions):
    """Options of FedELC; "official" is the published code."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {
        "warmup": 20,
        "grouping": "mixtures",
    }

    warmup: Count = Field(default=10, description="rounds of stage 1; official 20 of 120 rounds")
    scale: Positive = Field(
        default=10.0, description="K, the logit of the given label at first; official 10"
    )
    label_rate: NonNegative = Field(
        default=1000.0, description="lambda, learning rate of the labels; official 1000"
    )
    given_weight: NonNegative = Field(
        default=0.5, description="alpha, weight of the given labels; official 0.5"
    )
    entropy_weight: NonNegative = Field(
        default=0.2, description="beta, weight of the predictions' entropy; official 0.2"
    )
    grouping: Grouping = Field(
        default="two-means",
        description="clean and noisy sites: 2-means, or a vote of Gaussian mixtures (official)",
    )


def initial_logits(labels: np.ndarray, num_classes: int, scale: float) -> np.ndarray:
    """u (n, C): `scale` at the given label, 0 elsewhere."""
    logits = np.zeros((len(labels), num_classes), np.float32)
    logits[np.arange(len(labels)), labels] = scale
    return logits


def correction_loss(
    logits: Tensor, label_logits: Tensor, y: Tensor, settings: CorrectionSettings, mask: Tensor
) -> Tensor:
    """L of a batch: logits (b, C) of the model, label_logits u (b, C), y (b,), mask w (b,)."""
    num_classes = logits.shape[1]
    log_p = F.log_softmax(logits.float(), dim=1)
    log_d = F.log_softmax(label_logits, dim=1)
    p = log_p.exp()
    entropy = -(p * log_p).sum(dim=1).mean()
    agreement = -(p * log_d).sum(dim=1).mean() - entropy
    given = (-log_d.gather(1, y[:, None]).squeeze(1) * mask).mean()
    return (
        agreement / num_classes
        + settings.given_weight * given
        + settings.entropy_weight * entropy / num_classes
    )


def merged_logits(label_logits: np.ndarray, probs: np.ndarray, scale: float) -> np.ndarray:
    """u (n, C) for the next round: `scale` times the mean of the labels and the predictions."""
    logits = label_logits - label_logits.max(axis=1, keepdims=True)
    labels = np.exp(logits)
    labels /= labels.sum(axis=1, keepdims=True)
    return np.asarray(0.5 * scale * (labels + probs), dtype=np.float32)


def train_with_labels(
    site: Site,
    round: int,
    label_logits: np.ndarray,
    settings: CorrectionSettings,
    mask: LabelMask,
) -> np.ndarray:
    """E epochs on the model and the labels; u (n, C) for the next round, from u (n, C) of this one.

    The model of the site is trained in place.
    """
    site.model.train()
    sgd = optimiser(site, round)
    u = torch.from_numpy(np.array(label_logits)).to(site.device)
    for epoch in range(site.hyper.epochs):
        gradient = torch.zeros_like(u)
        for batch in batches(site, round, epoch=epoch):
            rows = torch.from_numpy(batch.rows).to(site.device)
            batch_u = u[rows].requires_grad_()
            sgd.zero_grad()
            with precision(site.device):
                logits = site.model(batch.x)
            weights = mask(logits.detach().float(), batch.y)
            loss = correction_loss(logits, batch_u, batch.y, settings, weights)
            torch.autograd.backward(loss)
            sgd.step()
            assert batch_u.grad is not None
            gradient[rows] = batch_u.grad * (len(rows) / PUBLISHED_BATCH)
        u = u - settings.rate * gradient
    probs = evaluate(site.model, site.samples, site.device).probs
    return merged_logits(u.cpu().numpy(), probs, settings.scale)


@register
class FedELC(TwoStageMethod):
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
        **TwoStageMethod.uploads,
        "corrected": Extra((), "labels that differ from the given ones", diagnostic=True, low=0),
    }
    Options: ClassVar[type[FedELCOptions]] = FedELCOptions
    options: FedELCOptions

    def new_memory(self, samples: Samples, site: str, seed: int) -> SampleMemory:
        """Learning a label begins with the given one."""
        labels = initial_logits(samples.labels, samples.num_classes, self.options.scale)
        return {**super().new_memory(samples, site, seed), "": {"labels": labels}}

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """FedAvg in the warm-up; then the mean weighted by n_k exp(-d_k), and the rule."""
        if self.stage(state) == WARMUP:
            return average_models(state, updates)
        verdicts = self.judge(state, updates, self.options.grouping)
        return average_by_distance(state, verdicts)

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Train with LA or, at a noisy site, with labels that are learned."""
        site.load(payload.weights)
        if site.num_samples == 0:
            return Update(site.name, 0, site.weights(), {"corrected": np.array(0)})
        memory = dict(site.recall(payload.round))
        stand = self.take_stand(payload, site, memory)
        if stand.class_losses is not None:
            memory[CLASS_LOSSES] = stand.class_losses
        num_corrections = 0
        if stand.noisy:
            memory["labels"] = self._learn_labels(payload.round, site, memory)
            num_corrections = site.note_corrections(memory["labels"].argmax(axis=1))
        else:
            train(site, payload.round, adjusted_cross_entropy(site))
        if memory:
            site.remember(payload.round, **memory)
        extras = {**stand.extras, "corrected": np.array(num_corrections)}
        weights = self.weights_to_send(site, payload, noisy=stand.noisy)
        return Update(site.name, site.num_samples, weights, extras)

    def _learn_labels(self, round: int, site: Site, memory: Arrays) -> np.ndarray:
        """u (n, C) after a round of training."""
        options = self.options
        settings = CorrectionSettings(
            options.scale, options.label_rate, options.given_weight, options.entropy_weight
        )
        first = initial_logits(site.labels, site.num_classes, options.scale)
        labels = memory.get("labels", first)
        return train_with_labels(site, round, labels, settings, self.mask_labels)

    # ---- the two steps at a noisy site that MaskedOptim changes ----

    def mask_labels(self, logits: Tensor, y: Tensor) -> Tensor:
        """w (b,) for logits (b, C) and given labels (b,): every given label counts."""
        return torch.ones_like(y, dtype=torch.float32)

    def weights_to_send(self, site: Site, payload: Payload, *, noisy: bool) -> Arrays:
        """The trained model."""
        return site.weights()
