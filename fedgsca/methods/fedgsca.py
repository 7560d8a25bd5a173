"""FedGSCA (Ye et al., 2025): a global sample selector and a client that adapts to what it selects.

One round at site k, given the global model theta and the global selector S (equations as in selector.py, pseudo_label.py, credal.py):

    A  losses and predictions of theta on D_k                     (no augmentation; averaged over rounds if selector.memory > 0)
    B  tau_k (Eq. 5), posterior of "clean" under S (Eq. 6), D^c and D^n (Eq. 7), delta_k (Eq. 8)
       delta_k <  0.1:  D_hat = D_k                                                                              (Eq. 13)
       delta_k >= 0.1:  D_hat = D^c with given labels + D^pseudo with theta's predictions                        (Eq. 9-13)
    C  theta_k <- E epochs of SGD on D_hat with the credal loss RCL at beta_t                                    (Eq. 14-17)
    D  S_k <- two Gaussians fitted to the losses on D_k with the given labels, EM started at S                   (Eq. 1-3)

    server: theta <- sum_k n_k/N theta_k,   S <- sum_k n_k/N S_k over the sites with a valid fit                 (Eq. 4)

What the paper leaves open and how it is settled here is in docs/fedgsca.md; preset `paper` takes the equations literally. The additions
that are ours (all are options): warm-up until the selector is healthy, the variance floor, class-relative selection, memory, the guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.aggregate import WeightedMean
from fedgsca.credal import beta_at, rcl_loss, ucl_loss
from fedgsca.errors import UpdateError
from fedgsca.methods.base import Logged, Method, MethodOptions, ServerState, register
from fedgsca.pseudo_label import (
    assign,
    class_thresholds,
    guard_reason,
    is_noisy_client,
    training_set,
)
from fedgsca.selector import (
    NO_SELECTOR,
    SELECTOR_BOUNDS,
    Selector,
    class_relative,
    clean_probability,
    clean_threshold,
    clip_losses,
    fit_selector,
    is_healthy,
    merge_selectors,
    nearest_selector,
)
from fedgsca.site import Site
from fedgsca.train import Batch, Objective, evaluate_site, train
from fedgsca.wire import SMALLEST_GROUP, Arrays, Extra, Payload, Update


class SelectorOptions(MethodOptions):
    scope: Literal["global", "own"] = Field(
        "global", description="select by the merged selector (GSS) or by the site's own (CSS)"
    )
    losses_of: Literal["received", "trained"] = Field(
        "received",
        description="model whose losses S_k is fitted to: as received (no second pass), or after training (the paper)",
    )
    memory: float = Field(
        0.8,
        ge=0,
        lt=1,
        description="share of the past in the running mean of losses and predictions; 0: this round only",
    )
    class_relative: bool = Field(
        True, description="compare a loss with those of the same given class"
    )
    var_floor: float = Field(0.25, ge=0, description="lower bound of both variances, nats^2")
    clip: float | None = Field(9.21, gt=0, description="largest loss that counts; none: unlimited")
    monotone: bool = Field(True, description="a smaller loss is never less clean")


class GuardOptions(MethodOptions):
    enabled: bool = Field(
        True,
        description="train on the given labels for a round in which D_hat looks like a collapse",
    )
    max_delta: float = Field(
        0.8, gt=0, le=1, description="largest believable share of wrong labels"
    )
    max_shift: float = Field(
        0.5, gt=0, le=1, description="largest change of the class distribution (total variation)"
    )
    min_class: int = Field(
        10, ge=1, description="a class with this many given samples may not vanish"
    )


class FedGSCAOptions(MethodOptions):
    selection: bool = Field(
        True, description="off: train on all given labels (with the chosen loss)"
    )
    warmup: int = Field(
        5,
        ge=0,
        description="rounds on all given labels before selecting; the selector is fitted meanwhile",
    )
    wait_for_health: bool = Field(
        True, description="begin to select only when the merged selector was healthy twice in a row"
    )
    noise_level: float = Field(
        0.1, ge=0, le=1, description="delta below which a site trains on all its labels"
    )
    doubtful: Literal["keep", "flag"] = Field(
        "keep",
        description="labels with a clean probability between 1 - tau and tau: keep or flag (the paper)",
    )
    pseudo_labels: bool = Field(True, description="off: flagged samples rest")
    thresholds: Literal["adaptive", "fixed"] = Field(
        "adaptive", description="class thresholds of Eq. 9-10, or zeta for all classes"
    )
    zeta: float = Field(0.8, gt=0, le=1, description="zeta_0")
    average: Literal["literal", "per_class"] = Field("literal", description="denominator of Avg_c")
    loss: Literal["rcl", "ucl", "ce"] = "rcl"
    alpha: float = Field(0.05, ge=1e-3, lt=1, description="label relaxation")
    beta_start: float = Field(0.75, gt=0, le=1)
    beta_end: float = Field(0.55, gt=0, le=1)
    beta_schedule: Literal["cosine", "linear", "constant"] = "cosine"
    credal_after_warmup: bool = Field(
        True,
        description="during warm-up only the given label is plausible; a network that predicts one class for all would satisfy RCL",
    )
    diagnostics: bool = Field(
        True, description="also send delta, tau, thresholds, counts and guard (numbers for the log)"
    )
    selector: SelectorOptions = SelectorOptions()  # type: ignore[call-arg]
    guard: GuardOptions = GuardOptions()  # type: ignore[call-arg]


@dataclass(frozen=True)
class Selection:
    """Step B at one site: D_hat and what led to it."""

    rows: np.ndarray
    labels: np.ndarray
    clean: np.ndarray  # (n,) bool
    thresholds: np.ndarray  # (C,)
    pseudo: int = 0
    delta: float = 0.0
    guard: str | None = None
    behind: np.ndarray | None = None  # (C,) samples that a class's threshold rests on

    @property
    def told(self) -> np.ndarray:
        """Thresholds as they may leave the site: one that rests on a few images would tell the model's opinion of each."""
        if self.behind is None:
            return self.thresholds
        return np.where((self.behind > 0) & (self.behind < SMALLEST_GROUP), np.nan, self.thresholds)


