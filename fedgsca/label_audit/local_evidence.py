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

from fedgsca.checked_labels import CheckedLabels
from fedgsca.engine.label_evidence import add_round
from fedgsca.evidence import (
    POWERS,
    TINY,
    Heads,
    Judgement,
    best_power,
    class_masses,
    explain_parts,
    head_targets,
    judge,
    layer_normalise,
    normalise_mix,
    sharpen,
    to_halves,
    train_heads,
)
from fedgsca.rng import stream
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
) -> tuple[dict[str, np.ndarray], Judgement]:
    """Train the heads and let them judge: sums for `mean_evidence`, and the newest judgement."""
    features = layer_normalise(np.asarray(labels.features, dtype=np.float32))
    n, width = features.shape
    heads = Heads.zeros(width, labels.num_classes, NUM_FOLDS)
    targets = np.eye(labels.num_classes)[labels.given]
    opinion_sum = np.zeros((n, labels.num_classes))
    sums: dict[str, np.ndarray] = {}
    judgement: Judgement | None = None
    with activity("judging labels", num_epochs) as advance:
        for epoch in range(num_epochs):
            if epoch >= FIRST_JUDGED_EPOCH:
                opinion = judge(heads, features, labels.folds)
                opinion_sum += opinion
                sums = _add_opinion(sums, opinion, labels.given)
            balanced_targets, weights = head_targets(targets)
            if _is_refresh(epoch):
                judgement = _make_judgement(opinion_sum, weights, labels)
                targets = judgement.transition(labels.given, labels.checked).posterior
                opinion_sum = np.zeros_like(opinion_sum)
            order = stream(seed, "local-evidence", epoch).permutation(n)
            heads = train_heads(heads, features, balanced_targets, weights, labels.folds, order)
            advance(1)
    assert judgement is not None, "num_epochs is larger than FIRST_REFRESH"
    return sums, judgement


def _is_refresh(epoch: int) -> bool:
    return epoch >= FIRST_REFRESH and (epoch - FIRST_REFRESH) % REFRESH_EVERY == 0


def _add_opinion(
    sums: dict[str, np.ndarray], opinion: np.ndarray, given: np.ndarray
) -> dict[str, np.ndarray]:
    losses = -np.log(np.maximum(opinion[np.arange(len(given)), given], TINY))
    return add_round(sums, opinion, losses, None)


def _make_judgement(opinion_sum: np.ndarray, weights: np.ndarray, labels: LocalLabels) -> Judgement:
    """The judgement by the opinions since the last one; kappa by labels that T has not seen."""
    probs = opinion_sum / opinion_sum.sum(axis=1, keepdims=True)
    references = normalise_mix(class_masses(probs, weights))
    halves = to_halves(labels.folds)
    likelihoods = []
    for power, reference in zip(POWERS, references, strict=True):
        value, _ = explain_parts(
            sharpen(probs, power), labels.given, halves, reference, checked=labels.checked
        )
        likelihoods.append(value)
    return Judgement(probs, references, best_power(np.array(likelihoods)))
