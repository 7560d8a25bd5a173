"""FedGSCA (Ye et al., 2025): a global sample selector and a client that adapts to what it selects.

One round at site k, given the global model theta and the global selector S:

    A  losses and predictions of theta on D_k, without augmentation             _evaluate
    B  tau_k (Eq. 5), p("clean") under S (Eq. 6), D^c and D^n (Eq. 7)           _select
       delta_k (Eq. 8) decides what the site trains on (Eq. 13):
         delta_k <  0.1:  D_hat = D_k
         delta_k >= 0.1:  D_hat = D^c with the given labels
                                + D^pseudo with theta's predictions (Eq. 9-12)
    C  theta_k <- E epochs of SGD on D_hat with the credal loss RCL at beta_t   _objective
       (Eq. 14-17)
    D  S_k <- two Gaussians fitted to the losses on D_k with the given labels,  _fit
       EM started at S (Eq. 1-3)

    server: theta <- sum_k n_k/N theta_k                                        aggregate
            S     <- sum_k n_k/N S_k over the sites with a valid fit (Eq. 4)

Eq. 1-7 are functions of fedgsca/selector.py, Eq. 8-13 of fedgsca/pseudo_label.py, Eq. 14-17 of
fedgsca/credal.py. What the paper leaves open, and what it needs beyond its equations to run on
small images, is resolved by the options under "resolutions" below; docs/fedgsca.md gives the reason
of each, and preset `paper` switches all of them off. `fedgsca-e` (fedgsca_e.py) is another method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedgsca.credal import ONLY_GIVEN_LABEL, CredalObjective, beta_at
from fedgsca.methods.aggregate import WeightedMean
from fedgsca.methods.base import (
    Card,
    Count,
    Lateness,
    Logged,
    Method,
    MethodOptions,
    NonNegative,
    PositiveShare,
    SampleMemory,
    ServerState,
    Share,
    ShareBelowOne,
    register,
)
from fedgsca.methods.parts.selection_log import (
    LOG_UPLOADS,
    SELECTOR_DOWNLOAD,
    SELECTOR_UPLOAD,
    Selection,
    log_selection,
    selector_array,
)
from fedgsca.methods.site import Samples, Site
from fedgsca.methods.train import evaluate_site, train
from fedgsca.pseudo_label import (
    assign,
    class_thresholds,
    is_noisy_client,
    noise_level,
    training_set,
)
from fedgsca.selector import (
    MIN_SPREAD,
    NO_SELECTOR,
    Selector,
    class_relative,
    clean_probability,
    clean_subset,
    clean_threshold,
    clip_losses,
    fit_selector,
    is_healthy,
    merge_selectors,
    read_selector,
)
from fedgsca.wire import SMALLEST_GROUP, Arrays, Extra, Payload, Update

# rounds in a row in which the merged selector must be healthy before selection begins
HEALTHY_ROUNDS = 2


class FedGSCAOptions(MethodOptions):
    """Options of FedGSCA: the paper's numbers, its ablations, and our resolutions."""

    # ---- the paper's numbers ----
    noise_level: Share = Field(
        default=0.1, description="delta below which a site trains on all its labels"
    )
    zeta: PositiveShare = Field(
        default=0.8, description="zeta_0, the highest confidence that a pseudo-label needs"
    )
    alpha: float = Field(
        default=0.05,
        ge=1e-3,
        lt=1,
        description="label relaxation: possibility of the classes other than the label",
    )
    beta_start: PositiveShare = Field(
        default=0.75, description="confidence from which another class is possible, at first"
    )
    beta_end: PositiveShare = Field(
        default=0.55, description="the same, approached towards the end"
    )
    # ---- the paper's ablations ----
    scope: Literal["global", "own"] = Field(
        default="global",
        description="select by the merged selector (GSS) or by the site's own (CSS)",
    )
    thresholds: Literal["adaptive", "fixed"] = Field(
        default="adaptive", description="class thresholds of Eq. 9-10, or zeta for all classes"
    )
    loss: Literal["rcl", "ucl", "ce"] = Field(
        default="rcl", description="robust credal loss, its uniform ablation, or cross-entropy"
    )
    beta_schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="how beta falls from beta_start to beta_end over the rounds"
    )
    # ---- resolutions: off in preset paper ----
    warmup: Count = Field(
        default=5,
        description="rounds on all given labels before selecting, which then waits until the "
        "merged selector was healthy twice in a row; 0: no warm-up and no waiting (the paper)",
    )
    credal_after_warmup: bool = Field(
        default=True,
        description="during warm-up only the given label is possible; "
        "otherwise a network that predicts one class for all would satisfy RCL",
    )
    losses_of: Literal["received", "trained"] = Field(
        default="received",
        description="whose losses S_k is fitted to: of the model as received, or after training "
        "(the paper)",
    )
    memory: ShareBelowOne = Field(
        default=0.8,
        description="weight of the past in the running mean of losses and predictions; "
        "0: this round only (the paper)",
    )
    class_relative: bool = Field(
        default=True, description="compare a loss with those of the same given class"
    )
    var_floor: NonNegative = Field(
        default=0.25, description="lower bound of both variances, nats^2"
    )
    checked_fit: bool = Field(
        default=True,
        description="start EM at the data, too, keep the likelier fit, and discard one without two "
        "separate modes; off: only at S, and every fit counts (the paper)",
    )
    monotone: bool = Field(default=True, description="a smaller loss is never less clean")
    doubtful: Literal["keep", "flag"] = Field(
        default="keep",
        description="labels with a clean probability between 1 - tau and tau: "
        "keep, or flag (the paper)",
    )
    unseen_class: Literal["zeta", "zero"] = Field(
        default="zeta",
        description="threshold of a class that is never predicted on clean samples (Avg_c = 0): "
        "zeta_0, or 0 (Eq. 10 as printed)",
    )
    guard: bool = Field(
        default=True,
        description="train on the given labels for a round in which D_hat looks like a collapse",
    )
    # ---- the log ----
    diagnostics: bool = Field(
        default=True,
        description="also send delta, tau, thresholds, counts and guard (numbers for the log)",
    )


