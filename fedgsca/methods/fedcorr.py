"""FedCorr (Xu et al., CVPR 2022): find noisy sites by LID, correct their labels, then train on all.

    rounds   0 ............... T1 .................... T1+T2 ................... T
    stage    0 pre-processing     1 fine-tuning           2 usual
    trains   all sites            sites with mu_k <= 0.1  all sites
    labels   noisy sites, each round:  -                  noisy sites, once:
             the worst int(n mu_k rho)                    every confident prediction

One pre-processing round at site k (mixup, section 3.1; LID, 3.2; correction, 3.3):

    judge    noisy if its LID so far is above the boundary that the server sent; then mu_k = share
             of the upper of two Gaussians fitted to its own losses, else mu_k = 0
    correct  of the int(n_k mu_k rho) largest losses, those with max p(theta) > conf take theta's
             prediction as label, for good
    train    theta_k <- mixup cross-entropy + beta mu_k ||theta_k - theta||^2
    measure  losses and mean LID of theta_k on D_k;  up: theta_k, mean LID, mu_k

    server:  theta <- sum_k n_k/N theta_k over the sites that trained
             boundary <- best cut of {LID_k} in two groups

The published code runs in one process and reads every site's losses at the server. Here the server
knows two numbers per site; its verdict reaches the site with the next broadcast and is carried out
there, on the losses that the site stored: the same order of steps, one message later. LID_k is the
mean over the site's rounds so far; the paper adds up, which gives the same cut unless a site missed
a round. Corrected labels and losses stay in the site's memory. With partial participation, the
rounds of pre-processing ask all sites; a site that missed all of them (or joins later) measures
losses and LID of the model that it receives first.

Where paper, published code and this file differ:
  loss_kind    the code applies softmax twice before the logarithm, so its "losses" are bounded and
               nearly 1 - p_y. Two Gaussians fit that better than cross-entropy with its long tail:
               `double_softmax` is the default.
  prox         the paper prints the squared norm, the code has the plain one, which pulls with the
               same force however near: theta_k then oscillates around theta by lr beta mu_k a step,
               and overshoots where that is large. Default `squared`. A step lr moves theta_k by the
               share 2 lr beta mu_k of its distance to theta; more than all of it, possible from
               lr = 0.1 on, would overshoot. So the share is at most 1.
  split_guard  two groups can always be cut out of four numbers. If their range is below 5 % of
               their mean the sites are one group: no verdict, no correction. (`one_group = noisy`
               lets each site judge itself by its own losses instead.) 0 is the published behaviour.
  grouping     the code fits a mixture of two Gaussians to the LIDs (`mixture`); on four numbers its
               variances come from one or two of them. Default `cut`, the best division by least
               squares.
  two_modes    the code always divides a noisy site's losses in two. Default: mu_k = 0 unless there
               are two separate components, at least 0.01 apart (cross-entropy: 0.1); the bounded
               losses span about 1.
  fine-tuning  if no site has mu_k <= 0.1 all sites train: the published code always has a "clean"
               group and never meets this case.
  parallel     the code trains one site at a time in stage 1 and averages after each; LID then
               depends on a site's position. There is no switch.
  stages       in the code every client trains about 5, 50 and 45 times in the three stages.
`official` sets all switches as in the code. benchmarks/fedcorr_check.py compares this file with
the published loop, written again, on the same arrays: docs/methods.md has the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedgsca.methods.aggregate import WeightedMean
from fedgsca.methods.base import (
    Card,
    Lateness,
    Logged,
    Method,
    NonNegative,
    PositiveShare,
    PublishedOptions,
    SampleMemory,
    ServerState,
    Share,
    register,
    rounds_of,
)
from fedgsca.methods.parts.groups import best_cut, fit_two_groups
from fedgsca.methods.parts.mixup import mixup_cross_entropy
from fedgsca.methods.parts.statistics import double_softmax_losses, mean_lid
from fedgsca.methods.site import Samples, Site
from fedgsca.methods.train import Batch, Objective, evaluate, evaluate_site, proximal, train
from fedgsca.selector import clean_probability, fit_selector
from fedgsca.support.lazy_torch import Tensor, nn, torch
from fedgsca.wire import Arrays, Extra, Payload, Update

# stages
PRE_PROCESS = 0
FINE_TUNE = 1
USUAL = 2


# smallest distance of two components of losses: about a hundredth of their range
MIN_GAPS = {"double_softmax": 0.01, "ce": 0.1}


class FedCorrOptions(PublishedOptions):
    """Options of FedCorr; "official" is the published code."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {
        "stage1": 0.05,
        "stage2": 0.5,
        "prox": "norm",
        "loss_kind": "double_softmax",
        "split_guard": 0.0,
        "grouping": "mixture",
        "two_modes": False,
    }

    stage1: PositiveShare = Field(
        default=0.1,
        description="T1 as a share of the rounds "
        "(official: 5 of the 100 rounds in which a client takes part)",
    )
    stage2: Share = Field(
        default=0.4,
        description="T2 as a share of the rounds "
        "(official: 50 of the 100 rounds in which a client takes part)",
    )
    beta: NonNegative = Field(default=5.0, description="strength of the proximal term (official 5)")
    prox: Literal["squared", "norm"] = Field(
        default="squared",
        description="||theta_k - theta||^2 (the paper) or the plain norm (the code)",
    )
    mixup: NonNegative = Field(
        default=1.0, description="alpha of mixup's Beta distribution (official 1); 0: no mixup"
    )
    neighbours: int = Field(default=20, ge=2, description="of a sample for its LID (official 20)")
    loss_kind: Literal["double_softmax", "ce"] = Field(
        default="double_softmax",
        description="losses that reveal wrong labels (the code; the paper: ce)",
    )
    relabel_ratio: Share = Field(
        default=0.5,
        description="rho: share of the estimated wrong labels to review per round "
        "(official 0.5; real noise 0.8)",
    )
    confidence: Share = Field(
        default=0.5, description="probability that a new label needs (official 0.5; real noise 0.9)"
    )
    clean_level: Share = Field(
        default=0.1, description="largest mu_k of a site that fine-tunes (official 0.1)"
    )
    split_guard: NonNegative = Field(
        default=0.05,
        description="smallest range of the LIDs, relative to their mean, that makes two groups "
        "(official 0)",
    )
    grouping: Literal["cut", "mixture"] = Field(
        default="cut",
        description="clean and noisy sites: the best cut of their LIDs, or a mixture (official)",
    )
    two_modes: bool = Field(
        default=True,
        description="mu_k = 0 unless a site's losses have two separate components (official off)",
    )
    one_group: Literal["clean", "noisy"] = Field(
        default="clean", description="what all sites count as if they are one group"
    )


