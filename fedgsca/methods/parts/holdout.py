"""Samples that no model trains on, and the score that they give the model (docs/evidence.md).

With `evidence.holdout` > 0, the wrapped method sees a site without its held-out samples; the
evidence heads see them all, because each sample is judged by a head that never trained on it. From
the first posterior on, a site counts what it expects of the received model on these samples:

    up    expected_counts, expected_rest   see fedgsca/evidence.py; the server adds them up
    log   expected_f1 of round t - 1       the macro F1 that is expected, without a true label
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedgsca.evidence import expected_counts, expected_f1, pool_small_classes
from fedgsca.methods.site import Samples, Site
from fedgsca.methods.train import evaluate
from fedgsca.wire import SMALLEST_GROUP, Arrays, Extra, Payload

COUNTS = "evidence.expected_counts"
POOLED_COUNTS = "evidence.expected_rest"
# of the server's state, not sent
SCORE = "evidence.score"
SCORE_ROUND = "evidence.score_round"
# evidence is about all images of a site, its update is weighted by those that it trains on: at
# least half of them (evidence.holdout)
MAX_HOLDOUT_FACTOR = 2.0
UPLOADS: Mapping[str, Extra] = {
    COUNTS: Extra(
        (3, "C"),
        "on held-out images, by class: expected correct predictions, expected members, "
        f"predictions; NaN: fewer than {SMALLEST_GROUP} expected",
        optional=True,
        low=0,
        nan=True,
        per_image=(0.0, MAX_HOLDOUT_FACTOR),
        off_under_privacy=True,
    ),
    POOLED_COUNTS: Extra(
        (3,),
        f"the same for all other classes together; NaN: fewer than {SMALLEST_GROUP} expected",
        optional=True,
        low=0,
        nan=True,
        per_image=(0.0, 3 * MAX_HOLDOUT_FACTOR),
        off_under_privacy=True,
    ),
}


def training_part(site: Site, holdout: np.ndarray) -> Site:
    """The site as its method sees it: without the samples in `holdout` (n,) bool."""
    rows = np.flatnonzero(~holdout)
    evidence = site.evidence
    if evidence is not None and evidence.posterior is not None:
        evidence = replace(evidence, posterior=evidence.posterior[rows])
    return replace(
        site,
        samples=site.samples.part(rows),
        evidence=evidence,
        evaluation=None,
        notes={},
    )


def copy_notes(part: Site, site: Site, holdout: np.ndarray) -> None:
    """The notes of the training part as notes about all samples of the site.

    A held-out label was not decided about: it counts as clean, as it was given, with the mean of
    what the others have.
    """
    rows = np.flatnonzero(~holdout)
    for name, array in part.notes.items():
        if name == "pseudo_rows":
            site.notes[name] = rows[array]
        elif array.ndim and len(array) == len(rows) and name != "pseudo_labels":
            site.notes[name] = _with_holdout(array, site, rows)
        else:
            site.notes[name] = array


def _with_holdout(array: np.ndarray, site: Site, rows: np.ndarray) -> np.ndarray:
    full = np.empty((site.num_samples, *array.shape[1:]), array.dtype)
    if array.dtype == bool:
        full[:] = True
    elif np.issubdtype(array.dtype, np.integer):
        full[:] = site.labels
    else:
        full[:] = array.mean(axis=0)
    full[rows] = array
    return full


def count_holdout(
    payload: Payload, site: Site, posterior: np.ndarray, holdout: np.ndarray
) -> dict[str, np.ndarray]:
    """What leaves the site about the received model; empty if it has too few held-out samples.

    posterior (n, C) of all samples, holdout (n,) bool.
    """
    rows = np.flatnonzero(holdout)
    if len(rows) < SMALLEST_GROUP:
        return {}
    samples: Samples = site.samples.part(rows)
    site.load(payload.weights)
    evaluation = evaluate(site.model, samples, site.device)
    if not np.isfinite(evaluation.losses).all():
        return {}
    counts = expected_counts(posterior[rows].astype(np.float64), evaluation.predictions)
    large_classes, remainder = pool_small_classes(counts, SMALLEST_GROUP)
    return {COUNTS: large_classes, POOLED_COUNTS: remainder}


class ScoreSums:
    """The counts of all sites in one round."""

    def __init__(self) -> None:
        self.counts: np.ndarray | None = None
        self.remainder = np.zeros(3)

    def add(self, evidence: Arrays) -> None:
        """Add those of one site, if it sent any."""
        if COUNTS not in evidence or POOLED_COUNTS not in evidence:
            return
        counts = np.nan_to_num(np.asarray(evidence[COUNTS], dtype=np.float64))
        self.counts = counts if self.counts is None else self.counts + counts
        self.remainder = self.remainder + np.nan_to_num(
            np.asarray(evidence[POOLED_COUNTS], dtype=np.float64)
        )

    def to_state(self, round: int) -> dict[str, np.ndarray]:
        """The score of the model that the sites received in `round`, in percent."""
        if self.counts is None:
            return {}
        score = 100.0 * expected_f1(self.counts, self.remainder)
        return {SCORE: np.array(score), SCORE_ROUND: np.array(round)}


def read_score(extras: Arrays, round: int) -> float | None:
    """The score in the server's state, if it is of this round."""
    if SCORE not in extras or int(extras[SCORE_ROUND]) != round:
        return None
    return float(extras[SCORE])
