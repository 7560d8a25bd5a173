"""Two stages with a verdict on every site in between, as in FedNoRo, FedELC and MaskedOptim.

    warm-up   all sites train in the same way
    switch    one round: every site sends its mean loss per class, the server forms two groups
    robust    a site compares itself with the broadcast rule and trains as its group does

The rule and the verdict are FedNoRo's (fedgsca/methods/fednoro.py): 2-means, or the vote of
Gaussian mixtures that all three publications use, and no verdict that the server has to hand out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgsca.methods.base import ServerState
from fedgsca.methods.fednoro import grouping, is_noisy
from fedgsca.methods.parts.statistics import class_means, log_prior
from fedgsca.methods.site import Site
from fedgsca.methods.train import Batch, Objective, evaluate_site
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
