"""FedGSCA (Ye et al., 2025): a global sample selector and a client that adapts to what it selects.

One round at site k, given the global model theta and the global selector S:

    A  losses and predictions of theta on D_k                                   _evaluate
       (no augmentation; a mean over the rounds so far if selector.memory > 0)
    B  tau_k (Eq. 5), p("clean") under S (Eq. 6), D^c and D^n (Eq. 7)           _select
       delta_k (Eq. 8) decides what the site trains on (Eq. 13):
         delta_k <  0.1:  D_hat = D_k
         delta_k >= 0.1:  D_hat = D^c with the given labels
                                + D^pseudo with theta's predictions (Eq. 9-12)
    C  theta_k <- E epochs of SGD on D_hat with the credal loss RCL at beta_t   _objective
       (Eq. 14-17)
    D  S_k <- two Gaussians fitted to the losses on D_k with the given labels,  fit_selector
       EM started at S (Eq. 1-3)

    server: theta <- sum_k n_k/N theta_k                                        aggregate
            S     <- sum_k n_k/N S_k over the sites with a valid fit (Eq. 4)

Eq. 1-7 are functions of fedgsca/selector.py, Eq. 8-13 of fedgsca/pseudo_label.py, Eq. 14-17 of
fedgsca/credal.py; the options are in parts/fedgsca_options.py, the objective of step C in
parts/fedgsca_objective.py, what a site remembers and logs in
parts/fedgsca_selection.py, step B with evidence in parts/fedgsca_evidence.py. What the paper
leaves open and how it is resolved here is in docs/fedgsca.md; preset `paper` takes the equations
literally. Our additions, listed there with their options:
warm-up until the selector is healthy, the variance floor, clipped and class-relative losses, losses
of the received model, memory, monotone probabilities, doubtful labels kept, the credal set widened
only after the warm-up, the guard, the second start of EM and the test of its fits.

With evidence heads beside the method (selector.losses_of = "evidence", the default), the decisions
rest on r, the probability of each true class under evidence that has not memorised the label
(fedgsca/evidence.py, docs/evidence.md):

    A, B  losses are -log r_i(y_i); D_hat by GSS on them or, per class, by the       select_by_
          expected number of correct labels; pseudo-labels where r_i(c), corrected      evidence
          for the share of the class, is at least zeta_0
    C     the loss is class-balanced by the federation's training labels; RCL may
          add a class to the credal set only if r_i(c) >= alpha

The network's features, which the heads need, come from a pass over all images before the training
(passes = "two") or from the training pass itself (passes = "one", docs/evidence.md).

Before the first r exists, and where the heads explain too little of the labels for any selection
(guard.min_explained) or less than plain training did (guard.max_decline), sites train on all given
labels. On frozen features the sum of the steps is bounded (step_bounds): a linear head never
forgets a wrong label. Without evidence heads (under `privacy`, in very short runs), "evidence"
means the same as "received".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedgsca.aggregate import WeightedMean
from fedgsca.credal import beta_at
from fedgsca.errors import UpdateError
from fedgsca.evidence import label_losses, training_weights
from fedgsca.methods.base import Lateness, Logged, Method, ServerState, register
from fedgsca.methods.parts.fedgsca_evidence import select_by_evidence
from fedgsca.methods.parts.fedgsca_objective import CredalObjective
from fedgsca.methods.parts.fedgsca_options import FedGSCAOptions
from fedgsca.methods.parts.fedgsca_selection import (
    Outputs,
    Selection,
    SelectionMemory,
    collapse_reason,
    diagnostics,
)
from fedgsca.methods.parts.fedgsca_steps import bound_rate
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
    SELECTOR_BOUNDS,
    Selector,
    class_relative,
    clean_probability,
    clean_subset,
    clean_threshold,
    clip_losses,
    fit_selector,
    is_healthy,
    merge_selectors,
    nearest_selector,
)
from fedgsca.site import LabelEvidence, Site
from fedgsca.train import Objective, evaluate_site, train
from fedgsca.wire import SMALLEST_GROUP, Arrays, Extra, Payload, Update

# rounds in a row in which the merged selector must be healthy before selection begins
HEALTHY_ROUNDS = 2
# a beta that no probability reaches: only the given label is possible (label relaxation)
ONLY_GIVEN_LABEL = 2.0


def read_selector(update: Update) -> Selector | None:
    """The selector of a site; invalid numbers count as "no fit", so one site cannot stop others."""
    try:
        return Selector.from_array(update.extras["selector"])
    except UpdateError:
        return None


def _without_checked(losses: np.ndarray, site: Site) -> np.ndarray:
    """(m,): losses (n,) of labels that no person has checked; only those tell right from wrong."""
    return losses if site.checked is None else losses[~site.checked.mask]


def _permit_doubtful(site: Site) -> np.ndarray | None:
    """(n, C) bool: no class may join the credal set of a label that a person has checked."""
    if site.checked is None:
        return None
    return np.repeat(~site.checked.mask[:, None], site.num_classes, axis=1)


@register
class FedGSCA(Method):
    """See the module docstring."""

    name = "fedgsca"
    title = "FedGSCA"
    paper = (
        "Ye et al., FedGSCA: Medical Federated Learning with Global Sample Selector and Client "
        "Adaptive Adjuster, 2025"
    )
    order = 8
    in_paper = True
    reads_evidence = True
    passes = 4.2
    uploads: ClassVar[Mapping[str, Extra]] = {
        "selector": Extra(
            (6,),
            "means, variances and weights of the two Gaussians fitted to this site's losses; "
            "NaN: no fit",
            nan=True,
            inf=True,
            bounds=SELECTOR_BOUNDS,
            vote="mean",
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
            "confidence that a pseudo-label of each class needs; "
            f"NaN: it reflects fewer than {SMALLEST_GROUP} images",
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
        "fallback": Extra(
            (),
            "1 if the site trained on all given labels because the evidence explains too little, "
            "or less than plain training did",
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
    logged: ClassVar[Logged] = Logged(
        selection=(*Logged.selection, "pseudo_rows", "pseudo_labels"),
        events={
            "guard": "the collapse guard stepped in",
            "fallback": "the evidence explained too little, or less than plain training did, so "
            "all given labels were used",
        },
        stage="selection",
        stage_ran=lambda values, n: values.get("clean", -1) < n,  # absent: not known
    )
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

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The global model, the global selector, and whether sites select by it."""
        extras = {name: state.extras[name] for name in self.downloads}
        return Payload(round, state.weights, extras)

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The means of models and selectors, and whether the warm-up is over."""
        mean = WeightedMean()
        selectors = []
        sizes = []
        for update in updates:
            mean.add(update.weights, float(update.num_samples))
            selectors.append(read_selector(update))
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
            "selector": NO_SELECTOR.copy() if selector is None else selector.to_array(),
            "healthy": np.array(healthy_rounds),
            "selecting": np.array(int(selecting and self.options.selection)),
        }
        return ServerState(next_round, mean.result() or dict(state.weights), extras)

    def _may_select(self, selector: Selector | None, healthy_rounds: int, next_round: int) -> bool:
        """Is the warm-up over? Once selection has begun, it does not stop."""
        if selector is None or next_round < self.options.warmup:
            return False
        return healthy_rounds >= HEALTHY_ROUNDS or not self.options.wait_for_health

    # ---- site ----

    def records_training(self) -> bool:
        """With evidence, a selection does not need the received model's opinion of this round."""
        options = self.options
        return options.passes == "one" and options.selector.losses_of == "evidence"

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Steps A to D at one site."""
        site.load(payload.weights)
        if not self.options.selection:
            return self._update_without_selection(payload, site)
        if self.options.selector.losses_of == "evidence" and site.evidence is not None:
            return self._update_with_evidence(payload, site, site.evidence)
        selecting = bool(payload.extras["selecting"])
        memory = SelectionMemory.recall(site, payload.round)
        # A: losses and predictions of theta on D_k
        outputs, memory = self._evaluate(site, memory)
        losses = self._selector_losses(outputs.losses, site)
        # B: D_hat
        selector = Selector.from_array(
            memory.selector if self.options.selector.scope == "own" else payload.extras["selector"]
        )
        selection = self._select(site, losses, outputs, selector if selecting else None)
        # C: theta_k
        if len(selection.rows) >= 2 and (selection.guard or selection.clean.any()):
            permission = _permit_doubtful(site)
            objective = self._objective(payload.round, selecting, permission=permission)
            train(site, payload.round, objective, selection.rows, selection.labels)
        weights = site.weights()
        # D: S_k
        if self.options.selector.losses_of == "trained":
            losses = self._selector_losses(evaluate_site(site).losses, site)
        fit = self._fit(_without_checked(losses, site), selector)
        if fit is not None:
            memory = replace(memory, selector=fit.to_array())
        site.remember(payload.round, **memory.to_arrays())
        extras = {"selector": NO_SELECTOR.copy() if fit is None else fit.to_array()}
        if self.options.diagnostics:
            extras |= diagnostics(selection, outputs.tau)
        return Update(site.name, site.num_samples, weights, extras)

    def _update_without_selection(self, payload: Payload, site: Site) -> Update:
        """FedAvg with the credal loss, for `selection = false`."""
        objective = self._objective(
            payload.round,
            payload.round >= self.options.warmup,
            permission=_permit_doubtful(site),
        )
        train(site, payload.round, objective)
        extras = {"selector": NO_SELECTOR.copy()}
        return Update(site.name, site.num_samples, site.weights(), extras)

    def _update_with_evidence(
        self, payload: Payload, site: Site, evidence: LabelEvidence
    ) -> Update:
        """Steps A to D on the posterior of the evidence heads."""
        if evidence.posterior is None:
            return self._update_on_given_labels(payload, site, is_fallback=False)
        if self._explains_too_little(evidence):
            return self._update_on_given_labels(payload, site, is_fallback=True)
        posterior = evidence.posterior.astype(np.float64)
        memory = SelectionMemory.recall(site, payload.round)
        own_scope = self.options.selector.scope == "own"
        selector = Selector.from_array(memory.selector if own_scope else payload.extras["selector"])
        losses = clip_losses(label_losses(posterior, site.labels), self._loss_cap)
        selection = select_by_evidence(site, losses, posterior, selector, self.options)
        counts = np.bincount(selection.labels, minlength=site.num_classes)
        evidence.own_counts = counts
        if len(selection.rows) >= 2:
            totals = counts if evidence.training_counts is None else evidence.training_counts
            objective = self._objective(
                payload.round,
                selecting=True,
                class_weights=training_weights(totals, self.options.class_balance),
                permission=posterior >= self.options.alpha,
            )
            rows, labels = selection.rows, selection.labels
            factor = self._rate_factor(site)
            train(site, payload.round, objective, rows, labels, lr_factor=factor)
        fit = self._fit(_without_checked(losses, site), selector)
        if fit is not None:
            memory = replace(memory, selector=fit.to_array())
        site.remember(payload.round, **memory.to_arrays())
        extras = {"selector": NO_SELECTOR.copy() if fit is None else fit.to_array()}
        if self.options.diagnostics:
            extras |= diagnostics(selection, None)
        return Update(site.name, site.num_samples, site.weights(), extras)

    def _explains_too_little(self, evidence: LabelEvidence) -> bool:
        """Would a selection by this evidence be arbitrary, or worse than plain training?"""
        guard = self.options.guard
        if not guard.enabled or evidence.share_explained is None:
            return False
        least = guard.min_explained
        if evidence.plain_explained is not None:
            least = max(least, evidence.plain_explained - guard.max_decline)
        return evidence.share_explained < least

    def _rate_factor(self, site: Site) -> float:
        """Factor on the learning rate of a linear head on frozen features; 1 for a network."""
        bounds = self.options.step_bounds
        if site.samples.are_images or bounds is None:
            return 1.0
        width = site.samples.inputs.shape[1]
        rate = bound_rate(site.hyper, self.rounds, width, site.num_sites, bounds)
        return rate / site.hyper.lr

    def _update_on_given_labels(self, payload: Payload, site: Site, *, is_fallback: bool) -> Update:
        """A round on all given labels: before the heads have an opinion, or if it says nothing."""
        permission = _permit_doubtful(site)
        objective = self._objective(payload.round, selecting=False, permission=permission)
        train(site, payload.round, objective, lr_factor=self._rate_factor(site))
        extras = {"selector": NO_SELECTOR.copy()}
        if self.options.diagnostics:
            rows = np.arange(site.num_samples)
            all_clean = np.ones(site.num_samples, bool)
            selection = Selection(rows, site.labels, all_clean, np.zeros(site.num_classes))
            extras |= diagnostics(selection, None)
            if is_fallback:
                extras["fallback"] = np.array(1)
        return Update(site.name, site.num_samples, site.weights(), extras)

    def _evaluate(self, site: Site, memory: SelectionMemory) -> tuple[Outputs, SelectionMemory]:
        """Step A: tau of this round; losses and predictions as a running mean over the rounds.

        A single global model can be a bad one (BatchNorm networks trained from scratch jump between
        rounds). The mean over rounds is steadier, and a label that was doubtful in many rounds is
        more likely wrong than one that was doubtful once.
        """
        evaluation = evaluate_site(site)
        losses = clip_losses(evaluation.losses, self._loss_cap)
        probs = evaluation.probs
        tau = clean_threshold(evaluation.losses)  # Eq. 5
        m, count = self.options.selector.memory, memory.count
        if not m:
            return Outputs(losses, probs, tau), replace(memory, count=count + 1)
        if memory.losses is not None and memory.probs is not None and count:
            # the weights of the rounds are normalised: (1 - m) (1, m, m^2, ...) / (1 - m^t)
            past = m * (1 - m**count) / (1 - m ** (count + 1))
            losses = past * memory.losses + (1 - past) * losses
            probs = past * memory.probs + (1 - past) * probs
        memory = replace(memory, count=count + 1, losses=losses, probs=probs)
        return Outputs(losses, probs, tau), memory

    def _fit(self, losses: np.ndarray, start: Selector | None) -> Selector | None:
        """Step D: S_k from losses (n,), by EM from S."""
        options = self.options.selector
        return fit_selector(
            losses,
            start,
            var_floor=options.var_floor,
            second_start=options.second_start,
            validity_test=options.validity_test,
        )

    @property
    def _loss_cap(self) -> float:
        clip = self.options.selector.clip
        return np.inf if clip is None else clip

    def _selector_losses(self, losses: np.ndarray, site: Site) -> np.ndarray:
        """(n,) losses as the selector sees them: clipped, and relative to their given class."""
        losses = clip_losses(losses, self._loss_cap)
        if not self.options.selector.class_relative:
            return losses
        return class_relative(losses, site.labels, site.num_classes)

    def _select(
        self, site: Site, losses: np.ndarray, outputs: Outputs, selector: Selector | None
    ) -> Selection:
        """Step B: D_hat (Eq. 13). Without a selector it is D_k."""
        options = self.options
        all_rows = np.arange(site.num_samples)
        too_similar = options.selector.validity_test and losses.std() < MIN_SPREAD
        if selector is None or too_similar:
            all_clean = np.ones(site.num_samples, bool)
            return Selection(all_rows, site.labels, all_clean, np.zeros(site.num_classes))
        tau = outputs.tau
        posterior = clean_probability(losses, selector, monotone=options.selector.monotone)  # Eq. 6
        cut = tau if options.doubtful == "flag" else min(tau, 1.0 - tau)
        clean = clean_subset(posterior, cut)  # Eq. 7; with the doubtful labels unless flagged
        if site.checked is not None:
            clean |= site.checked.mask
        delta = noise_level(clean)  # Eq. 8
        thresholds, support = self._class_thresholds(outputs.probs, clean_subset(posterior, tau))
        limits = thresholds if options.pseudo_labels else np.full(site.num_classes, np.inf)
        rows, labels = training_set(  # Eq. 11-13
            site.labels, outputs.probs, clean, limits, noise_level=options.noise_level
        )
        is_noisy = is_noisy_client(clean, options.noise_level)
        guard = collapse_reason(site, labels, delta, options.guard) if is_noisy else None
        y_hat, pseudo = assign(outputs.probs, clean, limits)
        if guard or not is_noisy:
            pseudo = np.zeros_like(pseudo)
        site.note(
            losses=losses,
            clean=clean,
            clean_probability=posterior,
            selector=selector.to_array(),
            cut=np.array(cut),
            pseudo_rows=np.flatnonzero(pseudo),
            pseudo_labels=y_hat[pseudo],
        )
        if guard:
            rows, labels = all_rows, site.labels
        return Selection(rows, labels, clean, thresholds, int(pseudo.sum()), delta, guard, support)

    def _class_thresholds(
        self, probs: np.ndarray, clean: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """(C,) zeta_c (Eq. 9-10), and (C,) the number of samples behind each."""
        options = self.options
        num_classes = probs.shape[1]
        if options.thresholds == "fixed":
            return np.full(num_classes, options.zeta), None
        thresholds = class_thresholds(
            probs, clean, base=options.zeta, average=options.average, unseen=options.unseen_class
        )
        return thresholds, np.bincount(probs[clean].argmax(axis=1), minlength=num_classes)

    def _objective(
        self,
        round: int,
        selecting: bool,
        *,
        class_weights: np.ndarray | None = None,
        permission: np.ndarray | None = None,
    ) -> Objective:
        """Step C: the credal loss of this round (Eq. 14-17).

        class_weights (C,) weight the samples by their training label; permission (n, C) bool, by
        row, are the classes that may join the credal set.
        """
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
        return CredalObjective(options, beta, class_weights, permission)
