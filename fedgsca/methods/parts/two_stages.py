"""Two stages with a verdict on every site in between, as in FedNoRo, FedELC and MaskedOptim.

    warm-up, T_1 rounds   logit-adjusted cross-entropy  LA = CE(z + log pi_k, y),
                          pi_k = class shares of the given labels
    switch, one round     site:   m_k (C,) = mean loss of the received model on each given class;
                                  sends m_k; trains as in the warm-up
                          server: two groups of sites by m_k (each class scaled to 0..1); the one
                                  with larger losses is noisy
    robust                a site compares its m_k with the rule and trains as its group does

The published codes gather all losses in one process and hand out verdicts by client number. Here
the server broadcasts the rule (lowest and highest loss per class, and the two group centres: 4 C
numbers), and a site compares the m_k in its own memory with it. Nearest-centre is what 2-means
converged to, so site and server agree, no verdict is sent to other sites, and a site that was away
at the switch (or joins later) measures itself on the model that it then receives. With partial
participation, the switch asks all sites. In the robust stage a site adds its verdict to its update.
With two sites, the rule reveals to each the other's class losses; with more sites it reveals
extremes and means. Verdicts are fixed after the switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedgsca.methods.base import (
    Count,
    Lateness,
    Method,
    PublishedOptions,
    ServerState,
    average_models,
)
from fedgsca.methods.parts.groups import Mixture, nearer_second, two_means, vote_of_mixtures
from fedgsca.methods.parts.statistics import class_means, log_prior
from fedgsca.methods.site import Site
from fedgsca.methods.train import Batch, Objective, evaluate_site
from fedgsca.support.lazy_torch import F, Tensor, nn, torch
from fedgsca.wire import SMALLEST_GROUP, Arrays, Extra, Payload, Update

# stages
WARMUP = 0
SWITCH = 1
ROBUST = 2
CLASS_LOSSES = "class_losses"

Grouping = Literal["two-means", "mixtures"]
Distance = Literal["layers", "flat"]


class TwoStageOptions(PublishedOptions):
    """When the warm-up ends."""

    warmup: Count = Field(default=10, description="T_1, rounds of stage 1")


# ---- the rule and the verdicts ----


def grouping(losses: np.ndarray, kind: Grouping = "two-means") -> dict[str, np.ndarray]:
    """The rule from the sites' class losses (K, C); NaN = class absent.

    `low` and `high` are (C,). In `centres` (2, C) the clean group comes first. The rule of
    `mixtures` also has `covariances` (2, C, C) and `shares` (2,).
    """
    finite = np.where(np.isfinite(losses), losses, np.nan)
    is_absent = np.isnan(finite).all(axis=0)
    low = np.nanmin(np.where(is_absent, 0.0, finite), axis=0)
    high = np.nanmax(np.where(is_absent, 0.0, finite), axis=0)
    points = scale_losses(losses, low, high)
    mixture = vote_of_mixtures(points) if kind == "mixtures" else None
    if mixture is not None:
        return {
            "low": low,
            "high": high,
            "centres": mixture.means,
            "covariances": mixture.covariances,
            "shares": mixture.weights,
        }
    centres = two_means(points)
    order = np.argsort(centres.sum(axis=1), kind="stable")
    return {"low": low, "high": high, "centres": centres[order]}


def scale_losses(losses: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(..., C): each class scaled to 0..1 over the sites.

    A class that is absent, or in which all sites are equal, is 0.
    """
    width = high - low
    relative = (losses - low) / np.where(width > 0, width, 1.0)
    return np.asarray(np.where(np.isfinite(losses) & (width > 0), relative, 0.0))


def is_noisy(losses: np.ndarray, rule: Arrays) -> bool:
    """The verdict on a site from its class losses (C,), the same at the site and at the server."""
    point = scale_losses(losses, rule["low"], rule["high"])
    if "covariances" in rule:
        mixture = Mixture(rule["centres"], rule["covariances"], rule["shares"])
        return bool(mixture.in_second(point[None])[0])
    return bool(nearer_second(point, rule["centres"]))


@dataclass(frozen=True)
class Verdicts:
    """The updates of a round after the warm-up, with the group of each."""

    updates: list[Update]
    noisy: list[bool]
    rule: Arrays


@dataclass(frozen=True)
class Standing:
    """A site's place in a round: its group, and what it has to send."""

    noisy: bool
    extras: dict[str, np.ndarray]
    # (C,), for the site's memory; None: not measured yet
    class_losses: np.ndarray | None