@dataclass(frozen=True)
class CorrectionMemory:
    """What a site remembers between rounds. It never leaves the site."""

    # (n,) given labels with corrections
    labels: np.ndarray
    # (n,) losses of the last trained model under these labels; empty: already judged
    losses: np.ndarray
    # mean over the rounds so far
    lid: float = math.nan
    # number of rounds in that mean
    rounds: int = 0
    # estimated share of wrong labels; 0 at a clean site
    mu: float = 0.0
    # the relabelling after fine-tuning is done
    is_final: bool = False

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The named arrays for `Site.remember`."""
        numbers = np.array([self.lid, self.rounds, self.mu, self.is_final], dtype=np.float64)
        return {"labels": self.labels, "losses": self.losses, "numbers": numbers}

    @staticmethod
    def recall(site: Site, round: int) -> CorrectionMemory:
        """The memory as it was before `round`; at first, the given labels."""
        arrays = site.recall(round)
        if not arrays:
            return CorrectionMemory(site.labels.copy(), np.empty(0))
        lid, rounds, mu, is_final = arrays["numbers"].tolist()
        return CorrectionMemory(
            arrays["labels"], arrays["losses"], lid, int(rounds), mu, bool(is_final)
        )


def sample_losses(probs: np.ndarray, labels: np.ndarray, kind: str) -> np.ndarray:
    """(n,): cross-entropy of the probabilities (n, C), or of their softmax."""
    if kind == "double_softmax":
        return double_softmax_losses(probs, labels)
    return np.asarray(-np.log(np.maximum(probs[np.arange(len(labels)), labels], 1e-12)))


def noise_level(
    losses: np.ndarray, min_gap: float = MIN_GAPS["double_softmax"], *, two_modes: bool = True
) -> float:
    """mu_k: share of the losses (n,) in the upper of two Gaussians.

    0 where there are no two separate ones, unless `two_modes` is off.
    """
    fit = fit_selector(losses, var_floor=1e-6, min_gap=min_gap, validity_test=two_modes)
    if fit is None:
        return 0.0
    return float(np.mean(clean_probability(losses, fit) < 0.5))


def _mixture_boundary(lids: np.ndarray, default: float) -> float:
    """Between the two groups of a mixture fitted to the finite ones of `lids` (K,).

    A mixture can put the largest LIDs, or all of them, into the group with the smaller mean. Sites
    judge themselves by one boundary, so the groups are then those of `default`.
    """
    points = np.sort(lids[np.isfinite(lids)])[:, None]
    mixture = fit_two_groups(points)
    if mixture is None:
        return default
    in_second = mixture.in_second(points)
    first = int(np.argmax(in_second))
    if not in_second.any() or first == 0 or not in_second[first:].all():
        return default
    return float(0.5 * (points[first - 1, 0] + points[first, 0]))


def distance(model: nn.Module, anchor: list[Tensor]) -> Tensor:
    """||theta_k - theta||, with gradient 0 (not NaN) at theta_k = theta, where training starts."""
    norms = []
    for parameter, value in zip(model.parameters(), anchor, strict=True):
        norms.append(torch.linalg.vector_norm(parameter - value))
    return torch.as_tensor(torch.linalg.vector_norm(torch.stack(norms)))


@register
class FedCorr(Method):
    """See the module docstring."""

    name = "fedcorr"
    card = Card(
        title="FedCorr",
        paper="Xu et al., FedCorr: Multi-Stage Federated Learning for Label Noise Correction, "
        "CVPR 2022",
        order=4,
        in_paper=True,
        passes=3.1,
    )
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
            "sites with a larger LID are noisy; "
            "inf: no verdict, -inf: one group, every site judges itself",
            inf=True,
        ),
        "train_limit": Extra((), "largest noise level of a site that fine-tunes", low=0, high=1),
    }
    logged: ClassVar[Logged] = Logged(
        stage="label correction", stage_ran=lambda values, _: values.get("corrected", 0) > 0
    )
    late = Lateness(
        "the server averages models and keeps the newest LID and noise level of every site",
        is_tolerated=True,
        stage="stage",
    )
    Options = FedCorrOptions
    options: FedCorrOptions

    # ---- server ----

    def _stage(self, round: int) -> int:
        first = rounds_of(self.options.stage1, self.rounds)
        if round < first:
            return PRE_PROCESS
        second = rounds_of(self.options.stage2, self.rounds) if self.options.stage2 else 0
        return FINE_TUNE if round < first + second else USUAL

    def start(self, weights: Arrays, seed: int) -> ServerState:
        """The initial model, pre-processing, no verdict yet."""
        extras = {
            "stage": np.array(self._stage(0)),
            "lid_boundary": np.array(np.inf),
            "train_limit": np.array(self.options.clean_level),
        }
        return ServerState(0, weights, extras)

    def new_memory(self, samples: Samples, site: str, seed: int) -> SampleMemory:
        """The given label, of which no loss is known."""
        labels, losses = samples.labels.copy(), np.zeros(len(samples))
        return {**super().new_memory(samples, site, seed), "": {"labels": labels, "losses": losses}}

    def asks_all_sites(self, state: ServerState) -> bool:
        """Pre-processing visits every site, as in the paper: each needs a verdict on its labels."""
        return int(state.extras["stage"]) == PRE_PROCESS

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The mean of the models that were trained, and a new boundary of the LIDs."""
        mean = WeightedMean()
        # beside the downloads: lid/<site> and mu/<site>, the newest of every site
        extras = dict(state.extras)
        for update in updates:
            trains = float(update.extras["trains"] > 0.5)
            mean.add(update.weights, float(update.num_samples) * trains)
            extras[f"mu/{update.site}"] = update.extras["noise_level"]
            if np.isfinite(update.extras.get("lid", np.nan)):
                extras[f"lid/{update.site}"] = update.extras["lid"]
        if state.extras["stage"] == PRE_PROCESS:
            lids = [value for name, value in extras.items() if name.startswith("lid/")]
            extras["lid_boundary"] = np.array(self._boundary(np.array(lids)))
        levels = [float(value) for name, value in extras.items() if name.startswith("mu/")]
        has_clean_site = min(levels, default=0.0) <= self.options.clean_level
        extras["train_limit"] = np.array(self.options.clean_level if has_clean_site else 1.0)
        extras["stage"] = np.array(self._stage(state.round + 1))
        return ServerState(state.round + 1, mean.result() or dict(state.weights), extras)

    def _boundary(self, lids: np.ndarray) -> float:
        cut = best_cut(lids, guard=self.options.split_guard)
        if cut is not None:
            return _mixture_boundary(lids, cut) if self.options.grouping == "mixture" else cut
        return -math.inf if len(lids) and self.options.one_group == "noisy" else math.inf

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Correct labels, train on them and, in pre-processing, measure losses and LID."""
        stage = int(payload.extras["stage"])
        site.load(payload.weights)
        memory = CorrectionMemory.recall(site, payload.round)
        old_memory = memory
        if stage != PRE_PROCESS and site.num_samples and not site.recall(payload.round):
            # it missed all of the pre-processing: the received model takes the place of its own
            memory = self._measure(site, memory)
        memory = self._correct(site, memory, stage, float(payload.extras["lid_boundary"]))
        trains = stage != FINE_TUNE or memory.mu <= float(payload.extras["train_limit"])
        if trains:
            mu = memory.mu if stage == PRE_PROCESS else 0.0
            objective = self._objective(site, payload.round, mu)
            train(site, payload.round, objective, labels=memory.labels)
        weights = site.weights()
        if stage == PRE_PROCESS:
            memory = self._measure(site, memory)
        if memory is not old_memory:
            site.remember(payload.round, **memory.to_arrays())
        extras = {
            "noise_level": np.array(memory.mu),
            "trains": np.array(int(trains)),
            "corrected": np.array(site.note_corrections(memory.labels)),
        }
        if stage == PRE_PROCESS:
            extras["lid"] = np.array(memory.lid)
        return Update(site.name, site.num_samples, weights, extras)

    def _correct(
        self, site: Site, memory: CorrectionMemory, stage: int, boundary: float
    ) -> CorrectionMemory:
        """The verdict on the last pre-processing round and its corrections.

        After fine-tuning: the final relabelling.
        """
        if len(memory.losses):
            mu = 0.0
            if memory.lid > boundary:
                gap = MIN_GAPS[self.options.loss_kind]
                mu = noise_level(memory.losses, gap, two_modes=self.options.two_modes)
            count = int(site.num_samples * mu * self.options.relabel_ratio)
            worst = np.argsort(-memory.losses, kind="stable")[:count]
            labels = self._relabel(site, memory.labels, worst)
            memory = replace(memory, mu=mu, losses=np.empty(0), labels=labels)
        if stage == USUAL and not memory.is_final:
            rows = np.arange(site.num_samples if memory.mu > 0 else 0)
            labels = self._relabel(site, memory.labels, rows)
            memory = replace(memory, is_final=True, labels=labels)
        return memory

    def _relabel(self, site: Site, labels: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(n,) labels, those of `rows` replaced by the received model's confident predictions."""
        if len(rows) == 0:
            return labels
        rows = np.sort(rows)
        inputs = np.asarray(site.samples.inputs[rows])
        evaluation = evaluate(
            site.model, replace(site.samples, inputs=inputs, labels=labels[rows]), site.device
        )
        confident = evaluation.probs.max(axis=1) > self.options.confidence
        labels = labels.copy()
        labels[rows[confident]] = evaluation.predictions[confident]
        return labels

    def _measure(self, site: Site, memory: CorrectionMemory) -> CorrectionMemory:
        """Losses and LID of the model just trained."""
        probs = evaluate_site(site).probs
        losses = sample_losses(probs, memory.labels, self.options.loss_kind)
        lid = mean_lid(probs, self.options.neighbours)
        if not math.isfinite(lid):
            return replace(memory, losses=losses)
        past = memory.lid * memory.rounds if memory.rounds else 0.0
        rounds = memory.rounds + 1
        return replace(memory, losses=losses, lid=(past + lid) / rounds, rounds=rounds)

    def _objective(self, site: Site, round: int, mu: float) -> Objective:
        mixup_loss = mixup_cross_entropy(self.options.mixup, site.rng(round, "mixup"))
        strength = self.options.beta * mu
        if strength == 0:
            return mixup_loss
        anchor = [parameter.detach().clone() for parameter in site.model.parameters()]
        stable_strength = min(2.0 * strength, 1.0 / site.hyper.lr_at(round))

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            if self.options.prox == "squared":
                return mixup_loss(model, batch) + proximal(model, anchor, stable_strength)
            return mixup_loss(model, batch) + strength * distance(model, anchor)

        return objective
