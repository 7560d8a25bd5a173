"""Two stages with a verdict on every site in between, as in FedNoRo, FedELC and MaskedOptim.

    warm-up   all sites train in the same way
    switch    one round: every site sends its mean loss per class, the server forms two groups
    robust    a site compares itself with the broadcast rule and trains as its group does

The rule and the verdict are FedNoRo's (fedgsca/methods/fednoro.py): 2-means, or the vote of
Gaussian mixtures that all three publications use, and no verdict that the server has to hand out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgsca.methods.base import ServerState
from fedgsca.methods.fednoro import grouping, is_noisy
from fedgsca.methods.parts.statistics import class_means, log_prior
from fedgsca.methods.site import Site
from fedgsca.methods.train import (
    Batch,
    Objective,
    batches,
    evaluate,
    evaluate_site,
    optimiser,
    precision,
)
from fedgsca.support.lazy_torch import F, Tensor, nn, torch
from fedgsca.wire import SMALLEST_GROUP, Arrays, Payload, Update

WARMUP = 0
SWITCH = 1
ROBUST = 2
CLASS_LOSSES = "class_losses"


def stage_of(state: ServerState, warmup: int) -> int:
    """The stage of the next round."""
    if "centres" in state.extras:
        return ROBUST
    return SWITCH if state.round >= warmup else WARMUP


def broadcast_stage(state: ServerState, round: int, warmup: int) -> Payload:
    """The global model, the stage and, after the switch, the rule."""
    extras = {"stage": np.array(stage_of(state, warmup)), **state.extras}
    return Payload(round, state.weights, extras)


@dataclass(frozen=True)
class Verdicts:
    """The updates of a round after the warm-up, with the group of each."""

    updates: list[Update]
    noisy: list[bool]
    rule: Arrays


def judge(
    state: ServerState, updates: Iterable[Update], kind: Literal["two-means", "mixtures"]
) -> Verdicts:
    """The verdicts, at the switch with a new rule; updates without samples are left out."""
    nonempty = [update for update in updates if update.num_samples > 0]
    rule = state.extras
    if "centres" not in rule and nonempty:
        rule = grouping(np.stack([update.extras[CLASS_LOSSES] for update in nonempty]), kind)
        noisy = [is_noisy(update.extras[CLASS_LOSSES], rule) for update in nonempty]
    else:
        noisy = [bool(update.extras.get("noisy", 0)) for update in nonempty]
    return Verdicts(nonempty, noisy, rule)


@dataclass(frozen=True)
class Standing:
    """A site's place in a round: its group, and what it has to send."""

    noisy: bool
    extras: dict[str, np.ndarray]
    # (C,), for the site's memory; None: not measured yet
    class_losses: np.ndarray | None


def take_stand(payload: Payload, site: Site, memory: Arrays) -> Standing:
    """Measure the class losses of the received model at the switch; then apply the rule."""
    stage = int(payload.extras["stage"])
    if stage == WARMUP:
        return Standing(noisy=False, extras={}, class_losses=None)
    losses = memory.get(CLASS_LOSSES)
    if stage == SWITCH or losses is None:
        losses = class_means(
            evaluate_site(site).losses, site.labels, site.num_classes, least=SMALLEST_GROUP
        )
    if stage == SWITCH:
        return Standing(noisy=False, extras={CLASS_LOSSES: losses}, class_losses=losses)
    noisy = is_noisy(losses, payload.extras)
    return Standing(noisy, {"noisy": np.array(int(noisy))}, losses)


def adjusted_cross_entropy(site: Site) -> Objective:
    """Logit-adjusted cross-entropy CE(z + log pi_k, y), pi_k = class shares of the given labels."""
    prior = torch.from_numpy(log_prior(site.labels, site.num_classes)).float().to(site.device)

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.x) + prior, batch.y)

    return objective


# ---- labels that are learned together with the model (PENCIL, Yi and Wu 2019) ----
# Sample i has label logits u_i (C,), at first K at its given label, 0 elsewhere; its label is the
# distribution d_i = softmax(u_i). p_i is the model's prediction, y_i the given label:
#
#     L  = L_c / C + alpha L_o + beta L_e / C
#     L_c = mean_i KL(p_i || d_i)                    the model and the labels agree
#     L_o = mean_i w_i (-log d_i(y_i))               the labels stay near the given ones
#     L_e = mean_i H(p_i)                            the model is certain
#     u_i <- u_i - lambda dL/du_i                    once per epoch
#     u_i <- K (softmax(u_i) + p_i) / 2              at the end of a round, p_i of the trained model
#
# w_i is 1 for FedELC; MaskedOptim's mask is 0 for the samples of a batch with the largest losses.
# The published lambda belongs to the mean over a batch of 64. Here the gradient is that of a mean
# over 64 samples whatever the batch size, so that a small last batch moves its labels no faster.


# the batch size of the published code, to which lambda belongs
PUBLISHED_BATCH = 64
# (logits (b, C), labels (b,)) -> weights w (b,) of the given labels
LabelMask = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class CorrectionSettings:
    """The constants of the loss and of the labels' steps."""

    # K, lambda, alpha, beta of the module docstring
    scale: float
    rate: float
    given_weight: float
    entropy_weight: float


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
