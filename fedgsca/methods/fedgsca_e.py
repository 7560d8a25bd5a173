"""FedGSCA-E: training on given labels that share a quarter of their weight with the evidence.

A model that trains on a wrong label soon believes it, and then its loss says nothing about the
label. So the labels are judged by others (fedgsca/evidence.py, docs/evidence.md): by evidence heads
of the federation and by the site's own images, neither of which was trained on the judged label.
Together they give r_i(c), the probability that c is the true class of image i, given its label y_i.
One round at site k, given theta:

    A  r, and what its judges explain of labels that they have not seen         site.evidence
       too little: r_i = onehot(y_i)
    B  b_i(c) = r_i(c) / share of c, normalised (Eq. 11: no class is less likely to be learnt
       because it is rare); target_i = trust onehot(y_i) + (1 - trust) b_i      soft_targets
    C  theta_k <- E epochs of SGD on the cross-entropy with the targets         SoftLabels

    server: theta <- sum_k n_k/N theta_k

A label that the evidence confirms stays what it was. A label that it contradicts is shared between
the two classes instead of being dropped: where images are hard the evidence errs as well, and a
rule that drops or replaces labels costs rare classes more than the wrong labels do
(docs/evidence.md). FedGSCA's threshold, pseudo-labels and credal loss answer the same question for
a model that judges by its own losses; with evidence, one number replaces them.

Before the first r exists, and in runs too short for evidence heads, sites train on all given
labels. Under `privacy` there are no heads, and the method is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedgsca.evidence import MIN_USEFUL, suspicion, wrong_share
from fedgsca.methods.base import Card, Lateness, Logged, Method, MethodOptions, register
from fedgsca.methods.parts.selection_log import LOG_UPLOADS, Selection, log_selection
from fedgsca.methods.site import Site
from fedgsca.methods.train import Batch, train
from fedgsca.support.lazy_torch import F, Tensor, nn, torch
from fedgsca.wire import Extra, Payload, Update


class FedGSCAEOptions(MethodOptions):
    """Options of FedGSCA-E."""

    trust: float = Field(
        default=0.75,
        ge=0,
        le=1,
        description="weight of the given label in the training target; the rest is the evidence's",
    )
    diagnostics: bool = Field(
        default=True, description="also send delta, counts and fallback (numbers for the log)"
    )


@dataclass(frozen=True)
class SoftLabels:
    """The mean cross-entropy of a batch with targets (n, C) float32, by row of the site."""

    targets: np.ndarray
    has_gradient: ClassVar[bool] = True

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch."""
        logits = model(batch.x)
        return F.cross_entropy(logits, self._rows(batch, logits))

    def logit_gradient(self, logits: Tensor, batch: Batch) -> Tensor:
        """(b, C): the derivative of the mean loss."""
        return (torch.softmax(logits, dim=1) - self._rows(batch, logits)) / len(logits)

    def _rows(self, batch: Batch, logits: Tensor) -> Tensor:
        return torch.from_numpy(self.targets.take(batch.rows, axis=0)).to(logits)


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
        selection = Selection.everything(site)
        targets = np.eye(site.num_classes)[site.labels]
        extras = {}
        if evidence is not None and evidence.posterior is not None:
            if evidence.share_explained >= MIN_USEFUL:  # A
                posterior = evidence.posterior.astype(np.float64)
                targets = soft_targets(posterior, site.labels, self.options.trust)  # B
                selection = describe_targets(site, posterior)
            else:
                extras["fallback"] = np.array(1)
        train(site, payload.round, SoftLabels(targets.astype(np.float32)))  # C
        if not self.options.diagnostics:
            return Update(site.name, site.num_samples, site.weights())
        extras |= selection.numbers()
        return Update(site.name, site.num_samples, site.weights(), extras)


def soft_targets(posterior: np.ndarray, given: np.ndarray, trust: float) -> np.ndarray:
    """(n, C) from r (n, C) and given labels (n,)."""
    balanced_posterior = posterior / (posterior.mean(axis=0) + 1.0 / len(given))
    balanced_posterior /= balanced_posterior.sum(axis=1, keepdims=True)
    labels = np.eye(posterior.shape[1])[given]
    return np.asarray(trust * labels + (1.0 - trust) * balanced_posterior)


def describe_targets(site: Site, posterior: np.ndarray) -> Selection:
    """For the site's own records: labels that are flagged, and the classes they are shared with.

    A label is flagged if the evidence finds it more likely wrong than right; its pseudo-label is
    the most probable class.
    """
    given = site.labels
    doubt = suspicion(posterior, given)
    clean = doubt <= 0.5
    pseudo_rows = np.flatnonzero(~clean)
    site.note(
        clean=clean,
        clean_probability=1.0 - doubt,
        pseudo_rows=pseudo_rows,
        pseudo_labels=posterior.argmax(axis=1)[pseudo_rows],
    )
    delta = wrong_share(posterior, given, site.checked)
    return Selection(np.arange(len(given)), given, clean, len(pseudo_rows), delta)
