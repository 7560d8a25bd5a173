"""FedFixer (Ji et al., AAAI 2024): two models per site, each trained on what the other one trusts.

At site k a global copy w and a personal model phi start from the received theta; l_c = -log p_c:

    L_CR(y; b) = l_y - b sum_c prior_c l_c         confidence-regularised loss (CORES^2)
    keep(y)    = [ l_y <= sum_c prior_c l_c ]      sieve: p_y is not below the geometric mean of all

    per mini-batch   I_phi, I_w = what phi and w keep (everything while t <= t_sel)
                     J times:  phi <- phi - eta [ grad mean_{I_w} L_CR(phi) + lambda (phi - w)
                                                  + decay phi ]
                     pull:     w   <- w - lambda eta (w - phi)
                     w   <- w - eta grad mean_{I_phi} L_CR(w)     (gradient taken before the pull)
    eta = lr / (1 + b);  b is 0 for t_sel / 5 rounds, rises linearly to b_max over t_sel rounds,
    then stays
    server           theta <- sum_k nbar_k w_k / sum_k nbar_k,
                     nbar_k = samples that w trained on, averaged over the epochs

phi never leaves the site. If no sample is selected anywhere, theta stays (the published code
divides by 1e8 and wipes the model).

Choices. (1) `personal`: the final code starts phi from theta in every round, an earlier revision
kept it: default restart, which also means no private memory. (2) `prior`: the code is uniform,
CORES^2 uses the class shares of the labels, which is better for rare classes: default uniform, as
published. (3) J = 1 instead of 5, whose five extra passes cost as much as five FedAvg rounds. (4) w
does not change during the J steps, so it is computed once (the code repeats it, which only moves
BatchNorm's statistics J times). (5) lambda eta is at most 1 (`limit_pull`): beyond it the pull
overshoots. (6) `clamp`: L_CR has no lower bound for b > 0, so the code adds 1e-8 to p in the
confidence term, and nowhere else; default as published. `official` sets (3) and (5) as in the code,
the other defaults are the code's already; (4) has no switch.

With momentum (official: none) the distance term is part of phi's gradient and goes through it; the
pull on w does not.

A short warm-up with a large b_max can lose a class for good: the confidence term makes the model
certain too early, and the sieve then discards the class.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field

from fedgsca.methods.base import (
    AtLeastOne,
    Card,
    Count,
    Lateness,
    Logged,
    Method,
    NonNegative,
    PublishedOptions,
    ServerState,
    average_models,
    register,
)
from fedgsca.methods.parts.optimisers import SGD
from fedgsca.methods.parts.statistics import log_prior
from fedgsca.methods.site import Site, load_weights, weights_of
from fedgsca.methods.train import Batch, LogitPass, batches, optimiser, softmax_gradient
from fedgsca.support.lazy_torch import F, Tensor, no_grad, torch
from fedgsca.wire import Extra, Payload, Update

Clamp: TypeAlias = Literal["published", "floor"]
# of p in the confidence term
FLOOR = 1e-8


class FedFixerOptions(PublishedOptions):
    """Options of FedFixer; "official" is the published code."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {"personal_steps": 5, "limit_pull": False}

    warmup: Count = Field(
        default=10, description="t_sel, the last round in which every sample is kept; official 10"
    )
    confidence: NonNegative = Field(
        default=2.0,
        description="b_max; official 2 (ten classes), 1 (Clothing1M); "
        "try 1 to 1.5 for four classes",
    )
    distance: NonNegative = Field(
        default=15.0, description="lambda, between the two models; official 15"
    )
    personal_steps: AtLeastOne = Field(
        default=1, description="J, steps of the personal model per batch; official 5, here 1"
    )
    personal_decay: NonNegative = Field(
        default=1e-3, description="weight decay of the personal model; official 1e-3"
    )
    personal: Literal["restart", "keep"] = Field(
        default="restart",
        description="personal model in the next round: from theta (official) or kept",
    )
    prior: Literal["uniform", "labels"] = Field(
        default="uniform",
        description="classes in the confidence term: equal (official) or as in CORES^2",
    )
    clamp: Clamp = Field(
        default="published",
        description="published: l_y as it is, log(p + 1e-8) in the confidence term (official); "
        "floor: p is at least 1e-8 in both",
    )
    limit_pull: bool = Field(
        default=True,
        description="lambda eta is at most 1, beyond which the pull overshoots; official off",
    )


