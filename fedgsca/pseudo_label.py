"""ATP, adaptive-threshold pseudo-labels (Eq. 8-12 of the paper), and the site's training set for the round (Eq. 13).

A site whose selector flags at least a tenth of its labels drops the flagged labels and asks the received global model instead:
its prediction becomes the label where it is confident enough for that class. Everything here lives for one round; the given
labels are never overwritten.

Shapes throughout: probs (n, C) from the model as received, `clean` (n,) bool from the selector, labels (n,) int.
Equation numbers count the paper's displayed equations.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np

Average = Literal["literal", "per_class"]


def is_noisy_client(clean: np.ndarray, threshold: float = 0.1) -> bool:
    """delta_k = |D^n| / |D_k| >= threshold (Eq. 8), in whole numbers: 1 of 10 counts as a tenth whatever floats say."""
    limit = Fraction(str(threshold))
    flagged = clean.size - int(np.count_nonzero(clean))
    return clean.size > 0 and flagged * limit.denominator >= limit.numerator * clean.size


def class_thresholds(
    probs: np.ndarray, clean: np.ndarray, *, base: float = 0.8, average: Average = "literal"
) -> np.ndarray:
    """zeta_c (Eq. 10): `base` (the paper's zeta_0) for the class with the highest average confidence, lower for the others.

    Avg_c (Eq. 9) sums the confidence of the clean samples predicted as c. "literal" divides by the number of all clean samples,
    as printed: rare classes get very low thresholds. "per_class" divides by the number of those predicted as c, as the words
    "average confidence for each class" say. A class never predicted on clean samples gets `base`: the literal 0 would accept
    any guess for the very class that nothing speaks for.
    """
    confidence, predicted = probs.max(axis=1)[clean].astype(np.float64), probs.argmax(axis=1)[clean]
    count = np.bincount(predicted, minlength=probs.shape[1])  # (C,) clean samples predicted as c
    mass = np.bincount(
        predicted, weights=confidence, minlength=probs.shape[1]
    )  # (C,) their summed confidence
    if average == "literal":
        avg = mass / max(predicted.size, 1)
    elif average == "per_class":
        avg = mass / np.maximum(count, 1)
    else:
        raise ValueError(f"unknown average {average!r}: literal or per_class")
    return (
        np.where(count > 0, base * (avg / avg.max()), base)
        if predicted.size
        else np.full(avg.shape, base)
    )


def assign(
    probs: np.ndarray, clean: np.ndarray, thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(labels, keep): the model's argmax for every sample (Eq. 11), and the noisy samples that pass, D^pseudo (Eq. 12)."""
    labels = probs.argmax(axis=1)
    return labels, ~clean & (probs.max(axis=1) >= thresholds[labels])


def training_set(
    labels: np.ndarray,
    probs: np.ndarray,
    clean: np.ndarray,
    thresholds: np.ndarray,
    *,
    noise_level: float = 0.1,
) -> tuple[np.ndarray, np.ndarray]:
    """D_hat (Eq. 13) as (row indices ascending, their labels).

    A noisy site trains on D^c with given labels and D^pseudo with pseudo-labels; the other flagged samples rest this round. A
    site with fewer flags than `noise_level` trains on all of D_k as given.
    """
    if not is_noisy_client(clean, noise_level):
        return np.arange(labels.size), labels.copy()
    pseudo, keep = assign(probs, clean, thresholds)
    rows = np.flatnonzero(clean | keep)
    return rows, np.where(clean, labels, pseudo)[rows]


def distribution_shift(given: np.ndarray, chosen: np.ndarray, num_classes: int) -> float:
    """Total variation between two label distributions: 0 the same, 1 nothing in common (also if only one is empty)."""
    if given.size == 0 or chosen.size == 0:
        return 0.0 if given.size == chosen.size else 1.0
    p = np.bincount(given, minlength=num_classes) / given.size
    q = np.bincount(chosen, minlength=num_classes) / chosen.size
    return float(0.5 * np.abs(p - q).sum())


def guard_reason(
    given_labels: np.ndarray,
    chosen_labels: np.ndarray,
    delta: float,
    num_classes: int,
    *,
    max_delta: float = 0.8,
    max_shift: float = 0.5,
    min_class: int = 10,
) -> str | None:
    """Why this round's D_hat should not be trusted, in words for the log; None if it looks sane (not in the paper).

    A model that trains on its own pseudo-labels can run away: more and more labels flagged, fewer and fewer classes left. These
    are the three signs a site can see without knowing the truth. The answer is to train this round on D_k as given.
    """
    if delta > max_delta:
        return f"{delta:.0%} of the labels are flagged (limit {max_delta:.0%})"
    before = np.bincount(given_labels, minlength=num_classes)
    after = np.bincount(chosen_labels, minlength=num_classes)
    lost = np.flatnonzero((before >= min_class) & (after == 0))
    if lost.size:
        return f"no sample left of class {', '.join(map(str, lost))} ({', '.join(map(str, before[lost]))} given)"
    shift = distribution_shift(given_labels, chosen_labels, num_classes)
    if shift > max_shift:
        return f"the class distribution moved by {shift:.2f} (limit {max_shift:.2f})"
    return None
