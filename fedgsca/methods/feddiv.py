"""FedDiv (Li et al., AAAI 2024): one noise filter for all sites, and samples that models agree on.

One round at site k, given the global model theta and the global filter W (two Gaussians over
losses, as FedGSCA's selector):

    split      l_i = loss of theta on (x_i, y_i)
               clean: P("clean" | l_i; W) >= 0.5;   delta_k = share of the others
    relabel    others with max p(theta) >= zeta take theta's prediction as label for this round
    re-select  (PCS) of both kinds, those on which theta and the site's de-biased model of its last
               round agree:  argmax p(theta) = argmax softmax(z_k - xi log phat_k)
               a site with delta_k < 0.1 trains on all given labels instead
    train      theta_k <- mixup cross-entropy (+ reg KL(uniform || mean p) with `prior_weight`)
    filter     W_k <- EM on the losses of theta_k with the given labels, started at W
               phat_k <- m phat_k + (1 - m) mean softmax(z_k)

    server:    theta <- sum_k n_k/N theta_k;   W <- sum_k n_k/N W_k over the newest W_k of all sites

Where paper, published code and this file differ:
  filter     At first there is none; the published code starts with random Gaussians. Sites fit W_k
             in the warm-up already, so that selection begins with a fitted filter. EM also starts
             once at quantiles of the data and runs to convergence (paper; the code: three steps
             from W). A site whose losses have no two modes sends nothing.
  variance   the code multiplies each variance by the squared share (n_k/N)^2, which shrinks W's
             variances about K-fold; the paper and the default here average linearly (`variance`).
  loss_kind  the code takes softmax twice before the logarithm; default as in the code, `ce` is the
             paper.
  scaling    the code scales a site's losses to 0..1. The largest loss of a clean site then is as
             large as that of a noisy one, so that one filter for both calls part of the clean
             site noisy (a test shows it); default `none`, `site` is the code.
  zeta       0.75 in the paper, 0 in the code's defaults; default 0.75.
  xi, m      0.5 and 0.2 in the paper, 0.2 and 0.5 in the code's defaults; default the paper.
  phat       the code updates it only with samples whose de-biased confidence is above 0.85, with
             the plain probabilities; here too.
  relabel_from, relabel_level
             the code re-selects only from a site's sixth round after the warm-up, and relabels only
             where delta_k > 0.2; the paper has neither. Default as in the code.
  warm-up    the code trains one site after the other, five times; here five rounds of all sites.
  small set  a selection of at most one batch: the site returns theta (code).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedgsca.methods.base import (
    Card,
    Count,
    Lateness,
    Method,
    NonNegative,
    Positive,
    PublishedOptions,
    SampleMemory,
    ServerState,
    Share,
    ShareBelowOne,
    average_models,
    register,
)
from fedgsca.methods.parts.mixup import mixup_cross_entropy
from fedgsca.methods.parts.statistics import double_softmax_losses, unit_range
from fedgsca.methods.site import Evaluation, Samples, Site
from fedgsca.methods.train import Batch, Objective, evaluate, evaluate_site, train
from fedgsca.selector import (
    NO_SELECTOR,
    Selector,
    clean_probability,
    fit_selector,
    nearest_selector,
)
from fedgsca.support.lazy_torch import Tensor, nn, torch
from fedgsca.wire import Arrays, Extra, Payload, Update

# de-biased confidence above which a sample counts for phat (published code)
_CONFIDENT = 0.85
# of means, variances and weights under `privacy`: losses of a double softmax and up to ten classes
_FILTER_BOUNDS = ((0.0, 2.0), (0.5, 3.0), (1e-4, 0.5), (1e-4, 0.5), (0.01, 0.99), (0.01, 0.99))
# names of the server's memory: a filter (6,) and n_k of every site that has sent one
_CACHE = "filter/"


class FedDivOptions(PublishedOptions):
    """Options of FedDiv; "official" is the published code."""

    OFFICIAL: ClassVar[Mapping[str, object]] = {
        "confidence": 0.0,
        "xi": 0.2,
        "memory": 0.5,
        "scaling": "site",
        "variance": "squared",
        "var_floor": 1e-6,
    }

    warmup: Count = Field(
        default=5, description="rounds on all given labels; official 5 passes over all sites"
    )
    threshold: Share = Field(
        default=0.5, description="smallest clean probability of a clean sample"
    )
    clean_level: Share = Field(
        default=0.1, description="delta below which a site trains on all its labels"
    )
    confidence: Share = Field(
        default=0.75, description="zeta, for a new label; official 0, the paper 0.75"
    )
    xi: NonNegative = Field(
        default=0.5, description="strength of the de-biasing; official 0.2, the paper 0.5"
    )
    memory: ShareBelowOne = Field(
        default=0.2, description="m, weight of the past in phat; official 0.5, the paper 0.2"
    )
    relabel_from: Count = Field(
        default=5,
        description="rounds after the warm-up with clean samples only; official 5, the paper 0",
    )
    relabel_level: Share = Field(
        default=0.2, description="delta above which new labels are used; official 0.2, the paper 0"
    )
    mixup: NonNegative = Field(
        default=1.0, description="alpha of mixup's Beta distribution (official 1); 0: none"
    )
    prior_weight: NonNegative = Field(
        default=0.0,
        description="weight of KL(uniform || mean prediction); the paper: 1 for non-IID data",
    )
    loss_kind: Literal["double_softmax", "ce"] = Field(
        default="double_softmax", description="losses of the filter (the code; the paper: ce)"
    )
    scaling: Literal["none", "site"] = Field(
        default="none", description="losses of the filter as they are, or 0..1 at each site (code)"
    )
    variance: Literal["linear", "squared"] = Field(
        default="linear",
        description="weights of the sites' variances: n_k/N (the paper) or its square (the code)",
    )
    var_floor: Positive = Field(
        default=1e-3, description="lower bound of both variances; official 1e-6"
    )


@dataclass(frozen=True)
class TrainingChoice:
    """What a site trains on in a round."""

    # (m,) rows and the label of each
    rows: np.ndarray
    labels: np.ndarray
    # (n,) bool: the filter's verdict
    clean: np.ndarray
    probability: np.ndarray
    delta: float


def debiased_labels(logits: np.ndarray, prior: np.ndarray, xi: float) -> np.ndarray:
    """(n,): argmax of z - xi log phat for logits (n, C) and a prior (C,)."""
    return np.asarray((logits - xi * np.log(prior)).argmax(axis=1))


def update_prior(prior: np.ndarray, logits: np.ndarray, xi: float, memory: float) -> np.ndarray:
    """phat_k (C,) after a round, from the confident samples; unchanged if there are none."""
    fair_logits = logits - xi * np.log(prior)
    confidence = np.exp(fair_logits - _log_sum_exp(fair_logits)).max(axis=1)
    confident = confidence > _CONFIDENT
    if not confident.any():
        return prior
    probs = np.exp(logits - _log_sum_exp(logits))[confident]
    return np.asarray(memory * prior + (1.0 - memory) * probs.mean(axis=0))


def _log_sum_exp(logits: np.ndarray) -> np.ndarray:
    """(n, 1)."""
    return np.asarray(np.logaddexp.reduce(logits, axis=1, keepdims=True))


def merge_filters(
    filters: Iterable[np.ndarray], sizes: Iterable[int], variance: Literal["linear", "squared"]
) -> np.ndarray:
    """W (6,) from the sites' filters (6,) and numbers of samples; NaN without any."""
    rows = list(filters)
    if not rows:
        return NO_SELECTOR
    counts = np.array(list(sizes), dtype=np.float64)
    shares = counts / counts.sum()
    stack = np.stack(rows)  # (K, 6)
    mean = shares @ stack
    if variance == "squared":
        mean[2:4] = np.square(shares) @ stack[:, 2:4]
    return np.asarray(mean)