@dataclass(frozen=True)
class Outputs:
    """Step A at one site: what the received model says about D_k."""

    # (n,) and (n, C): means over the rounds so far
    losses: np.ndarray
    probs: np.ndarray
    # of this round
    tau: float


@dataclass(frozen=True)
class Memory:
    """What a site remembers between rounds. It never leaves the site."""

    # rounds in the means
    count: float
    # (6,) S_k of the last round with a fit
    selector: np.ndarray
    # (n,) and (n, C) means over the rounds so far; None: the option `memory` is 0
    losses: np.ndarray | None = None
    probs: np.ndarray | None = None

    @staticmethod
    def recall(site: Site, round: int) -> Memory:
        """The memory as it was before `round`; empty at first."""
        arrays = site.recall(round)
        if not arrays:
            return Memory(0.0, NO_SELECTOR.copy())
        count = float(arrays["count"])
        return Memory(count, arrays["selector"], arrays.get("losses"), arrays.get("probs"))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The named arrays for `Site.remember`."""
        arrays = {"count": np.array(self.count), "selector": self.selector}
        if self.losses is not None and self.probs is not None:
            arrays |= {"losses": self.losses, "probs": self.probs}
        return arrays


@register
class FedGSCA(Method):
    """See the module docstring."""

    name = "fedgsca"
    card = Card(
        title="FedGSCA",
        paper="Ye et al., FedGSCA: Medical Federated Learning with Global Sample Selector and "
        "Client Adaptive Adjuster, 2025",
        order=8,
        in_paper=True,
        passes=4.2,
    )
    uploads: ClassVar[Mapping[str, Extra]] = {
        "selector": SELECTOR_UPLOAD,
        **LOG_UPLOADS,
        "tau": Extra(
            (),
            "threshold on the probability of 'clean'",
            optional=True,
            low=0,
            high=1,
            diagnostic=True,
        ),
        "thresholds": Extra(
            ("C",),
            "confidence that a pseudo-label of each class needs; "
            f"NaN: it reflects fewer than {SMALLEST_GROUP} images",
            optional=True,
            low=0,
            high=1,
            nan=True,
            diagnostic=True,
        ),
    }
    downloads: ClassVar[Mapping[str, Extra]] = {
        "selector": SELECTOR_DOWNLOAD,
        "selecting": Extra((), "1 once warm-up is over", low=0, high=1),
    }
    logged: ClassVar[Logged] = log_selection()
    late = Lateness(
        "the server averages models and selectors, and both change slowly from round to round",
        is_tolerated=True,
        stage="selecting",
    )
    Options = FedGSCAOptions
    options: FedGSCAOptions

    # ---- server ----

    def start(self, weights: Arrays, seed: int) -> ServerState:
        """The initial model, no selector yet."""
        extras = {
            "selector": NO_SELECTOR.copy(),
            "healthy": np.array(0),
            "selecting": np.array(0),
        }
        return ServerState(0, weights, extras)

    def new_memory(self, samples: Samples, site: str, seed: int) -> SampleMemory:
        """No opinion: every class is as probable as the others."""
        n, num_classes = len(samples), samples.num_classes
        losses = np.full(n, np.log(num_classes))
        probs = np.full((n, num_classes), 1.0 / num_classes)
        return {**super().new_memory(samples, site, seed), "": {"losses": losses, "probs": probs}}

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The means of models and selectors, and whether the warm-up is over."""
        mean = WeightedMean()
        selectors = []
        sizes = []
        for update in updates:
            mean.add(update.weights, float(update.num_samples))
            selectors.append(read_selector(update.extras["selector"]))
            sizes.append(update.num_samples)
        selector = merge_selectors(selectors, sizes)  # Eq. 4
        if selector is None:
            selector = Selector.from_array(state.extras["selector"])
        healthy_rounds = int(state.extras["healthy"]) + 1 if is_healthy(selector) else 0
        next_round = state.round + 1
        selecting = bool(state.extras["selecting"]) or self._may_select(
            selector, healthy_rounds, next_round
        )
        extras = {
            "selector": selector_array(selector),
            "healthy": np.array(healthy_rounds),
            "selecting": np.array(int(selecting)),
        }
        return ServerState(next_round, mean.result() or dict(state.weights), extras)

    def _may_select(self, selector: Selector | None, healthy_rounds: int, next_round: int) -> bool:
        """Is the warm-up over? Once selection has begun, it does not stop."""
        warmup = self.options.warmup
        if selector is None or next_round < warmup:
            return False
        return healthy_rounds >= HEALTHY_ROUNDS or not warmup

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Steps A to D at one site."""
        site.load(payload.weights)
        options = self.options
        selecting = bool(payload.extras["selecting"])
        memory = Memory.recall(site, payload.round)
        # A: losses and predictions of theta on D_k
        outputs, memory = self._evaluate(site, memory)
        losses = self._selector_losses(outputs.losses, site)
        # B: D_hat
        selector = Selector.from_array(
            memory.selector if options.scope == "own" else payload.extras["selector"]
        )
        thresholds = np.zeros(site.num_classes)
        selection = Selection.everything(site)
        too_similar = options.checked_fit and losses.std() < MIN_SPREAD
        if selecting and selector is not None and not too_similar:
            selection, thresholds = self._select(site, losses, outputs, selector)
        # C: theta_k
        if len(selection.rows) >= 2 and (selection.guard or selection.clean.any()):
            objective = self._objective(payload.round, selecting, site)
            train(site, payload.round, objective, selection.rows, selection.labels)
        weights = site.weights()
        # D: S_k
        if options.losses_of == "trained":
            losses = self._selector_losses(evaluate_site(site).losses, site)
        fit = self._fit(losses, site, selector)
        if fit is not None:
            memory = replace(memory, selector=fit.to_array())
        site.remember(payload.round, **memory.to_arrays())
        extras = {"selector": selector_array(fit)}
        if options.diagnostics:
            extras |= selection.numbers()
            extras |= {"tau": np.array(outputs.tau), "thresholds": thresholds}
        return Update(site.name, site.num_samples, weights, extras)

    def _evaluate(self, site: Site, memory: Memory) -> tuple[Outputs, Memory]:
        """Step A: tau of this round; losses and predictions as a running mean over the rounds.

        A single global model can be a bad one (BatchNorm networks trained from scratch jump between
        rounds). The mean over rounds is steadier, and a label that was doubtful in many rounds is
        more likely wrong than one that was doubtful once.
        """
        evaluation = evaluate_site(site)
        losses = clip_losses(evaluation.losses, np.inf)
        probs = evaluation.probs
        tau = clean_threshold(evaluation.losses)  # Eq. 5
        m, count = self.options.memory, memory.count
        if not m:
            return Outputs(losses, probs, tau), replace(memory, count=count + 1)
        if memory.losses is not None and memory.probs is not None and count:
            # the weights of the rounds are normalised: (1 - m) (1, m, m^2, ...) / (1 - m^t)
            past = m * (1 - m**count) / (1 - m ** (count + 1))
            losses = past * memory.losses + (1 - past) * losses
            probs = past * memory.probs + (1 - past) * probs
        memory = replace(memory, count=count + 1, losses=losses, probs=probs)
        return Outputs(losses, probs, tau), memory

    def _select(
        self, site: Site, losses: np.ndarray, outputs: Outputs, selector: Selector
    ) -> tuple[Selection, np.ndarray]:
        """Step B: D_hat (Eq. 13), and the thresholds (C,) of the classes as they are logged."""
        options = self.options
        tau = outputs.tau
        posterior = clean_probability(losses, selector, monotone=options.monotone)  # Eq. 6
        cut = tau if options.doubtful == "flag" else min(tau, 1.0 - tau)
        clean = clean_subset(posterior, cut)  # Eq. 7; with the doubtful labels unless flagged
        if site.checked is not None:
            clean |= site.checked.mask
        thresholds, logged_thresholds = self._class_thresholds(
            outputs.probs, clean_subset(posterior, tau)
        )
        rows, labels = training_set(  # Eq. 11-13
            site.labels, outputs.probs, clean, thresholds, noise_level=options.noise_level
        )
        y_hat, pseudo = assign(outputs.probs, clean, thresholds)
        delta = noise_level(clean)  # Eq. 8
        selection = Selection(rows, labels, clean, int(pseudo.sum()), delta)
        is_noisy = is_noisy_client(clean, options.noise_level)
        if not is_noisy:
            selection = replace(selection, num_pseudo=0)
        elif options.guard:
            selection = selection.unless_collapsed(site)
        pseudo &= selection.num_pseudo > 0
        site.note(
            losses=losses,
            clean=clean,
            clean_probability=posterior,
            selector=selector.to_array(),
            cut=np.array(cut),
            pseudo_rows=np.flatnonzero(pseudo),
            pseudo_labels=y_hat[pseudo],
        )
        return selection, logged_thresholds

    def _class_thresholds(
        self, probs: np.ndarray, clean: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(C,) zeta_c (Eq. 9-10), and the same with NaN where a few images determine it."""
        options = self.options
        num_classes = probs.shape[1]
        if options.thresholds == "fixed":
            thresholds = np.full(num_classes, options.zeta)
            return thresholds, thresholds
        thresholds = class_thresholds(probs, clean, base=options.zeta, unseen=options.unseen_class)
        support = np.bincount(probs[clean].argmax(axis=1), minlength=num_classes)
        too_few = (support > 0) & (support < SMALLEST_GROUP)
        return thresholds, np.where(too_few, np.nan, thresholds)

    def _objective(self, round: int, selecting: bool, site: Site) -> CredalObjective:
        """Step C: the credal loss of this round (Eq. 14-17)."""
        options = self.options
        beta = beta_at(
            round,
            self.rounds,
            start=options.beta_start,
            end=options.beta_end,
            schedule=options.beta_schedule,
        )
        if options.credal_after_warmup and not selecting:
            beta = ONLY_GIVEN_LABEL
        permission = None
        if site.checked is not None:  # no class may join a label that a person has checked
            permission = np.repeat(~site.checked.mask[:, None], site.num_classes, axis=1)
        return CredalObjective(options.alpha, beta, permission, options.loss)

    def _fit(self, losses: np.ndarray, site: Site, start: Selector | None) -> Selector | None:
        """Step D: S_k from losses (n,) of labels that no person has checked, by EM from S."""
        options = self.options
        return fit_selector(
            losses if site.checked is None else losses[~site.checked.mask],
            start,
            var_floor=options.var_floor,
            second_start=options.checked_fit,
            validity_test=options.checked_fit,
        )

    def _selector_losses(self, losses: np.ndarray, site: Site) -> np.ndarray:
        """(n,) losses as the selector sees them: finite, and relative to their given class."""
        losses = clip_losses(losses, np.inf)
        if not self.options.class_relative:
            return losses
        return class_relative(losses, site.labels, site.num_classes)
