"""Quality of a site's decisions, measured in a simulation, which knows the true labels.

Never part of an update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgsca.metrics import auroc, detection

PREFIXES = ("noisy_", "pseudo_", "label_accuracy_")  # of the names of these numbers


def measure_decisions(
    notes: Mapping[str, np.ndarray], truth: np.ndarray | None, given: np.ndarray
) -> dict[str, float | None]:
    """Selector and pseudo-label quality from the notes that a method leaves; empty without truth.

    Names of notes: losses (n,), clean (n,) bool, clean_probability (n,), pseudo_rows (m,),
    pseudo_labels (m,), corrected (n,) labels. `truth` and `given` are labels (n,).
    """
    if truth is None:
        return {}
    is_wrong = given != truth
    metrics: dict[str, float | None] = {}
    if "clean" in notes:
        quality = detection(~notes["clean"], is_wrong)
        metrics["noisy_precision"] = quality["precision"]
        metrics["noisy_recall"] = quality["recall"]
    if "clean_probability" in notes:
        metrics["noisy_auroc"] = auroc(-notes["clean_probability"], is_wrong)
    elif "losses" in notes:
        metrics["noisy_auroc"] = auroc(notes["losses"], is_wrong)
    rows = notes.get("pseudo_rows")
    if rows is not None:
        is_right = notes["pseudo_labels"] == truth[rows]
        metrics["pseudo_count"] = float(len(rows))
        metrics["pseudo_accuracy"] = float(np.mean(is_right)) if len(rows) else None
    if "corrected" in notes:
        metrics["label_accuracy_before"] = float(np.mean(given == truth))
        metrics["label_accuracy_after"] = float(np.mean(notes["corrected"] == truth))
    return metrics


def check_metrics(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """The metrics that a site of a rehearsal reports; ValueError for anything else.

    They go into the log beside checked numbers.
    """
    for name, value in metrics.items():
        is_number = isinstance(value, (int, float)) and math.isfinite(value)
        if not name.startswith(PREFIXES) or not (value is None or is_number):
            raise ValueError(f"{name} is not a simulation metric")
    return dict(metrics)
