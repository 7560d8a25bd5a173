"""Find wrong labels with nothing but labels and probabilities: numpy in, numpy out."""

from __future__ import annotations

from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from fedgsca.errors import ConfigError, DataError
from fedgsca.evidence import SiteEvidence, judge_labels
from fedgsca.labels.score import rank_labels

MIN_SUSPICION = 0.5  # more likely wrong than correct
SUM_TOLERANCE = 1e-2  # rows of float16 probabilities sum to 1 only roughly


@overload
def find_label_issues(
    labels: ArrayLike,
    probs: ArrayLike,
    *,
    quota: float | None = ...,
    return_mask: bool = ...,
    return_scores: Literal[False] = ...,
) -> np.ndarray: ...
@overload
def find_label_issues(
    labels: ArrayLike,
    probs: ArrayLike,
    *,
    quota: float | None = ...,
    return_mask: bool = ...,
    return_scores: Literal[True],
) -> tuple[np.ndarray, np.ndarray]: ...
def find_label_issues(
    labels: ArrayLike,
    probs: ArrayLike,
    *,
    quota: float | None = None,
    return_mask: bool = False,
    return_scores: bool = False,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Find the labels that are probably wrong, with the ranking of `fedgsca audit`.

    A transition matrix is fitted to labels and probabilities (docs/evidence.md); the suspicion of a
    label is the probability that its true class is another one (higher is worse). A label that the
    model agrees with is never an issue.

    Parameters
    ----------
    labels
        (n,) integers, the given class of each sample, 0 to C - 1.
    probs
        (n, C) probabilities of a model that has not memorised these labels: out-of-sample (from
        cross-validation) or from the first rounds of training. A model does not flag labels that it
        has memorised.
    quota
        None: every label that is more likely wrong than correct (suspicion of at least 0.5).
        A share between 0 and 1: the priority list of the audit instead, the most suspicious labels
        up to this share and at least three of every class.
    return_mask
        Return an (n,) boolean mask instead of indices.
    return_scores
        Also return the suspicion of every label, (n,) floats between 0 and 1, higher is worse.

    Returns
    -------
    issues
        (m,) indices of the suspected labels, the most suspicious first; or the (n,) mask.
    scores
        Only if `return_scores`.

    Examples
    --------
    >>> import numpy as np
    >>> classes = np.arange(40) % 2
    >>> probs = 0.8 * np.eye(2)[classes] + 0.1
    >>> labels = classes.copy()
    >>> labels[7] = 0
    >>> find_label_issues(labels, probs)
    array([7])
    """
    label_array, prob_array = _check_inputs(labels, probs)
    if quota is not None:
        check_quota(quota)
    judgement = judge_labels(prob_array, label_array, np.arange(len(label_array)) % 2)
    ranking = rank_labels(SiteEvidence.of(judgement), label_array, 0.1 if quota is None else quota)
    mask = ranking.priority
    if quota is None:
        doubtful = prob_array.argmax(axis=1) != label_array
        mask = doubtful & (ranking.suspicion >= MIN_SUSPICION)
    issues: np.ndarray = mask if return_mask else ranking.order[mask[ranking.order]]
    return (issues, ranking.suspicion) if return_scores else issues


def check_quota(quota: float) -> None:
    """Refuse a share of labels that is not between 0 and 1."""
    if not 0.0 <= quota <= 1.0:
        raise ConfigError(
            "audit.invalid-quota",
            f"the quota is a share of the labels and must be between 0 and 1, got {quota}",
            fix="use a share such as 0.1, which is 10 % of the labels",
        )


def _check_inputs(labels: ArrayLike, probs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Labels as (n,) int64 and probabilities as (n, C) float64, if they are valid."""
    label_array = np.asarray(labels)
    prob_array = np.asarray(probs)
    _check_labels(label_array)
    _check_probs(prob_array, len(label_array))
    classes = prob_array.shape[1]
    out_of_range = np.flatnonzero((label_array < 0) | (label_array >= classes))
    if len(out_of_range):
        row = int(out_of_range[0])
        raise DataError(
            "audit.label-out-of-range",
            f"labels[{row}] is {label_array[row]}, but probs has {classes} columns",
            fix=f"number the classes from 0 to {classes - 1}, in the order of the columns of probs",
        )
    return label_array.astype(np.int64), prob_array.astype(np.float64)


def _check_labels(labels: np.ndarray) -> None:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            "audit.labels-not-integers",
            f"labels must be an (n,) array of integers, got shape {labels.shape} of {labels.dtype}",
            fix="pass class indices; numpy.unique(names, return_inverse=True)[1] makes them from"
            " names",
        )
    if not len(labels):
        raise DataError(
            "audit.no-labels",
            "labels is empty",
            fix="pass at least one label with its probabilities",
        )


def _check_probs(probs: np.ndarray, n: int) -> None:
    if probs.ndim != 2 or len(probs) != n or probs.shape[1] < 2:
        raise DataError(
            "audit.probs-shape",
            f"probs must have the shape ({n}, C) with C of at least 2, got {probs.shape}",
            fix="pass one row per label and one column per class",
        )
    if not np.issubdtype(probs.dtype, np.number) or not np.isfinite(probs).all():
        raise DataError(
            "audit.probs-not-finite",
            "probs contains values that are not finite numbers",
            fix="check the model that computed them: its outputs have diverged",
        )
    sums = probs.sum(axis=1, dtype=np.float64)
    invalid = np.flatnonzero((probs < 0).any(axis=1) | (np.abs(sums - 1.0) > SUM_TOLERANCE))
    if len(invalid):
        row = int(invalid[0])
        raise DataError(
            "audit.probs-not-normalised",
            f"probs[{row}] is not a probability distribution: its smallest value is"
            f" {probs[row].min():.4g} and its sum is {sums[row]:.4g}",
            fix="apply a softmax to the model's outputs first",
        )
