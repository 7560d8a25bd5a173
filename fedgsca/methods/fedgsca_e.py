"""FedGSCA-E: FedGSCA's three steps on the opinion of evidence heads instead of the model's losses.

A model that trains on a wrong label soon believes it, and then its loss says nothing about the
label. Evidence heads (fedgsca/evidence.py, docs/evidence.md) never judge what they were trained on.
From their opinion each site computes r_i(c), the probability that c is the true class of image i,
given its label y_i. One round at site k, given theta and the merged selector S:

    A  r, and what the heads explain of labels that they have not seen          site.evidence
       too little, or less than plain training did: D_hat = D_k                 explains_enough
    B  losses -log r_i(y_i), p("clean") under S (Eq. 6); the expected share of  select_by_evidence
       wrong labels delta_k is the mean of 1 - r_i(y_i)
         delta_k <  0.1:  D_hat = D_k
         delta_k >= 0.1:  D_hat = labels that S calls clean, and of every class as many as are
                                  correct by expectation, with the given labels
                                + labels with r_i(c) / share of c, normalised, of at least zeta
    C  theta_k <- E epochs of SGD on D_hat with RCL at beta_t (Eq. 14-17), where a class c may join
       the credal set only if r_i(c) >= alpha
    D  S_k <- two Gaussians fitted to the losses of B, EM started at S (Eq. 1-3)

    server: theta <- sum_k n_k/N theta_k,  S <- sum_k n_k/N S_k (Eq. 4)         aggregate

Before the first r exists, and in runs too short for evidence heads, sites train on all given labels
with label relaxation. Under `privacy` there are no heads, and the method is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedgsca.credal import ONLY_GIVEN_LABEL, CredalObjective, beta_at
from fedgsca.evidence import (
    MAX_DECLINE,
    MIN_USEFUL,
    expected_right,
    label_losses,
    select,
    wrong_share,
)
from fedgsca.methods.aggregate import WeightedMean
from fedgsca.methods.base import (
    Card,
    Lateness,
    Logged,
    Method,
    MethodOptions,
    ServerState,
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
from fedgsca.methods.site import LabelEvidence, Site
from fedgsca.methods.train import train
from fedgsca.selector import (
    NO_SELECTOR,
    Selector,
    clean_probability,
    clip_losses,
    fit_selector,
    merge_selectors,
    read_selector,
)
from fedgsca.wire import Arrays, Extra, Payload, Update


class FedGSCAEOptions(MethodOptions):
    """Options of FedGSCA-E."""

    noise_level: float = Field(
        default=0.1, ge=0, le=1, description="delta below which a site trains on all its labels"
    )
    zeta: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="probability, corrected for the share of the class, that a pseudo-label needs",
    )
    alpha: float = Field(
        default=0.05,
        ge=1e-3,
        lt=1,
        description="label relaxation: possibility of the classes other than the label, and the "
        "probability r that a class needs to join the credal set",
    )
    beta_start: float = Field(
        default=0.75,
        gt=0,
        le=1,
        description="confidence from which another class is possible, at first",
    )
    beta_end: float = Field(
        default=0.55, gt=0, le=1, description="the same, approached towards the end"
    )
    min_explained: float = Field(
        default=MIN_USEFUL,
        ge=0,
        lt=1,
        description="what the heads must explain of a site's labels, from 0 (nothing) to 1; below "
        "it, the site trains on all its labels",
    )
    max_decline: float = Field(
        default=MAX_DECLINE,
        ge=0,
        le=1,
        description="how much less the heads may explain than plain training did, before anything "
        "was selected; beyond it, the site trains on all its labels",
    )
    diagnostics: bool = Field(
        default=True,
        description="also send delta, counts, guard and fallback (numbers for the log)",
    )


@register
class FedGSCAE(Method):
    """See the module docstring."""

    name = "fedgsca-e"
    card = Card(
        title="FedGSCA-E",
        paper="FedGSCA (Ye et al., 2025) with selection by evidence heads; this package",
        order=9,
        passes=4.2,
    )
    reads_evidence = True
    uploads: ClassVar[Mapping[str, Extra]] = {
        "selector": SELECTOR_UPLOAD,
        **LOG_UPLOADS,
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
    downloads: ClassVar[Mapping[str, Extra]] = {"selector": SELECTOR_DOWNLOAD}
    logged: ClassVar[Logged] = log_selection(
        fallback="the evidence explained too little, or less than plain training did, so all given "
        "labels were used"
    )
    late = Lateness(
        "the server averages models and selectors, and both change slowly from round to round",
        is_tolerated=True,
    )
    Options = FedGSCAEOptions
    options: FedGSCAEOptions

    # ---- server ----

    def start(self, weights: Arrays, seed: int) -> ServerState:
        """The initial model, no selector yet."""
        return ServerState(0, weights, {"selector": NO_SELECTOR.copy()})

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The global model and the merged selector."""
        return Payload(round, state.weights, {"selector": state.extras["selector"]})

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The means of models and selectors; without a fit, the selector stays as it was."""
        mean = WeightedMean()
        selectors = []
        sizes = []
        for update in updates:
            mean.add(update.weights, float(update.num_samples))
            selectors.append(read_selector(update.extras["selector"]))
            sizes.append(update.num_samples)
        selector = merge_selectors(selectors, sizes)  # Eq. 4
        array = state.extras["selector"] if selector is None else selector.to_array()
        weights = mean.result() or dict(state.weights)
        return ServerState(state.round + 1, weights, {"selector": array})

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Steps A to D at one site."""
        site.load(payload.weights)
        evidence = site.evidence
        if evidence is None or evidence.posterior is None:
            return self._train_on_given(payload, site)
        if not explains_enough(evidence, self.options):
            return self._train_on_given(payload, site, fallback=True)
        options = self.options
        posterior = evidence.posterior.astype(np.float64)  # A
        losses = clip_losses(label_losses(posterior, site.labels))
        selector = Selector.from_array(payload.extras["selector"])
        selection = select_by_evidence(site, losses, posterior, selector, options)  # B
        if len(selection.rows) >= 2:  # C
            beta = beta_at(
                payload.round, self.rounds, start=options.beta_start, end=options.beta_end
            )
            objective = CredalObjective(options.alpha, beta, posterior >= options.alpha)
            train(site, payload.round, objective, selection.rows, selection.labels)
        doubtful = losses if site.checked is None else losses[~site.checked.mask]
        extras = {"selector": selector_array(fit_selector(doubtful, selector))}  # D
        if options.diagnostics:
            extras |= selection.numbers()
        return Update(site.name, site.num_samples, site.weights(), extras)

    def _train_on_given(self, payload: Payload, site: Site, *, fallback: bool = False) -> Update:
        """A round on all given labels: before the heads have an opinion, or if it says nothing."""
        objective = CredalObjective(self.options.alpha, ONLY_GIVEN_LABEL)
        train(site, payload.round, objective)
        extras = {"selector": NO_SELECTOR.copy()}
        if self.options.diagnostics:
            extras |= Selection.everything(site).numbers()
            if fallback:
                extras["fallback"] = np.array(1)
        return Update(site.name, site.num_samples, site.weights(), extras)


