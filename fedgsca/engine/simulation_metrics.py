"""What a simulation can say about a site's round because it knows the truth. Never part of an update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgsca.metrics import auroc, detection

KINDS = ("noisy_", "pseudo_", "label_accuracy_")  # how the names of these numbers begin


def observe(
    notes: Mapping[str, np.ndarray], truth: np.ndarray | None, given: np.ndarray
) -> dict[str, float | None]:
    """Selector and pseudo-label quality from the method's notes. Names a method may leave:

    losses (n,), clean (n,) bool, clean_probability (n,), pseudo_rows (m,), pseudo_labels (m,), corrected (n,) labels
    """
    if truth is None:
        return {}
    wrong = given != truth
    seen: dict[str, float | None] = {}
    if "clean" in notes:
        seen |= {
            f"noisy_{name}": value
            for name, value in detection(~notes["clean"], wrong).items()
            if name != "rate"
        }
    if "clean_probability" in notes:
        seen["noisy_auroc"] = auroc(-notes["clean_probability"], wrong)
    elif "losses" in notes:
        seen["noisy_auroc"] = auroc(notes["losses"], wrong)
    rows = notes.get("pseudo_rows")
    if rows is not None:
        seen["pseudo_count"] = float(len(rows))
        seen["pseudo_accuracy"] = (
            float(np.mean(notes["pseudo_labels"] == truth[rows])) if len(rows) else None
        )
    if "corrected" in notes:
        seen["label_accuracy_before"] = float(np.mean(given == truth))
        seen["label_accuracy_after"] = float(np.mean(notes["corrected"] == truth))
    return seen


def believed(told: Mapping[str, Any]) -> dict[str, float | None]:
    """What a site of a rehearsal says that it saw. It goes into the log beside checked numbers, so nothing else may be in it."""
    for name, value in told.items():
        number = value is None or (isinstance(value, (int, float)) and math.isfinite(value))
        if not name.startswith(KINDS) or not number:
            raise ValueError(f"{name} is not a number that is observed")
    return dict(told)