def label_and_mean(
    logits: Tensor, y: Tensor, prior: Tensor, clamp: Clamp = "published"
) -> tuple[Tensor, Tensor]:
    """l_y and sum_c prior_c l_c of every sample, both (n,), from logits (n, C).

    With "floor" a sample with p_y < 1e-8 has no gradient. As published it keeps the one of the
    cross-entropy: a confident mistake can be unlearned.
    """
    log_p = F.log_softmax(logits.float(), dim=1)  # (n, C)
    if clamp == "floor":
        l = -log_p.clamp(min=math.log(FLOOR))
        return l.gather(1, y[:, None]).squeeze(1), l @ prior
    l_y = -log_p.gather(1, y[:, None]).squeeze(1)
    return l_y, -torch.log(log_p.exp() + FLOOR) @ prior


def confidence_loss(l_y: Tensor, l_mean: Tensor, b: float) -> Tensor:
    """(n,): L_CR of every sample."""
    return l_y - b * l_mean


@no_grad
def confidence_gradient(
    logits: Tensor, y: Tensor, keep: Tensor, prior: Tensor, b: float, clamp: Clamp = "published"
) -> Tensor:
    """(n, C): the derivative of mean_keep L_CR by the logits (n, C); 0 if nothing is kept.

    By log p_c it is  b prior_c p_c / (p_c + 1e-8) - [c = y];  with "floor", b prior_c - [c = y]
    where p_c >= 1e-8, else 0. It has the bits of autograd's.
    """
    log_p = F.log_softmax(logits.float(), dim=1)
    kept_samples = keep.to(log_p.dtype)
    weights = (kept_samples / kept_samples.sum().clamp_(min=1.0)).unsqueeze(1)  # of the mean
    gradient = (b * weights) * prior
    if clamp == "published":
        p = log_p.exp()
        gradient.div_(p + FLOOR).mul_(p)
    gradient.scatter_add_(1, y.unsqueeze(1), -weights)
    if clamp == "floor":
        gradient.mul_(log_p >= math.log(FLOOR))
    return softmax_gradient(gradient, log_p)


def sieve(l_y: Tensor, l_mean: Tensor) -> Tensor:
    """(n,) bool: keep(y)."""
    return (l_y <= l_mean).detach()


