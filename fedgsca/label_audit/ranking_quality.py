"""How good a ranking is, in a simulation, which knows the wrong labels."""

from __future__ import annotations

import math

import numpy as np

from fedgsca.experiment.records import RankingTruth
from fedgsca.metrics import auroc

EFFORT_STEPS = 20  # points of the curve of review effort


def precision_at(order: np.ndarray, wrong: np.ndarray, k: int) -> float | None:
    """Share of wrong labels among the first k of the list `order`; None for an empty list."""
    if not k or not len(order):
        return None
    return float(wrong[order[:k]].mean())


def first_tenth(n: int) -> int:
    """The size of the first tenth of a list of n labels, at least one label if there is any."""
    return math.ceil(0.1 * n)


def measure_ranking(order: np.ndarray, wrong: np.ndarray) -> RankingTruth:
    """What a reviewer finds in the list `order`, (n,) rows; `wrong` is (n,) bool by row.

    "10%" is the first tenth of the list. Where fewer than a tenth of the labels are wrong, no list
    can reach 1 there; "errors", the first as many labels as there are errors, can do so at every
    site. Both are None at a site without errors.
    """
    n = len(order)
    errors = int(wrong.sum())
    scores = np.empty(n)
    scores[order] = -np.arange(n, dtype=np.float64)
    errors_up_to = np.concatenate([[0], np.cumsum(wrong[order])])  # (n + 1,) by labels reviewed
    precision: dict[str, float | None] = {}
    recall: dict[str, float | None] = {}
    for name, k in (("10%", first_tenth(n)), ("errors", errors)):
        precision[name] = precision_at(order, wrong, k) if errors else None
        recall[name] = int(errors_up_to[k]) / errors if errors and k else None
    steps = sorted({round(n * i / EFFORT_STEPS) for i in range(EFFORT_STEPS + 1)})
    return RankingTruth(
        num_wrong=errors,
        auroc=auroc(scores, wrong),
        precision_at=precision,
        recall_at=recall,
        effort=tuple((k, int(errors_up_to[k])) for k in steps),
    )
