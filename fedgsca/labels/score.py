"""From a judgement of labels to a ranking: how suspicious they are, and how many are wrong.

Pure functions of numpy arrays; `given` are the labels under audit, (n,) class indices. The evidence
heads give the probability of each true class, and 1 - r_i(y_i) is the suspicion of a label
(fedgsca/evidence.py, docs/evidence.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedgsca import evidence as heads
from fedgsca.labels.wrong_count import CountModels, estimate_wrong
from fedgsca.support.checked_labels import CheckedLabels

# the given label is named in a reason if it has at least this probability
MIN_NAMED_PROBABILITY = 0.1
# Probabilities of the true class are not calibrated, so people are shown one of three levels: the
# first one whose limit a probability reaches.
LEVELS = (("strong", 0.9), ("moderate", 0.6), ("weak", 0.0))
MIN_PER_CLASS = 3  # labels of every class on the priority list, if so many are doubtful


@dataclass(frozen=True)
class LabelRanking:
    """The labels of one site, ordered by suspicion."""

    # (m,) rows, contradicting copies first, then the most suspicious; without labels that a person
    # has checked
    order: np.ndarray
    # (n,) 0 to 1 by row, higher is worse; never rises along `order` after the copies
    suspicion: np.ndarray
    # (n,) class index: the most probable class other than the given one
    suggestion: np.ndarray
    # (n,) bool by row: on the priority list
    priority: np.ndarray
    # (n, C) by row: r, probabilities of the true class
    probs: np.ndarray
    # None: nobody has checked a label
    checked: CheckedLabels | None = None
    # row -> rows of identical or near-identical images with another label
    copies: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ErrorEstimate:
    """A number of wrong labels, and the interval that contains the true one nine times in ten."""

    count: float
    low: float
    high: float
    can_tell: bool = True


def rank_labels(
    evidence: heads.SiteEvidence,
    given: np.ndarray,
    quota: float = 0.1,
    checked: CheckedLabels | None = None,
) -> LabelRanking:
    """Rank the labels `given`, (n,), by the evidence against them.

    `quota` is the share of the labels on the priority list, see `review_mask`. Labels that a person
    has `checked` are right and not listed.
    """
    probs = evidence.posterior(given, checked)
    suspicion = heads.suspicion(probs, given)
    # near 1 the suspicion has too few digits for an order
    scores = heads.label_losses(probs, given)
    order = np.lexsort((np.arange(len(given)), -scores))
    if checked is not None:
        order = order[~checked.mask[order]]
        suspicion = np.where(checked.mask, 0.0, suspicion)
    other_probs = probs.copy()
    other_probs[np.arange(len(given)), given] = -1.0
    suggestion = other_probs.argmax(axis=1)
    priority = review_mask(order, probs, given, quota)
    return LabelRanking(order, suspicion, suggestion, priority, probs, checked)


def review_mask(
    order: np.ndarray, probs: np.ndarray, given: np.ndarray, quota: float
) -> np.ndarray:
    """(n,) bool: the priority list.

    It has the first `quota` of `order` and, of every given class, the first half-quota. Without the
    second part (at least three labels per class), rare classes would disappear behind frequent
    ones. A label that is the most probable class under probs, (n, C), is never on the list, so a
    clean site has few labels on it.
    """
    mask = np.zeros(len(given), bool)
    doubtful = order[probs[order].argmax(axis=1) != given[order]]
    mask[doubtful[: math.ceil(quota * len(given))]] = True
    for label in np.unique(given):
        class_rows = doubtful[given[doubtful] == label]
        half_quota = math.ceil(quota * np.count_nonzero(given == label) / 2)
        mask[class_rows[: max(MIN_PER_CLASS, half_quota)]] = True
    return mask


def list_copies_first(
    ranking: LabelRanking, given: np.ndarray, pairs: Sequence[tuple[int, int]]
) -> LabelRanking:
    """The ranking with contradicting copies at its top, each beside the other, all to be reviewed.

    `pairs` are rows of (near-)identical images with different labels `given`, (n,). The label of
    the copy is suggested, whatever the evidence says. A pair that a person has checked is settled.
    """
    checked = np.zeros(len(given), bool) if ranking.checked is None else ranking.checked.mask
    copies: dict[int, list[int]] = {}
    for one, two in pairs:
        for row, copy in ((one, two), (two, one)):
            if not checked[row]:
                copies.setdefault(row, []).append(copy)
    first = []
    for row in ranking.order.tolist():
        if row in copies:
            first += [row, *(copy for copy in copies[row] if copy in copies)]
    suggestion = ranking.suggestion.copy()
    priority = ranking.priority.copy()
    for row, rows in copies.items():
        labels = given[rows]
        frequency = np.bincount(labels, minlength=ranking.probs.shape[1])
        suggestion[row] = max(labels, key=lambda label: (frequency[label], -label))
        priority[row] = True
    order = np.array(list(dict.fromkeys([*first, *ranking.order.tolist()])), np.int64)
    return replace(ranking, order=order, suggestion=suggestion, priority=priority, copies=copies)


def count_certain_errors(
    pairs: Sequence[tuple[int, int]], checked: CheckedLabels | None = None
) -> int:
    """How many labels of contradicting copies are wrong at least.

    One of every pair, no row counted twice; the other one, where a person has checked the first.
    """
    certain = set() if checked is None else set(np.flatnonzero(checked.mask).tolist())
    wrong = set()
    for one, two in pairs:
        if (one in certain) != (two in certain):
            wrong.add(two if one in certain else one)
    settled_rows = certain | wrong
    num_wrong = len(wrong)
    for one, two in pairs:
        if one not in settled_rows and two not in settled_rows:
            settled_rows |= {one, two}
            num_wrong += 1
    return num_wrong


def count_errors(models: CountModels, n: int, mask: np.ndarray | None = None) -> ErrorEstimate:
    """How many of n labels are wrong, or of those in `mask`, (n,) bool."""
    estimate = estimate_wrong(models, mask)
    n = n if mask is None else int(mask.sum())
    return ErrorEstimate(n * estimate.share, n * estimate.low, n * estimate.high, estimate.can_tell)


def select_clean_examples(
    given: np.ndarray, ranking: LabelRanking, count: int = 12
) -> dict[int, np.ndarray]:
    """Class index -> up to `count` rows whose labels are most certainly correct.

    The least suspicious ones of the class, among labels that the evidence agrees with.
    """
    agreement = ranking.probs.argmax(axis=1) == given
    if ranking.checked is not None:
        # right, but they were checked because they did not look like it
        agreement = agreement & ~ranking.checked.mask
    agreement[list(ranking.copies)] = False
    examples = {}
    for label in range(ranking.probs.shape[1]):
        rows = np.flatnonzero((given == label) & agreement)
        examples[label] = rows[np.argsort(ranking.suspicion[rows], kind="stable")[:count]]
    return examples


def evidence_level(probability: float) -> str:
    """One of LEVELS."""
    return next(level for level, limit in LEVELS if probability >= limit)


def describe_label(ranking: LabelRanking, row: int, given: int, classes: tuple[str, ...]) -> str:
    """Why this label is on the list, in words for the person who decides about it."""
    probs = ranking.probs[row]
    other_probs = probs.copy()
    other_probs[given] = -1.0
    suggestion = int(other_probs.argmax())
    start = f"labelled {classes[given]}; "
    if row in ranking.copies:
        start += f"a copy of the image is labelled {classes[ranking.suggestion[row]]}; "
    if probs[given] >= probs[suggestion]:
        return f"{start}the evidence agrees ({evidence_level(probs[given])})"
    reason = f"{start}the evidence says {classes[suggestion]}"
    reason += f" ({evidence_level(probs[suggestion])})"
    if probs[given] >= MIN_NAMED_PROBABILITY:
        reason += f", but {classes[given]} is possible"
    return reason