def explains_enough(evidence: LabelEvidence, options: FedGSCAEOptions) -> bool:
    """Whether a selection by this evidence is neither arbitrary nor worse than plain training."""
    if evidence.share_explained is None:
        return True
    least = options.min_explained
    if evidence.plain_explained is not None:
        least = max(least, evidence.plain_explained - options.max_decline)
    return evidence.share_explained >= least


def select_by_evidence(
    site: Site,
    losses: np.ndarray,
    posterior: np.ndarray,
    selector: Selector | None,
    options: FedGSCAEOptions,
) -> Selection:
    """D_hat from the posterior (n, C); losses (n,) are -log r_i(y_i), clipped."""
    given = site.labels
    # without a merged selector, a label is clean if it is more likely correct than wrong
    probability = np.exp(-losses)
    if selector is not None:
        probability = clean_probability(losses, selector)
    clean = probability >= 0.5
    if site.checked is not None:
        clean |= site.checked.mask
    chosen_set = select(
        posterior,
        given,
        clean,
        noise_level=options.noise_level,
        zeta=options.zeta,
        checked=site.checked,
    )
    rows = chosen_set.rows
    pseudo_rows = np.flatnonzero(chosen_set.pseudo)
    delta = wrong_share(posterior, given, site.checked)
    clean = clean | expected_right(posterior, given)
    selection = Selection(rows, chosen_set.labels[rows], clean, len(pseudo_rows), delta)
    if delta >= options.noise_level:
        selection = selection.unless_collapsed(site)
    pseudo_rows = pseudo_rows[: selection.num_pseudo]  # all of them, or none after a collapse
    site.note(
        losses=losses,
        clean=clean,
        clean_probability=probability,
        selector=selector_array(selector),
        cut=np.array(0.5),
        pseudo_rows=pseudo_rows,
        pseudo_labels=chosen_set.labels[pseudo_rows],
    )
    return selection
