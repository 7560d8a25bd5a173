"""FedGSCA-E: FedAvg that draws a label more often, the more plausible it is.

A model that trains on a wrong label soon believes it, and then its loss says nothing about the
label. So the labels are judged by others (fedgsca/evidence.py, docs/evidence.md): by evidence heads
of the federation and by the site's own images, neither of which was trained on the judged label.
Together they give r_i(c), the probability that c is the true class of image i, given its label y_i.
One round at site k, given theta:

    A  r, and what its judges explain of labels that they have not seen         site.evidence
       too little: all labels come equally often
    B  b_i(c) = r_i(c) / share of c, normalised: r if all classes were equally frequent
       w_i = max(r_i(y_i), b_i(y_i))                                            plausibility
    C  theta_k <- E epochs of SGD on the given labels, drawn in proportion to w_i

    server: theta <- sum_k n_k/N theta_k

r doubts rare classes, because a frequent one is always the safer guess; b doubts frequent ones,
because a rare class needs little to be as probable. A label that is wrong is implausible to both,
so w doubts a label only if both do. No label is replaced: where images are hard the evidence errs
as well, and its errors would be learnt. FedGSCA's threshold, pseudo-labels and credal loss answer
the same question for a model that judges by its own losses.

Before the first r exists, and in runs too short for evidence heads, all labels come equally often.
Under `privacy` there are no heads, and the method is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedgsca.evidence import MIN_USEFUL, TINY, suspicion, wrong_share
from fedgsca.methods.base import Card, Lateness, Logged, Method, MethodOptions, register
from fedgsca.methods.label_loss import LabelLoss
from fedgsca.methods.parts.selection_log import LOG_UPLOADS, Selection, log_selection
from fedgsca.methods.site import Site
from fedgsca.methods.train import train
from fedgsca.wire import Extra, Payload, Update


class FedGSCAEOptions(MethodOptions):
    """Options of FedGSCA-E."""

    diagnostics: bool = Field(
        default=True, description="also send delta, counts and fallback (numbers for the log)"
    )


@register
class FedGSCAE(Method):
    """See the module docstring."""

    name = "fedgsca-e"
    card = Card(
        title="FedGSCA-E",
        paper="after FedGSCA (Ye et al., 2025), with evidence about labels; this package",
        order=9,
        passes=3.2,
    )
    reads_evidence = True
    takes_loss = True
    uploads: ClassVar[Mapping[str, Extra]] = {
        **LOG_UPLOADS,
        "fallback": Extra(
            (),
            "1 if all labels came equally often because the evidence explains too little",
            optional=True,
            low=0,
            high=1,
            diagnostic=True,
        ),
    }
    logged: ClassVar[Logged] = log_selection(
        fallback="the evidence explained too little, so all labels came equally often"
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
        selection = Selection.everything(site)
        weights = None
        extras = {}
        if evidence is not None and evidence.posterior is not None:
            if evidence.share_explained >= MIN_USEFUL:  # A
                posterior = evidence.posterior.astype(np.float64)
                weights = plausibility(posterior, site.labels)  # B
                selection = describe_doubts(site, posterior)
            else:
                extras["fallback"] = np.array(1)
        loss = LabelLoss(site, payload.round)
        train(site, payload.round, loss, weights=weights)  # C
        loss.save()
        if not self.options.diagnostics:
            return Update(site.name, site.num_samples, site.weights())
        extras |= selection.numbers()
        return Update(site.name, site.num_samples, site.weights(), extras)


def plausibility(posterior: np.ndarray, given: np.ndarray) -> np.ndarray:
    """(n,) positive w from r (n, C) and given labels (n,)."""
    balanced_posterior = posterior / (posterior.mean(axis=0) + 1.0 / len(given))
    balanced_posterior /= balanced_posterior.sum(axis=1, keepdims=True)
    rows = np.arange(len(given))
    highest = np.maximum(posterior[rows, given], balanced_posterior[rows, given])
    return np.asarray(np.maximum(highest, TINY))


def describe_doubts(site: Site, posterior: np.ndarray) -> Selection:
    """For logs: labels that the evidence finds more likely wrong than right are flagged."""
    given = site.labels
    clean_probability = 1.0 - suspicion(posterior, given)
    clean = clean_probability >= 0.5
    site.note(clean=clean, clean_probability=clean_probability)
    delta = wrong_share(posterior, given, site.checked)
    return Selection(np.arange(len(given)), given, clean, delta=delta)