def _trusted(update: Update) -> Selector | None:
    """A selector as a site sent it; six numbers that are none count as 'no fit', so that one site cannot stop the others."""
    try:
        return Selector.from_array(update.extras["selector"])
    except UpdateError:
        return None


@register
class FedGSCA(Method):
    name = "fedgsca"
    title = "FedGSCA"
    paper = "Ye et al., FedGSCA: Medical Federated Learning with Global Sample Selector and Client Adaptive Adjuster, 2025"
    order = 8
    passes = 4.2
    uploads: ClassVar[Mapping[str, Extra]] = {
        "selector": Extra(
            (6,),
            "means, variances and weights of the two Gaussians fitted to this site's losses; NaN: no fit",
            nan=True,
            inf=True,
            bounds=SELECTOR_BOUNDS,
            finish=nearest_selector,
        ),
        "delta": Extra(
            (), "share of labels flagged as noisy", optional=True, low=0, high=1, diagnostic=True
        ),
        "tau": Extra(
            (),
            "threshold on the probability of 'clean'",
            optional=True,
            low=0,
            high=1,
            diagnostic=True,
        ),
        "clean": Extra(
            (), "number of labels taken as clean", optional=True, low=0, diagnostic=True
        ),
        "pseudo": Extra(
            (), "number of pseudo-labelled samples", optional=True, low=0, diagnostic=True
        ),
        "thresholds": Extra(
            ("C",),
            f"confidence that a pseudo-label of each class needs; NaN: rests on fewer than {SMALLEST_GROUP} images",
            optional=True,
            low=0,
            high=1,
            nan=True,
            diagnostic=True,
        ),
        "guard": Extra(
            (),
            "1 if the collapse guard trained on the given labels this round",
            optional=True,
            low=0,
            high=1,
            diagnostic=True,
        ),
    }
    downloads: ClassVar[Mapping[str, Extra]] = {
        "selector": Extra((6,), "the merged selector; NaN: none yet", nan=True),
        "selecting": Extra((), "1 once warm-up is over", low=0, high=1),
    }
    logged: ClassVar[Logged] = Logged(events={"guard": "the collapse guard stepped in"})
    Options = FedGSCAOptions
    options: FedGSCAOptions

    # ---- server ----

    def start(self, weights: Arrays, seed: int) -> ServerState:
        return ServerState(
            0,
            weights,
            {"selector": NO_SELECTOR.copy(), "healthy": np.array(0), "selecting": np.array(0)},
        )

    def broadcast(self, state: ServerState, round: int) -> Payload:
        return Payload(
            round,
            state.weights,
            {"selector": state.extras["selector"], "selecting": state.extras["selecting"]},
        )

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        mean, selectors, sizes = WeightedMean(), [], []
        for update in updates:
            mean.add(update.weights, float(update.num_samples))
            selectors.append(_trusted(update))
            sizes.append(update.num_samples)
        merged = merge_selectors(selectors, sizes) or Selector.from_array(state.extras["selector"])
        streak = int(state.extras["healthy"]) + 1 if is_healthy(merged) else 0
        after = state.round + 1  # the round that will use this state
        ready = merged is not None and (streak >= 2 or not self.options.wait_for_health)
        selecting = bool(state.extras["selecting"]) or (ready and after >= self.options.warmup)
        extras = {
            "selector": merged.to_array() if merged else NO_SELECTOR.copy(),
            "healthy": np.array(streak),
            "selecting": np.array(int(selecting and self.options.selection)),
        }
        return ServerState(after, mean.result() or dict(state.weights), extras)

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        site.load(payload.weights)
        if not self.options.selection:
            train(
                site,
                payload.round,
                self._objective(payload.round, payload.round >= self.options.warmup),
            )
            return Update(
                site.name, site.num_samples, site.weights(), {"selector": NO_SELECTOR.copy()}
            )
        tau, losses, probs, memory = self._look(payload.round, site)  # A
        shared = Selector.from_array(payload.extras["selector"])
        selector = (
            Selector.from_array(memory["selector"])
            if self.options.selector.scope == "own"
            else shared
        )
        scaled = self._scale(losses, site)
        chosen = self._select(
            site, scaled, probs, selector, tau, bool(payload.extras["selecting"])
        )  # B
        if len(chosen.rows) >= 2 and (chosen.guard or chosen.clean.any()):
            train(
                site,
                payload.round,
                self._objective(payload.round, bool(payload.extras["selecting"])),
                chosen.rows,
                chosen.labels,
            )  # C
        weights = site.weights()
        if self.options.selector.losses_of == "trained":
            scaled = self._scale(evaluate_site(site).losses, site)
        fitted = fit_selector(scaled, selector, var_floor=self.options.selector.var_floor)  # D
        own = (fitted.to_array() if fitted else NO_SELECTOR).copy()
        site.remember(
            payload.round, **{**memory, "selector": own if fitted else memory["selector"]}
        )
        extras: dict[str, np.ndarray] = {"selector": own}
        if self.options.diagnostics:
            extras |= {
                "delta": np.array(chosen.delta),
                "tau": np.array(tau),
                "clean": np.array(int(chosen.clean.sum())),
                "pseudo": np.array(chosen.pseudo),
                "thresholds": chosen.told,
                "guard": np.array(int(chosen.guard is not None)),
            }
        return Update(site.name, site.num_samples, weights, extras)

    def _look(
        self, round: int, site: Site
    ) -> tuple[float, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """tau of this round, and losses (n,) and predictions (n, C) of the received model as a running mean over the rounds so far.

        A single global model can be a bad one (BatchNorm networks from scratch jump between rounds); the mean over rounds is steadier
        and a label that was doubted in many rounds is more likely wrong than one doubted once.
        """
        seen = evaluate_site(site)
        past, share = site.recall(round), self.options.selector.memory
        clip = self.options.selector.clip
        losses = clip_losses(seen.losses, clip if clip is not None else np.inf)
        count = float(past["count"]) if past else 0.0
        if share and count:
            # the weights of the rounds are normalised: (1 - m) (1, m, m^2, ...) / (1 - m^t)
            old = share * (1 - share**count) / (1 - share ** (count + 1))
            losses = old * past["losses"] + (1 - old) * losses
            probs = old * past["probs"] + (1 - old) * seen.probs
        else:
            probs = seen.probs
        memory = {
            "count": np.array(count + 1),
            "selector": past["selector"] if past else NO_SELECTOR.copy(),
        }
        if share:
            memory |= {"losses": losses, "probs": probs}
        return clean_threshold(seen.losses), losses, probs, memory

    def _scale(self, losses: np.ndarray, site: Site) -> np.ndarray:
        """Losses as the selector sees them."""
        clip = self.options.selector.clip
        clipped = clip_losses(losses, clip if clip is not None else np.inf)
        return (
            class_relative(clipped, site.labels, site.num_classes)
            if self.options.selector.class_relative
            else clipped
        )

    def _select(
        self,
        site: Site,
        losses: np.ndarray,
        probs: np.ndarray,
        selector: Selector | None,
        tau: float,
        selecting: bool,
    ) -> Selection:
        everything = np.arange(site.num_samples)
        options, nobody = self.options, np.zeros(site.num_classes)
        if not selecting or selector is None or losses.std() < 1e-4:
            return Selection(everything, site.labels, np.ones(site.num_samples, bool), nobody)
        posterior = clean_probability(losses, selector, monotone=options.selector.monotone)
        cut = tau if options.doubtful == "flag" else min(tau, 1.0 - tau)
        sure, clean = (
            posterior >= tau,
            posterior >= cut,
        )  # the latter: D^c and, unless they are flagged, the doubtful
        delta = float(np.mean(~clean))
        if options.thresholds == "adaptive":
            thresholds = class_thresholds(probs, sure, base=options.zeta, average=options.average)
            behind = np.bincount(probs[sure].argmax(axis=1), minlength=site.num_classes)
        else:
            thresholds, behind = np.full(site.num_classes, options.zeta), None
        accept = thresholds if options.pseudo_labels else np.full(site.num_classes, np.inf)
        rows, labels = training_set(
            site.labels, probs, clean, accept, noise_level=options.noise_level
        )
        predicted, kept = assign(probs, clean, accept)
        noisy = is_noisy_client(clean, options.noise_level)
        reason = None
        if noisy and options.guard.enabled:
            limits = options.guard.model_dump(exclude={"enabled"})
            reason = guard_reason(site.labels, labels, delta, site.num_classes, **limits)
        used = kept if noisy and not reason else np.zeros_like(kept)
        site.note(
            losses=losses, clean=clean, clean_probability=posterior, selector=selector.to_array(),
            cut=np.array(cut), pseudo_rows=np.flatnonzero(used), pseudo_labels=predicted[used],
        )  # fmt: skip
        if reason:
            return Selection(everything, site.labels, clean, thresholds, 0, delta, reason, behind)
        return Selection(rows, labels, clean, thresholds, int(used.sum()), delta, behind=behind)

    def _objective(self, round: int, widen: bool) -> Objective:
        """The credal loss of this round. `widen`: other classes than the label may become plausible."""
        o = self.options
        beta = beta_at(
            round, self.rounds, start=o.beta_start, end=o.beta_end, schedule=o.beta_schedule
        )
        if o.credal_after_warmup and not widen:
            beta = 2.0  # no class but the given one is fully plausible: label relaxation

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            logits = model(batch.x)
            if o.loss == "ce":
                return F.cross_entropy(logits, batch.y)
            return (rcl_loss if o.loss == "rcl" else ucl_loss)(
                logits, batch.y, alpha=o.alpha, beta=beta
            )

        return objective
