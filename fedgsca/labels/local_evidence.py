"""Evidence about the labels of one hospital that trains alone.

A ridge regression of the labels on frozen features, in closed form. Each image is judged by the
regression on all images but its own, and but those of the same patient: exactly, without fitting it
again. Nothing is drawn at random, and nothing depends on the order of the images.

    t, w   <- the given labels, balanced; later the posterior r           head_targets
    H      =  X (X' W X + lambda D I)^-1 X' W                             X has n rows of D features
    z_i    <- prediction of i without its group                           predict_others
    p_i    <- softmax(SCALE z_i)
    kappa, T, pi, r <- from p                                             Judgement.transition

This is done three times: r leaves out of the targets what is probably wrong. docs/evidence.md has
what it finds beside heads that are trained in small steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgsca.evidence import (
    TINY,
    Judgement,
    head_targets,
    judge_alone,
    layer_normalise,
    softmax,
    to_halves,
)
from fedgsca.support.checked_labels import CheckedLabels
from fedgsca.support.console import activity

# times that targets are used: the given labels first, then r
REFRESHES = 3
# lambda: strength of the ridge; D is the squared length of a normalised vector
RIDGE = 1.0
# brings predictions, which lie between 0 and 1, near the log-odds that kappa chooses among
SCALE = 6.0


@dataclass(frozen=True)
class LocalLabels:
    """What is known about the images of one hospital."""

    # (n, D) features of a frozen backbone
    features: np.ndarray
    # (n,) class indices
    given: np.ndarray
    # (n,) the number of each image's patient, or one number for all copies of an image
    groups: np.ndarray
    num_classes: int
    # None: nobody has checked a label
    checked: CheckedLabels | None = None


def collect_local_evidence(labels: LocalLabels, *, refreshes: int = REFRESHES) -> Judgement:
    """The newest judgement of the labels."""
    features = layer_normalise(np.asarray(labels.features, dtype=np.float64))
    targets = np.eye(labels.num_classes)[labels.given]
    judgement: Judgement | None = None
    with activity("judging labels", refreshes) as advance:
        for _ in range(refreshes):
            balanced_targets, weights = head_targets(targets)
            predictions = predict_others(features, balanced_targets, weights, labels.groups)
            judgement = judge_alone(
                softmax(SCALE * predictions),
                labels.given,
                to_halves(labels.groups),
                weights=weights,
                checked=labels.checked,
            )
            targets = judgement.transition(labels.given, labels.checked).posterior
            advance(1)
    assert judgement is not None, "refreshes is at least 1"
    return judgement


def predict_others(
    features: np.ndarray, targets: np.ndarray, weights: np.ndarray, groups: np.ndarray
) -> np.ndarray:
    """(n, C): the ridge regression's prediction for each image, fitted without its group.

    features (n, D) normalised, targets (n, C), weights (n,), groups (n,). With the hat matrix H of
    all images and its block of a group g, the prediction without the group is
    t_g - (I - H_gg)^-1 (t_g - (H t)_g). Where the features say nothing, it is the other groups'
    mean target.
    """
    n, width = features.shape
    roots = np.sqrt(weights)[:, None]
    rows = roots * features
    strength = RIDGE * width
    # H = factor transpose
    if n <= width:
        products = rows @ rows.T
        factor = np.linalg.solve(products + strength * np.eye(n), products)
        transpose = np.eye(n)
    else:
        factor = rows @ np.linalg.inv(rows.T @ rows + strength * np.eye(width))
        transpose = rows.T
    # of the targets, and of 1: the share of a prediction that is not the mean
    values = roots * np.column_stack([targets, np.ones(n)])
    residuals = values - factor @ (transpose @ values)
    sums = weights @ targets
    means = np.empty_like(targets)
    for members in split_groups(groups):
        block = np.eye(len(members)) - factor[members] @ transpose[:, members]
        residuals[members] = np.linalg.solve(block, residuals[members])
        other_sums = sums - weights[members] @ targets[members]
        means[members] = other_sums / max(weights.sum() - weights[members].sum(), TINY)
    predictions = (values - residuals) / roots
    return np.asarray(predictions[:, :-1] + (1.0 - predictions[:, -1:]) * means)


def split_groups(groups: np.ndarray) -> list[np.ndarray]:
    """The rows of each group."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    return np.split(order, starts)
