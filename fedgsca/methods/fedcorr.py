"""FedCorr (Xu et al., CVPR 2022): find the noisy sites by LID, correct their labels, train on clean sites, then on all.

    rounds   0 ............... T1 .................... T1+T2 ................... T
    stage    0 pre-processing     1 fine-tuning           2 usual
    trains   all sites            sites with mu_k <= 0.1  all sites
    labels   noisy sites, each round:  -                  noisy sites, once:
             the worst int(n mu_k rho)                    every confident prediction

One pre-processing round at site k (mixup, section 3.1; LID, 3.2; correction, 3.3):

    judge    noisy if its LID so far lies above the boundary that the server sent; then mu_k = share of the upper of two
             Gaussians fitted to its own losses, else mu_k = 0
    correct  of the int(n_k mu_k rho) largest losses, those with max p(theta) > conf take theta's prediction as label, for good
    train    theta_k <- mixup cross-entropy + beta mu_k ||theta_k - theta||^2
    look     losses and mean LID of theta_k on D_k;  up: theta_k, mean LID, mu_k

    server:  theta <- sum_k n_k/N theta_k over the sites that trained;  boundary <- best cut of {LID_k} in two groups

The published code runs in one process and reads every site's losses at the server. Here the server knows two numbers per
site; its verdict reaches the site with the next broadcast and is carried out there, on the losses that the site kept: the same
order of steps, one message later. LID_k is the mean over the site's rounds so far; the paper adds up, which gives the same cut
unless a site missed a round. Corrected labels and losses stay in the site's memory.

Where paper, published code and this file differ:
  loss_kind    the code applies softmax twice before the logarithm, so its "losses" are bounded and nearly 1 - p_y. Two
               Gaussians fit that better than cross-entropy with its long tail: `double_softmax` is the default.
  prox         the paper prints the squared norm, the code has the plain one, which pulls with the same force however near:
               theta_k then swings around theta by lr beta mu_k a step, and overshoots where that is large. Default `squared`;
               on frozen features both reach the same validation F1 (74.3, three seeds).
  split_guard  two groups can always be cut out of four numbers. If their range is below 5 % of their mean the sites are one
               group: no verdict, no correction. (`one_group = noisy` lets each judge itself by its own losses instead; where
               the guard acted, that was 3 to 11 points of validation F1 worse.) 0 is the published behaviour.
  fine-tuning  if no site has mu_k <= 0.1 all sites train: the published code always has a "clean" group and never meets this.
  parallel     the code trains one site at a time in stage 1 and averages after each; LID then depends on a site's position.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from fedgsca.aggregate import WeightedMean
from fedgsca.methods.base import Method, MethodOptions, ServerState, register
from fedgsca.methods.parts.lid import mean_lid, two_groups
from fedgsca.methods.parts.mixup import mixup_cross_entropy
from fedgsca.methods.parts.statistics import rounds_of
from fedgsca.selector import clean_probability, fit_selector
from fedgsca.site import Samples, Site
from fedgsca.train import Batch, Objective, evaluate, evaluate_site, proximal, train
from fedgsca.wire import Arrays, Extra, Payload, Update

PRE_PROCESS, FINE_TUNE, USUAL = 0, 1, 2


class FedCorrOptions(MethodOptions):
    stage1: float = Field(
        0.1,
        gt=0,
        le=1,
        description="T1 as a share of the rounds (official 5 of 955 rounds with 5 local epochs)",
    )
    stage2: float = Field(
        0.4, ge=0, le=1, description="T2 as a share of the rounds (official 500 of 955)"
    )
    beta: float = Field(5.0, ge=0, description="strength of the proximal term (official 5)")
    prox: Literal["squared", "norm"] = Field(
        "squared", description="||theta_k - theta||^2 (the paper) or the plain norm (the code)"
    )
    mixup: float = Field(
        1.0, ge=0, description="alpha of mixup's Beta distribution (official 1); 0: no mixup"
    )
    neighbours: int = Field(20, ge=2, description="of a sample for its LID (official 20)")
    loss_kind: Literal["double_softmax", "ce"] = Field(
        "double_softmax", description="losses that tell wrong labels (the code; the paper: ce)"
    )
    relabel_ratio: float = Field(
        0.5,
        ge=0,
        le=1,
        description="rho: share of the estimated wrong labels to look at per round (official 0.5; real noise 0.8)",
    )
    confidence: float = Field(
        0.5,
        ge=0,
        le=1,
        description="probability that a new label needs (official 0.5; real noise 0.9)",
    )
    clean_level: float = Field(
        0.1, ge=0, le=1, description="largest mu_k of a site that fine-tunes (official 0.1)"
    )
    split_guard: float = Field(
        0.05,
        ge=0,
        description="smallest range of the LIDs, relative to their mean, that parts two groups (official 0)",
    )
    one_group: Literal["clean", "noisy"] = Field(
        "clean", description="what all sites count as if they are one group"
    )


@dataclass(frozen=True)
class Memory:
    """What a site keeps between rounds."""

    labels: np.ndarray  # (n,) given labels with corrections
    losses: np.ndarray  # (n,) of the last trained model under these labels; empty: judged already
    lid: float = math.nan  # mean over the rounds so far
    rounds: int = 0  # that count in it
    mu: float = 0.0  # estimated share of wrong labels; 0 at a clean site
    finished: bool = False  # the relabelling after fine-tuning is done

    def to_arrays(self) -> dict[str, np.ndarray]:
        numbers = np.array([self.lid, self.rounds, self.mu, self.finished], dtype=np.float64)
        return {"labels": self.labels, "losses": self.losses, "numbers": numbers}

    @staticmethod
    def of(site: Site, round: int) -> Memory:
        kept = site.recall(round)
        if not kept:
            return Memory(site.labels.copy(), np.empty(0))
        lid, rounds, mu, finished = kept["numbers"].tolist()
        return Memory(kept["labels"], kept["losses"], lid, int(rounds), mu, bool(finished))


def sample_losses(probs: np.ndarray, labels: np.ndarray, kind: str) -> np.ndarray:
    """(n,) cross-entropy of the probabilities, or of their softmax: log sum_j exp(p_j) - p_y."""
    own = probs[np.arange(len(labels)), labels]
    if kind == "ce":
        return np.asarray(-np.log(np.maximum(own, 1e-12)))
    return np.asarray(np.log(np.exp(probs).sum(axis=1)) - own)


def noise_level(losses: np.ndarray) -> float:
    """mu_k: share of the losses in the upper of two Gaussians; 0 where no two can be told apart."""
    fitted = fit_selector(losses, var_floor=1e-6)
    return float(np.mean(clean_probability(losses, fitted) < 0.5)) if fitted else 0.0


def distance(model: nn.Module, anchor: list[Tensor]) -> Tensor:
    """||theta_k - theta||, with gradient 0 (not NaN) at theta_k = theta, where training starts."""
    parts = [
        torch.linalg.vector_norm(p - a) for p, a in zip(model.parameters(), anchor, strict=True)
    ]
    return torch.as_tensor(torch.linalg.vector_norm(torch.stack(parts)))


@register
class FedCorr(Method):
    name = "fedcorr"
    title = "FedCorr"
    paper = (
        "Xu et al., FedCorr: Multi-Stage Federated Learning for Label Noise Correction, CVPR 2022"
    )
    order = 4
    passes = 3.1
    uploads: ClassVar[Mapping[str, Extra]] = {
        "lid": Extra(
            (),
            "mean local intrinsic dimensionality of this site's predictions; NaN: too few samples",
            optional=True,
            low=0,
            nan=True,
        ),
        "noise_level": Extra((), "mu, the estimated share of wrong labels", low=0, high=1),
        "trains": Extra(
            (),
            "1 if the site trained this round, 0 if it returns the weights it received",
            low=0,
            high=1,
        ),
        "corrected": Extra((), "number of labels that were changed so far", low=0),
    }
    downloads: ClassVar[Mapping[str, Extra]] = {
        "stage": Extra((), "0 pre-processing, 1 fine-tuning, 2 usual training", low=0, high=2),
        "lid_boundary": Extra(
            (),
            "sites with a larger LID are noisy; inf: no verdict, -inf: one group, every site judges itself",
            inf=True,
        ),
        "train_limit": Extra((), "largest noise level of a site that fine-tunes", low=0, high=1),
    }
    Options = FedCorrOptions
    options: FedCorrOptions

    # ---- server ----

    def _stage(self, round: int) -> int:
        first = rounds_of(self.options.stage1, self.rounds)
        second = first + (rounds_of(self.options.stage2, self.rounds) if self.options.stage2 else 0)
        return PRE_PROCESS if round < first else FINE_TUNE if round < second else USUAL

    def start(self, weights: Arrays, seed: int) -> ServerState:
        extras = {
            "stage": np.array(self._stage(0)),
            "lid_boundary": np.array(np.inf),
            "train_limit": np.array(self.options.clean_level),
        }
        return ServerState(0, weights, extras)

    def broadcast(self, state: ServerState, round: int) -> Payload:
        return Payload(round, state.weights, {name: state.extras[name] for name in self.downloads})

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        mean, extras = (
            WeightedMean(),
            dict(state.extras),
        )  # also lid/<site> and mu/<site>, the newest known
        for update in updates:
            mean.add(
                update.weights, float(update.num_samples) * float(update.extras["trains"] > 0.5)
            )
            extras[f"mu/{update.site}"] = update.extras["noise_level"]
            if np.isfinite(update.extras.get("lid", np.nan)):
                extras[f"lid/{update.site}"] = update.extras["lid"]
        if state.extras["stage"] == PRE_PROCESS:
            extras["lid_boundary"] = np.array(
                self._boundary(np.array([v for k, v in extras.items() if k.startswith("lid/")]))
            )
        levels = [float(v) for k, v in extras.items() if k.startswith("mu/")]
        some_clean = min(levels, default=0.0) <= self.options.clean_level
        extras["train_limit"] = np.array(self.options.clean_level if some_clean else 1.0)
        extras["stage"] = np.array(self._stage(state.round + 1))
        return ServerState(state.round + 1, mean.result() or dict(state.weights), extras)

    def _boundary(self, lids: np.ndarray) -> float:
        groups = two_groups(lids, guard=self.options.split_guard)
        if groups is not None:
            return groups.boundary
        return -math.inf if len(lids) and self.options.one_group == "noisy" else math.inf

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        stage = int(payload.extras["stage"])
        site.load(payload.weights)
        before = Memory.of(site, payload.round)
        memory = self._correct(site, before, stage, float(payload.extras["lid_boundary"]))
        trains = stage != FINE_TUNE or memory.mu <= float(payload.extras["train_limit"])
        if trains:
            train(
                site,
                payload.round,
                self._objective(site, payload.round, memory.mu if stage == PRE_PROCESS else 0.0),
                labels=memory.labels,
            )
        weights = site.weights()
        if stage == PRE_PROCESS:
            memory = self._look(site, memory)
        if memory is not before:
            site.remember(payload.round, **memory.to_arrays())
        changed = memory.labels != site.labels
        site.note(
            corrected=memory.labels,
            clean=~changed,
            pseudo_rows=np.flatnonzero(changed),
            pseudo_labels=memory.labels[changed],
        )
        extras = {
            "noise_level": np.array(memory.mu),
            "trains": np.array(int(trains)),
            "corrected": np.array(int(changed.sum())),
        }
        if stage == PRE_PROCESS:
            extras["lid"] = np.array(memory.lid)
        return Update(site.name, site.num_samples, weights, extras)

    def _correct(self, site: Site, memory: Memory, stage: int, boundary: float) -> Memory:
        """The verdict on the last pre-processing round and its corrections; after fine-tuning, the final relabelling."""
        if len(memory.losses):
            mu = noise_level(memory.losses) if memory.lid > boundary else 0.0
            count = int(site.num_samples * mu * self.options.relabel_ratio)
            worst = np.argsort(-memory.losses, kind="stable")[:count]
            memory = replace(
                memory, mu=mu, losses=np.empty(0), labels=self._relabel(site, memory.labels, worst)
            )
        if stage == USUAL and not memory.finished:
            rows = np.arange(site.num_samples if memory.mu > 0 else 0)
            memory = replace(memory, finished=True, labels=self._relabel(site, memory.labels, rows))
        return memory

    def _relabel(self, site: Site, labels: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Labels with those of `rows` replaced by the received model's prediction where it is confident."""
        if len(rows) == 0:
            return labels
        rows, whole = np.sort(rows), site.samples
        part = Samples(
            np.asarray(whole.inputs[rows]), labels[rows], whole.num_classes, whole.mean, whole.std
        )
        seen = evaluate(site.model, part, site.device)
        sure = seen.probs.max(axis=1) > self.options.confidence
        labels = labels.copy()
        labels[rows[sure]] = seen.predicted[sure]
        return labels

    def _look(self, site: Site, memory: Memory) -> Memory:
        """Losses and LID of the model just trained."""
        probs = evaluate_site(site).probs
        losses = sample_losses(probs, memory.labels, self.options.loss_kind)
        lid = mean_lid(probs, self.options.neighbours)
        if not math.isfinite(lid):
            return replace(memory, losses=losses)
        past = memory.lid * memory.rounds if memory.rounds else 0.0
        return replace(
            memory, losses=losses, lid=(past + lid) / (memory.rounds + 1), rounds=memory.rounds + 1
        )

    def _objective(self, site: Site, round: int, mu: float) -> Objective:
        mixed = mixup_cross_entropy(self.options.mixup, site.rng(round, "mixup"))
        strength = self.options.beta * mu
        if strength == 0:
            return mixed
        anchor = [parameter.detach().clone() for parameter in site.model.parameters()]

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            if self.options.prox == "squared":
                return mixed(model, batch) + proximal(model, anchor, 2.0 * strength)
            return mixed(model, batch) + strength * distance(model, anchor)

        return objective
