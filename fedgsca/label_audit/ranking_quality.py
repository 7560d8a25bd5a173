"""How good a ranking is, in a simulation, which knows the truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedgsca.metrics import auroc


def precision_at(order: np.ndarray, wrong: np.ndarray, k: int) -> float | None:
    """Share of the first k of the list that are wrong; None for an empty list."""
    return float(wrong[order[:k]].mean()) if k and len(order) else None


def tenth(n: int) -> int:
    return math.ceil(0.1 * n)


def against_truth(order: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """What a reviewer who works down the list would find.

    "10%" is the first tenth of the list. Where fewer than a tenth of the labels are wrong, no list can be right there throughout;
    "errors", the first as many as there are errors, has 1 as its best value at every site. Both are null at a site without errors.
    """
    n, errors = len(order), int(wrong.sum())
    places = {"10%": tenth(n), "errors": errors}
    score = np.empty(n)
    score[order] = -np.arange(n, dtype=np.float64)
    found = np.cumsum(wrong[order])
    steps = sorted({round(n * i / 20) for i in range(21)})
    return {
        "wrong": errors,
        "auroc": auroc(score, wrong),
        "precision_at": {
            name: precision_at(order, wrong, k) if errors else None for name, k in places.items()
        },
        "recall_at": {
            name: int(found[k - 1]) / errors if errors and k else None for name, k in places.items()
        },
        "effort": [[k, int(found[k - 1]) if k else 0] for k in steps],
    }