def confidence_at(epoch: int, span: int, largest: float) -> float:
    """b at a local epoch, counted over all rounds.

    0 for span / 5 epochs, linear to `largest` over `span`, then constant.
    """
    return largest * float(np.clip((epoch - span // 5) / max(span - 1, 1), 0.0, 1.0))


@register
class FedFixer(Method):
    """See the module docstring."""

    name = "fedfixer"
    card = Card(
        title="FedFixer",
        paper="Ji et al., FedFixer: Mitigating Heterogeneous Label Noise in Federated Learning, "
        "AAAI 2024",
        order=6,
        in_paper=True,
        passes=6.0,
    )
    uploads: ClassVar[Mapping[str, Extra]] = {
        "selected": Extra(
            (), "samples on which the model was trained, averaged over local epochs", low=0
        )
    }
    logged: ClassVar[Logged] = Logged(
        # a last batch of one sample is skipped, and counts as neither
        stage="sieve",
        stage_ran=lambda values, n: values.get("selected", n) < n - 1,
    )
    late = Lateness(
        "the server averages models, by a number that each site counts for itself",
        is_tolerated=True,
    )
    Options = FedFixerOptions
    options: FedFixerOptions

    # ---- server ----

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The mean of the models, weighted by nbar_k."""

        def num_selected(update: Update) -> float:
            return float(np.clip(np.nan_to_num(update.extras["selected"]), 0, update.num_samples))

        return average_models(state, updates, num_selected)

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """E epochs with two models, each on the samples that the other one keeps."""
        site.load(payload.weights)
        t = payload.round
        epochs = site.hyper.epochs
        options = self.options
        pair = ModelPair(options, site, t, sieving=t > options.warmup)
        # decisions of the last epoch; a single sample that is skipped counts as clean
        clean = np.ones(site.num_samples, bool)
        num_selected = 0
        for epoch in range(epochs):
            b = confidence_at(t * epochs + epoch, options.warmup * epochs, options.confidence)
            pair.set_confidence(b)
            for batch in batches(site, t, epoch=epoch):
                keep = pair.step(batch)
                clean[batch.rows] = keep
                num_selected += int(keep.sum())
        if t > options.warmup:
            site.note(clean=clean)
        if options.personal == "keep":
            site.remember(t, **weights_of(pair.phi))
        extras = {"selected": np.array(num_selected / epochs)}
        return Update(site.name, site.num_samples, site.weights(), extras)


class ModelPair:
    """w and phi at one site during one round."""

    def __init__(self, options: FedFixerOptions, site: Site, round: int, *, sieving: bool) -> None:
        """`sieving`: each model trains only on what the other one keeps."""
        self.options = options
        self.sieving = sieving
        self.device = site.device
        self.w = site.model
        self.phi = copy.deepcopy(site.model)
        memory = site.recall(round) if options.personal == "keep" else {}
        if memory:
            load_weights(self.phi, memory)
        self.w.train()
        self.phi.train()
        self.w_steps = optimiser(site, round)
        self.lr = self.w_steps.lr
        phi_parameters = list(self.phi.parameters())
        self.phi_steps = SGD(phi_parameters, self.lr, site.hyper.momentum, options.personal_decay)
        self.parameters = list(zip(self.w.parameters(), phi_parameters, strict=True))
        if options.prior == "uniform":
            prior = np.full(site.num_classes, 1.0 / site.num_classes)
        else:
            prior = np.exp(log_prior(site.labels, site.num_classes))
        self.prior = torch.from_numpy(prior / prior.sum()).float().to(site.device)
        self.set_confidence(0.0)

    def set_confidence(self, b: float) -> None:
        """Set b and, with it, eta and the strength of the pull."""
        self.b = b
        self.w_steps.lr = self.phi_steps.lr = self.lr / (1.0 + b)
        self.distance = self.options.distance
        if self.options.limit_pull:
            self.distance = min(self.distance, 1.0 / self.w_steps.lr)

    def step(self, batch: Batch) -> np.ndarray:
        """One mini-batch; (b,) bool: I_phi, the samples on which w was trained."""
        w_pass = LogitPass(self.w, batch.x, self.device)
        w_keep = self._keep(w_pass.logits, batch.y)
        for _ in range(self.options.personal_steps):
            phi_pass = LogitPass(self.phi, batch.x, self.device)
            phi_keep = self._keep(phi_pass.logits, batch.y)
            self.phi_steps.zero_grad()
            phi_pass.backward(self._gradient(phi_pass.logits, batch.y, w_keep))
            self._add_distance()
            self.phi_steps.step()
        self.w_steps.zero_grad()
        w_pass.backward(self._gradient(w_pass.logits, batch.y, phi_keep))
        with torch.no_grad():
            for w, phi in self.parameters:
                w.lerp_(phi, self.distance * self.w_steps.lr)  # w - lambda eta (w - phi)
        self.w_steps.step()
        return phi_keep.cpu().numpy()

    def _keep(self, logits: Tensor, y: Tensor) -> Tensor:
        """(b,) bool: what a model with these logits keeps."""
        if not self.sieving:
            return torch.ones_like(y, dtype=torch.bool)
        return sieve(*label_and_mean(logits, y, self.prior, self.options.clamp))

    def _gradient(self, logits: Tensor, y: Tensor, keep: Tensor) -> Tensor:
        return confidence_gradient(logits, y, keep, self.prior, self.b, self.options.clamp)

    @no_grad
    def _add_distance(self) -> None:
        """Add lambda (phi - w) to the gradient of phi."""
        for w, phi in self.parameters:
            if phi.requires_grad:
                pull = (phi - w).mul_(self.distance)
                phi.grad = pull if phi.grad is None else phi.grad.add_(pull)