class TwoStageMethod(Method):
    """The server of two stages, up to the mean, and a site's place in them."""

    uploads: ClassVar[Mapping[str, Extra]] = {
        CLASS_LOSSES: Extra(
            ("C",),
            "at the switch: mean loss of the received model on each given class; "
            f"NaN: below {SMALLEST_GROUP} images",
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
        "covariances": Extra(
            (2, "C", "C"),
            "with grouping mixtures: covariances of the two groups",
            optional=True,
        ),
        "shares": Extra(
            (2,),
            "with grouping mixtures: weights of the two groups",
            optional=True,
            low=0,
            high=1,
        ),
    }
    late = Lateness(
        "models can be late; a verdict is fixed after the switch", is_tolerated=True, stage="stage"
    )
    options: TwoStageOptions

    # ---- server ----

    def stage(self, state: ServerState) -> int:
        """The stage of the next round."""
        if "centres" in state.extras:
            return ROBUST
        return SWITCH if state.round >= self.options.warmup else WARMUP

    def asks_all_sites(self, state: ServerState) -> bool:
        """The groups are formed from the class losses of all sites."""
        return self.stage(state) == SWITCH

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The global model, the stage and, after the switch, the rule."""
        extras = {"stage": np.array(self.stage(state)), **state.extras}
        return Payload(round, state.weights, extras)

    def judge(self, state: ServerState, updates: Iterable[Update], kind: Grouping) -> Verdicts:
        """The verdicts, at the switch with a new rule; updates without samples are left out."""
        nonempty = [update for update in updates if update.num_samples > 0]
        rule = state.extras
        if self.stage(state) == SWITCH and nonempty:
            losses = np.stack([update.extras[CLASS_LOSSES] for update in nonempty])
            rule = grouping(losses, kind)
            noisy = [is_noisy(update.extras[CLASS_LOSSES], rule) for update in nonempty]
        else:
            noisy = [bool(update.extras.get("noisy", 0)) for update in nonempty]
        return Verdicts(nonempty, noisy, rule)

    # ---- site ----

    def take_stand(self, payload: Payload, site: Site, memory: Arrays) -> Standing:
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


# ---- the mean: weights n_k exp(-d_k) ----
# d_k = distance to the nearest clean model / the largest of these; 0 for clean sites


def average_by_distance(
    state: ServerState, verdicts: Verdicts, kind: Distance = "layers"
) -> ServerState:
    """The mean of the models weighted by n_k exp(-d_k), and the rule."""
    updates = verdicts.updates
    weights = distance_weights(
        [update.weights for update in updates],
        [update.num_samples for update in updates],
        verdicts.noisy,
        kind,
    )
    names = [update.site for update in updates]
    weight_of = dict(zip(names, weights, strict=True))
    mean = average_models(state, updates, lambda update: weight_of[update.site])
    return ServerState(mean.round, mean.weights, verdicts.rule)


def distance_weights(
    models: Sequence[Arrays],
    sizes: Sequence[int],
    noisy: Sequence[bool],
    kind: Distance = "layers",
) -> list[float]:
    """n_k exp(-d_k) for each model; with only one kind of site all d_k are 0."""
    clean_models = [model for model, bad in zip(models, noisy, strict=True) if not bad]
    distances = []
    for model, bad in zip(models, noisy, strict=True):
        if bad and clean_models:
            distances.append(min(model_distance(model, clean, kind) for clean in clean_models))
        else:
            distances.append(0.0)
    largest = max(distances, default=0.0) or 1.0
    return [size * float(np.exp(-d / largest)) for size, d in zip(sizes, distances, strict=True)]


def model_distance(a: Arrays, b: Arrays, kind: Distance = "layers") -> float:
    """Distance of two models over floating-point tensors, BatchNorm statistics included.

    layers: the sum over tensors of the L2 norm of their difference; flat: one L2 norm of all.
    """
    squares = []
    for name in sorted(a):
        if a[name].dtype.kind == "f":
            difference = np.subtract(a[name], b[name], dtype=np.float64)
            squares.append(float(np.square(difference).sum()))
    return float(np.sqrt(squares).sum() if kind == "layers" else np.sqrt(np.sum(squares)))


# ---- LA ----


def site_log_prior(site: Site) -> Tensor:
    """(C,): log pi_k on the site's device."""
    return torch.from_numpy(log_prior(site.labels, site.num_classes)).float().to(site.device)


def adjusted_cross_entropy(site: Site) -> Objective:
    """LA = CE(z + log pi_k, y)."""
    prior = site_log_prior(site)

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.x) + prior, batch.y)

    return objective
