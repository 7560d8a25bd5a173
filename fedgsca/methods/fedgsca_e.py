"""FedGSCA-E: FedGSCA's steps on evidence about the labels instead of the model's losses.

A model that trains on a wrong label soon believes it, and then its loss says nothing about the
label. So the labels are judged by others (fedgsca/evidence.py, docs/evidence.md): by evidence heads
of the federation and by the site's own images, neither of which was trained on the judged label.
Together they give r_i(c), the probability that c is the true class of image i, given its label y_i.
One round at site k, given theta:

    A  r, and what its judges explain of labels that they have not seen         site.evidence
       too little: D_hat = D_k
    B  delta_k, the expected share of wrong labels, is the mean of 1 - r_i(y_i) choose_labels
         delta_k <  0.1:  D_hat = D_k (Eq. 8)
         delta_k >= 0.1:  D_hat = samples whose most probable class has r_i(c) >= zeta, with that
                                  class: the given label, or a pseudo-label (Eq. 11-12)
    C  theta_k <- E epochs of SGD on D_hat with RCL at beta_t (Eq. 14-17), where a class c may join
       the credal set only if r_i(c) >= alpha

    server: theta <- sum_k n_k/N theta_k                                        aggregate

Before the first r exists, and in runs too short for evidence heads, sites train on all given labels
with label relaxation. Under `privacy` there are no heads, and the method is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedgsca.credal import ONLY_GIVEN_LABEL, CredalObjective, beta_at
from fedgsca.evidence import MIN_USEFUL, choose_labels, suspicion, wrong_share
from fedgsca.methods.base import (
    Card,
    Lateness,
    Logged,
    Method,
    MethodOptions,
    register,
)
from fedgsca.methods.parts.selection_log import LOG_UPLOADS, Selection, log_selection
from fedgsca.methods.site import Site
from fedgsca.methods.train import train
from fedgsca.wire import Extra, Payload, Update


class FedGSCAEOptions(MethodOptions):
    """Options of FedGSCA-E."""

    noise_level: float = Field(
        default=0.1, ge=0, le=1, description="delta below which a site trains on all its labels"
    )
    zeta: float = Field(
        default=0.7,
        gt=0.5,
        le=1,
        description="probability from which a label, given or pseudo, is trained on",
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
        **LOG_UPLOADS,
        "fallback": Extra(
            (),
            "1 if the site trained on all given labels because the evidence explains too little",
            optional=True,
            low=0,
            high=1,
            diagnostic=True,
        ),
    }
    logged: ClassVar[Logged] = log_selection(
        fallback="the evidence explained too little, so all given labels were used"
    )
    late = Lateness(
        "the server averages models, which change slowly from round to round",
        is_tolerated=True,
    )
    Options = FedGSCAEOptions
    options: FedGSCAEOptions

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Steps A to C at one site."""
        site.load(payload.weights)
        evidence = site.evidence
        if evidence is None or evidence.posterior is None:
            return self._train_on_given(payload, site)
        if evidence.share_explained < MIN_USEFUL:
            return self._train_on_given(payload, site, fallback=True)
        options = self.options
        posterior = evidence.posterior.astype(np.float64)  # A
        selection = select_by_evidence(site, posterior, options)  # B
        if len(selection.rows) >= 2:  # C
            beta = beta_at(
                payload.round, self.rounds, start=options.beta_start, end=options.beta_end
            )
            objective = CredalObjective(options.alpha, beta, posterior >= options.alpha)
            train(site, payload.round, objective, selection.rows, selection.labels)
        extras = selection.numbers() if options.diagnostics else {}
        return Update(site.name, site.num_samples, site.weights(), extras)

    def _train_on_given(self, payload: Payload, site: Site, *, fallback: bool = False) -> Update:
        """A round on all given labels: before the first evidence, or if it says nothing."""
        objective = CredalObjective(self.options.alpha, ONLY_GIVEN_LABEL)
        train(site, payload.round, objective)
        extras = {}
        if self.options.diagnostics:
            extras = Selection.everything(site).numbers()
            if fallback:
                extras["fallback"] = np.array(1)
        return Update(site.name, site.num_samples, site.weights(), extras)


def select_by_evidence(site: Site, posterior: np.ndarray, options: FedGSCAEOptions) -> Selection:
    """D_hat from the posterior r (n, C), and what the site's own records say about it."""
    given = site.labels
    rows, labels = choose_labels(
        posterior,
        given,
        noise_level=options.noise_level,
        zeta=options.zeta,
        checked=site.checked,
    )
    is_given = labels == given[rows]
    clean = np.zeros(len(given), bool)
    clean[rows[is_given]] = True
    delta = wrong_share(posterior, given, site.checked)
    selection = Selection(rows, labels, clean, int((~is_given).sum()), delta)
    if delta >= options.noise_level:
        selection = selection.unless_collapsed(site)
    # none after a collapse
    pseudo_rows = rows[~is_given][: selection.num_pseudo]
    site.note(
        clean=clean,
        clean_probability=1.0 - suspicion(posterior, given),
        pseudo_rows=pseudo_rows,
        pseudo_labels=labels[~is_given][: selection.num_pseudo],
    )
    return selection
