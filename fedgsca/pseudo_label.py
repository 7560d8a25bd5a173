"""ATP, adaptive-threshold pseudo-labels (Eq. 8-13 of the paper): the training set of one round.

A site whose selector flags at least a tenth of its labels discards the flagged labels and asks the
received global model instead: its prediction becomes the label where it is confident enough for
that class. Everything here lasts one round; the given labels are never overwritten.

    delta_k   share of flagged labels                       Eq. 8       noise_level
    Avg_c, zeta_c   thresholds of the classes               Eq. 9-10    class_thresholds
    y_hat, D^pseudo   predictions that pass                 Eq. 11-12   assign
    D_hat     D^c and D^pseudo, or all of D_k               Eq. 13      training_set

Shapes throughout: probs (n, C) are of the model as received, not yet trained on these labels; clean
(n,) bool is D^c, all labels that are not flagged (by default including the doubtful ones); labels
(n,) int. Equation numbers count the paper's displayed equations.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np

Average = Literal["literal", "per_class"]
UnseenClass = Literal["zeta", "zero"]


def noise_level(clean: np.ndarray) -> float:
    """delta_k = |D^n| / |D_k| (Eq. 8), the share of the labels that `clean`, (n,) bool, flags."""
    return float(np.mean(~clean)) if clean.size else 0.0


def is_noisy_client(clean: np.ndarray, threshold: float = 0.1) -> bool:
    """delta_k >= threshold, the condition of Eq. 13.

    The comparison is in integers: 1 of 10 is a tenth, whatever floating point says.
    """
    limit = Fraction(str(threshold))
    num_noisy = clean.size - int(np.count_nonzero(clean))
    return clean.size > 0 and num_noisy * limit.denominator >= limit.numerator * clean.size


def class_thresholds(
    probs: np.ndarray,
    clean: np.ndarray,
    *,
    base: float = 0.8,
    average: Average = "literal",
    unseen: UnseenClass = "zeta",
) -> np.ndarray:
    """(C,): zeta_c (Eq. 10), `base` (zeta_0) for the class with the highest Avg_c, else lower.

    Avg_c (Eq. 9) sums the confidence m_i of the clean samples that are predicted as c. "literal"
    divides by the number of all clean samples, as printed: rare classes get very low thresholds.
    "per_class" divides by the number of those predicted as c, as the words "average confidence for
    each class" say.

    A class that is never predicted on clean samples has Avg_c = 0. Eq. 10 as printed gives it the
    threshold 0 (`unseen="zero"`), which accepts any guess for the very class without any evidence;
    "zeta" gives it `base`. Without any clean sample Eq. 10 is 0 / 0, and all classes get `base`.
    """
    num_classes = probs.shape[1]
    confidence = probs.max(axis=1)[clean].astype(np.float64)  # m_i of D^c
    prediction = probs.argmax(axis=1)[clean]
    count = np.bincount(prediction, minlength=num_classes)  # (C,) clean samples predicted as c
    total = np.bincount(prediction, weights=confidence, minlength=num_classes)  # (C,) sums of m_i
    if average == "literal":
        avg = total / max(prediction.size, 1)
    elif average == "per_class":
        avg = total / np.maximum(count, 1)
    else:
        raise ValueError(f"unknown average {average!r}: use literal or per_class")
    if prediction.size == 0:
        return np.full(avg.shape, base)
    return np.where(count > 0, base * (avg / avg.max()), base if unseen == "zeta" else 0.0)


def assign(
    probs: np.ndarray, clean: np.ndarray, thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(labels, keep), both (n,): y_hat (Eq. 11), and the mask of D^pseudo (Eq. 12).

    y_hat is the argmax of every sample; `keep` marks the noisy samples whose confidence reaches the
    threshold (C,) of the predicted class.
    """
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
    """D_hat (Eq. 13) as (row indices in ascending order, their labels), both (m,).

    A noisy site trains on D^c with the given labels and on D^pseudo with pseudo-labels; its other
    flagged samples are left out of this round. A site with a smaller share of flags than
    `noise_level` trains on all of D_k as given.
    """
    if not is_noisy_client(clean, noise_level):
        return np.arange(labels.size), labels.copy()
    pseudo, keep = assign(probs, clean, thresholds)
    rows = np.flatnonzero(clean | keep)
    return rows, np.where(clean, labels, pseudo)[rows]


# ---- the guard against collapse (not in the paper) ----


def distribution_shift(given: np.ndarray, training: np.ndarray, num_classes: int) -> float:
    """Total variation between the distributions of two label arrays.

    0: the same; 1: nothing in common, also if only one of them is empty.
    """
    if given.size == 0 or training.size == 0:
        return 0.0 if given.size == training.size else 1.0
    p = np.bincount(given, minlength=num_classes) / given.size
    q = np.bincount(training, minlength=num_classes) / training.size
    return float(0.5 * np.abs(p - q).sum())


def guard_reason(
    given_labels: np.ndarray,
    training_labels: np.ndarray,
    delta: float,
    num_classes: int,
    *,
    max_delta: float = 0.8,
    max_shift: float = 0.5,
    min_class: int = 10,
) -> str | None:
    """Why this round's D_hat should not be trusted, for the log; None if it looks sane.

    A model that trains on its own pseudo-labels can run away: more and more labels are flagged,
    fewer and fewer classes are left. These are the three signs that a site can see without knowing
    the truth. The remedy is to train this round on D_k as given.
    """
    if delta > max_delta:
        return f"{delta:.0%} of the labels are flagged (limit {max_delta:.0%})"
    given_counts = np.bincount(given_labels, minlength=num_classes)
    training_counts = np.bincount(training_labels, minlength=num_classes)
    empty = np.flatnonzero((given_counts >= min_class) & (training_counts == 0))
    if empty.size:
        classes = ", ".join(map(str, empty))
        counts = ", ".join(map(str, given_counts[empty]))
        return f"no sample left of class {classes} ({counts} given)"
    shift = distribution_shift(given_labels, training_labels, num_classes)
    if shift > max_shift:
        return f"the class distribution moved by {shift:.2f} (limit {max_shift:.2f})"
    return None
