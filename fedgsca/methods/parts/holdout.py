"""Samples that no model trains on, and the score that they give the model (docs/evidence.md).

With `evidence.holdout` > 0, the wrapped method sees a site without its held-out samples; the
evidence heads see them all, because each sample is judged by a head that never trained on it. From
the first posterior on, a site counts what it expects of the received model on these samples:

    up    expected_counts, expected_rest   of every class; the server adds them up
    log   expected_f1 of round t - 1       the macro F1 that is expected, without a true label
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedgsca.evidence import TINY
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


# ---- a score without true labels ----


def expected_counts(posterior: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """(3, C): expected true positives, expected members and predictions of every class.

    posterior (n, C) of samples that did not train the model, predictions (n,) of the model. Sums
    over sites are sums of these counts.
    """
    onehot = np.eye(posterior.shape[1])[predictions]
    hits = (posterior * onehot).sum(axis=0)
    return np.stack([hits, posterior.sum(axis=0), onehot.sum(axis=0)])


def pool_small_classes(counts: np.ndarray, smallest: float) -> tuple[np.ndarray, np.ndarray]:
    """`expected_counts` (3, C) as they may leave a site: (3, C) and the remainder (3,).

    A class with fewer than `smallest` expected members is NaN and part of the remainder, the sum
    over all such classes; the remainder is NaN if it is too small, too.
    """
    is_small = counts[1] < smallest
    remainder = counts[:, is_small].sum(axis=1)
    if remainder[1] < smallest:
        remainder = np.full(3, np.nan)
    return np.where(is_small, np.nan, counts), remainder


def expected_f1(counts: np.ndarray, remainder: np.ndarray | None = None) -> float:
    """Macro F1 between 0 and 1 from `expected_counts`, over classes with half a sample or more.

    With the remainder (3,) of `pool_small_classes`, summed over the sites, the classes that no site
    reports count as one: they share one F1, with the weight of their number.
    """
    hits, members, predictions = counts
    is_present = members >= 0.5
    scores = 2.0 * hits / np.maximum(members + predictions, TINY)
    total = float(scores[is_present].sum())
    num_classes = int(is_present.sum())
    if remainder is not None and remainder[1] >= 0.5:
        num_absent = max(counts.shape[1] - num_classes, 1)
        total += num_absent * float(2.0 * remainder[0] / max(remainder[1] + remainder[2], TINY))
        num_classes += num_absent
    return total / num_classes if num_classes else 0.0
