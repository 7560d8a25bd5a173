"""Evidence about the labels of one hospital that trains alone.

The same evidence heads as in a federation (fedgsca/evidence.py, docs/evidence.md), with more folds:
a single hospital has fewer images, so each head sees four fifths of them instead of three quarters.
No image is judged by a head that was trained on it, or on another image of the same patient.

    for every epoch t:
        p_i     += opinion of head f(i) about image i          judge
        at t = 8, 13, 18, ...:
            kappa, T, pi, r <- from the mean opinion           Judgement.transition
            targets         <- r
        heads   <- one epoch with small steps                  train_heads
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgsca.evidence import (
    Heads,
    Judgement,
    head_targets,
    judge,
    judge_alone,
    layer_normalise,
    to_halves,
    train_heads,
)
from fedgsca.rng import stream
from fedgsca.support.checked_labels import CheckedLabels
from fedgsca.support.console import activity

# a head is trained on four fifths of the images
NUM_FOLDS = 5
NUM_EPOCHS = 40
# earlier heads know too little
FIRST_JUDGED_EPOCH = 3
# epochs after which the posterior is computed again: 8, 13, 18, ...
FIRST_REFRESH = 8
REFRESH_EVERY = 5


@dataclass(frozen=True)
class LocalLabels:
    """What is known about the images of one hospital."""

    # (n, D) features of a frozen backbone
    features: np.ndarray
    # (n,) class indices
    given: np.ndarray
    # (n,) the fold of each image, 0 to NUM_FOLDS - 1
    folds: np.ndarray
    num_classes: int
    # None: nobody has checked a label
    checked: CheckedLabels | None = None


def collect_local_evidence(
    labels: LocalLabels, seed: int, *, num_epochs: int = NUM_EPOCHS
) -> Judgement:
    """Train the heads and let them judge; the newest judgement."""
    features = layer_normalise(np.asarray(labels.features, dtype=np.float32))
    n, width = features.shape
    heads = Heads.zeros(width, labels.num_classes, NUM_FOLDS)
    targets = np.eye(labels.num_classes)[labels.given]
    opinion_sum = np.zeros((n, labels.num_classes))
    judgement: Judgement | None = None
    with activity("judging labels", num_epochs) as advance:
        for epoch in range(num_epochs):
            if epoch >= FIRST_JUDGED_EPOCH:
                opinion_sum += judge(heads, features, labels.folds)
            balanced_targets, weights = head_targets(targets)
            if _is_refresh(epoch):
                judgement = judge_alone(
                    opinion_sum / opinion_sum.sum(axis=1, keepdims=True),
                    labels.given,
                    to_halves(labels.folds),
                    weights=weights,
                    checked=labels.checked,
                )
                targets = judgement.transition(labels.given, labels.checked).posterior
                opinion_sum = np.zeros_like(opinion_sum)
            order = stream(seed, "local-evidence", epoch).permutation(n)
            heads = train_heads(heads, features, balanced_targets, weights, labels.folds, order)
            advance(1)
    assert judgement is not None, "num_epochs is larger than FIRST_REFRESH"
    return judgement


def _is_refresh(epoch: int) -> bool:
    return epoch >= FIRST_REFRESH and (epoch - FIRST_REFRESH) % REFRESH_EVERY == 0