def shared_filter(payload: Payload) -> Selector | None:
    """W as the site received it; None before the first one."""
    return Selector.from_array(payload.extras["filter"])


def with_prior_penalty(objective: Objective, weight: float) -> Objective:
    """The objective plus weight KL(uniform || mean prediction of the batch)."""

    def penalised(model: nn.Module, batch: Batch) -> Tensor:
        mean = torch.softmax(model(batch.x).float(), dim=1).mean(dim=0)
        uniform = torch.full_like(mean, 1.0 / len(mean))
        penalty = (uniform * (uniform / mean.clamp(min=1e-8)).log()).sum()
        return objective(model, batch) + weight * penalty

    return penalised


@register
class FedDiv(Method):
    """See the module docstring."""

    name = "feddiv"
    card = Card(
        title="FedDiv",
        paper="Li et al., FedDiv: Collaborative Noise Filtering for Federated Learning with Noisy "
        "Labels, AAAI 2024",
        order=11,
        passes=5.0,
    )
    uploads: ClassVar[Mapping[str, Extra]] = {
        "filter": Extra(
            (6,),
            "two Gaussians fitted to the site's losses: means, variances, weights",
            nan=True,
            low=0.0,
            high=1e4,
            bounds=_FILTER_BOUNDS,
            vote="mean",
            finish=nearest_selector,
        ),
        "noise_level": Extra((), "share of labels that look wrong", diagnostic=True, low=0, high=1),
        "selected": Extra((), "samples that the site trained on", diagnostic=True, low=0),
    }
    downloads: ClassVar[Mapping[str, Extra]] = {
        "filter": Extra((6,), "the mean of the sites' filters; NaN: none yet", nan=True),
        "stage": Extra((), "0: warm-up, 1: selection"),
    }
    late = Lateness(
        "models and filters change slowly from round to round", is_tolerated=True, stage="stage"
    )
    Options = FedDivOptions
    options: FedDivOptions

    # ---- server ----

    def start(self, weights: Arrays, seed: int) -> ServerState:
        """The initial model; no filter yet."""
        return ServerState(0, weights, {"filter": NO_SELECTOR.copy()})

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The global model, the global filter and the stage."""
        stage = int(round >= self.options.warmup)
        extras = {"filter": state.extras["filter"], "stage": np.array(stage)}
        return Payload(round, state.weights, extras)

    def new_memory(self, samples: Samples, site: str, seed: int) -> SampleMemory:
        """The given label counts as the prediction."""
        labels = samples.labels.copy()
        return {**super().new_memory(samples, site, seed), "": {"debiased": labels}}

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The mean of the models, and of the newest filters of all sites."""
        cache = dict(state.extras)

        def weigh(update: Update) -> float:
            own_filter = np.asarray(update.extras["filter"], dtype=np.float64)
            if update.num_samples > 0 and np.isfinite(own_filter).all():
                cache[_CACHE + update.site] = np.append(own_filter, update.num_samples)
            return float(update.num_samples)

        mean = average_models(state, updates, weigh)
        rows = [cache[name] for name in sorted(cache) if name.startswith(_CACHE)]
        cache["filter"] = merge_filters(
            [row[:6] for row in rows], [int(row[6]) for row in rows], self.options.variance
        )
        return ServerState(mean.round, mean.weights, cache)

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Split, relabel, re-select, train; then fit the site's own filter."""
        site.load(payload.weights)
        memory = site.recall(payload.round)
        selection = self._select(payload, site, memory)
        if len(selection.rows) > min(site.hyper.batch_size, site.num_samples - 1):
            objective = mixup_cross_entropy(self.options.mixup, site.rng(payload.round, "mixup"))
            if self.options.prior_weight:
                objective = with_prior_penalty(objective, self.options.prior_weight)
            train(site, payload.round, objective, selection.rows, selection.labels)
        weights = site.weights()
        own_filter = self._fit(payload, site, memory)
        extras = {
            "filter": own_filter,
            "noise_level": np.array(selection.delta),
            "selected": np.array(len(selection.rows)),
        }
        return Update(site.name, site.num_samples, weights, extras)

    def _losses(self, evaluation: Evaluation, site: Site) -> np.ndarray:
        """(n,): losses with the given labels, as the filter sees them."""
        losses = evaluation.losses
        if self.options.loss_kind == "double_softmax":
            losses = double_softmax_losses(evaluation.probs, site.labels)
        return unit_range(losses) if self.options.scaling == "site" else losses

    def _select(self, payload: Payload, site: Site, memory: Arrays) -> TrainingChoice:
        """The training set of this round."""
        rows = np.arange(site.num_samples)
        all_samples = TrainingChoice(
            rows, site.labels, np.ones(site.num_samples, bool), np.ones(site.num_samples), 0.0
        )
        global_filter = shared_filter(payload)
        if not int(payload.extras["stage"]) or global_filter is None:
            return all_samples
        evaluation = evaluate_site(site)
        losses = self._losses(evaluation, site)
        probability = clean_probability(losses, global_filter)
        clean = probability >= self.options.threshold
        delta = float(1.0 - clean.mean()) if len(clean) else 0.0
        site.note(
            losses=losses,
            clean=clean,
            clean_probability=probability,
            selector=global_filter.to_array(),
        )
        if delta < self.options.clean_level:
            return TrainingChoice(rows, site.labels, clean, probability, delta)
        return self._reselect(payload.round, site, memory, evaluation, probability, delta)

    def _reselect(
        self,
        round: int,
        site: Site,
        memory: Arrays,
        evaluation: Evaluation,
        probability: np.ndarray,
        delta: float,
    ) -> TrainingChoice:
        """Clean samples and new labels on which theta and the de-biased site model agree."""
        clean = probability >= self.options.threshold
        predictions = evaluation.predictions
        use = clean.copy()
        labels = site.labels.copy()
        relabel = np.zeros(len(clean), bool)
        if round >= self.options.warmup + self.options.relabel_from:
            agreement = predictions == memory.get("debiased", predictions)
            use &= agreement
            if delta > self.options.relabel_level:
                confident = evaluation.probs.max(axis=1) >= self.options.confidence
                relabel = ~clean & confident & agreement
                labels[relabel] = predictions[relabel]
        rows = np.flatnonzero(use | relabel)
        pseudo_rows = np.flatnonzero(relabel)
        site.note(corrected=labels, pseudo_rows=pseudo_rows, pseudo_labels=predictions[pseudo_rows])
        return TrainingChoice(rows, labels[rows], clean, probability, delta)

    def _fit(self, payload: Payload, site: Site, memory: Arrays) -> np.ndarray:
        """W_k (6,) of the trained model, NaN without two modes; remembers phat and predictions."""
        evaluation = evaluate(site.model, site.samples, site.device)
        logits = np.log(np.maximum(evaluation.probs, 1e-12))  # equal to logits up to a constant
        uniform = np.full(site.num_classes, 1.0 / site.num_classes)
        prior = np.asarray(memory.get("prior", uniform))
        fair_labels = debiased_labels(logits, prior, self.options.xi)
        prior = update_prior(prior, logits, self.options.xi, self.options.memory)
        site.remember(payload.round, debiased=fair_labels, prior=prior)
        losses = self._losses(evaluation, site)
        fit = fit_selector(losses, shared_filter(payload), var_floor=self.options.var_floor)
        return NO_SELECTOR.copy() if fit is None else fit.to_array()
