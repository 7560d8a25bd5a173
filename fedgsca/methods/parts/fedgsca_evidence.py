"""FedGSCA's step B on the posterior of the evidence heads (docs/evidence.md)."""

from __future__ import annotations

import numpy as np

from fedgsca.evidence import expected_right, select, wrong_share
from fedgsca.methods.parts.fedgsca_options import FedGSCAOptions
from fedgsca.methods.parts.fedgsca_selection import Selection, collapse_reason
from fedgsca.selector import NO_SELECTOR, Selector, clean_probability
from fedgsca.site import Site


def select_by_evidence(
    site: Site,
    losses: np.ndarray,
    posterior: np.ndarray,
    selector: Selector | None,
    options: FedGSCAOptions,
) -> Selection:
    """D_hat from the posterior (n, C); losses (n,) are -log r_i(y_i), clipped."""
    given = site.labels
    delta = wrong_share(posterior, given, site.checked)
    # without a merged selector, a label is clean if it is more likely correct than wrong
    clean_posterior = np.exp(-losses)
    if selector is not None:
        monotone = options.selector.monotone
        clean_posterior = clean_probability(losses, selector, monotone=monotone)
    clean = clean_posterior >= 0.5
    if site.checked is not None:
        clean |= site.checked.mask
    chosen_set = select(
        posterior,
        given,
        clean,
        noise_level=options.noise_level,
        zeta=options.zeta if options.pseudo_labels else np.inf,
        checked=site.checked,
    )
    rows = chosen_set.rows
    labels = chosen_set.labels[rows]
    pseudo_rows = np.flatnonzero(chosen_set.pseudo)
    guard = None
    if delta >= options.noise_level:
        guard = collapse_reason(site, labels, delta, options.guard)
    if guard:
        rows = np.arange(site.num_samples)
        labels = given
        pseudo_rows = np.array([], dtype=np.int64)
    clean = clean | expected_right(posterior, given)
    site.note(
        losses=losses,
        clean=clean,
        clean_probability=clean_posterior,
        selector=NO_SELECTOR.copy() if selector is None else selector.to_array(),
        cut=np.array(0.5),
        pseudo_rows=pseudo_rows,
        pseudo_labels=chosen_set.labels[pseudo_rows],
    )
    thresholds = np.full(site.num_classes, options.zeta)
    return Selection(rows, labels, clean, thresholds, len(pseudo_rows), delta, guard)
