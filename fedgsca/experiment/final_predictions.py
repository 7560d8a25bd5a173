"""test-probabilities.npz: what the final model says about every test image.

It is written once, when a run ends, on the machine that has the test images. All statistics of the
result come from it, and anybody can compute others. It names images and groups: it stays there.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgsca.experiment.simulation import Experiment
from fedgsca.support.files import write_atomic

FILE = "test-probabilities.npz"


@dataclass(frozen=True)
class FinalPredictions:
    """The test images in the order of the data set."""

    ids: np.ndarray  # (n,) str
    labels: np.ndarray  # (n,) int64
    probs: np.ndarray  # (n, C) float64
    groups: np.ndarray | None = None  # (n,) str: patient, slide or video
    sites: np.ndarray | None = None  # (n,) str: hospital, where the source states it

    @property
    def is_finite(self) -> bool:
        """Whether every probability is a number; those of a diverged model are not."""
        return bool(np.isfinite(self.probs).all())


def label_predictions(experiment: Experiment, probs: np.ndarray) -> FinalPredictions:
    """Probabilities (n, C) of the experiment's test images, with what is known about these."""
    table = experiment.table
    rows = table.rows("test")
    return FinalPredictions(
        ids=np.asarray(table.ids[rows], dtype=str),
        labels=np.asarray(table.labels[rows], dtype=np.int64),
        probs=np.asarray(probs, dtype=np.float64),
        groups=None if table.groups is None else np.asarray(table.groups[rows], dtype=str),
        sites=None if table.site is None else np.asarray(table.site[rows], dtype=str),
    )


def write_predictions_file(folder: Path, predictions: FinalPredictions) -> None:
    """Write the file of a run."""
    arrays = {"ids": predictions.ids, "labels": predictions.labels, "probs": predictions.probs}
    if predictions.groups is not None:
        arrays["groups"] = predictions.groups
    if predictions.sites is not None:
        arrays["sites"] = predictions.sites
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_atomic(folder / FILE, content.getvalue())


def read_predictions_file(folder: Path) -> FinalPredictions | None:
    """The content of the file; None if the run has none, or if it is damaged."""
    with contextlib.suppress(Exception), np.load(folder / FILE, allow_pickle=False) as arrays:
        predictions = FinalPredictions(
            ids=arrays["ids"],
            labels=arrays["labels"].astype(np.int64),
            probs=arrays["probs"].astype(np.float64),
            groups=arrays.get("groups"),
            sites=arrays.get("sites"),
        )
        return predictions if _is_consistent(predictions) else None
    return None


def _is_consistent(predictions: FinalPredictions) -> bool:
    """Whether the arrays belong together; a file that somebody edited may not."""
    probs, labels = predictions.probs, predictions.labels
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or not len(labels):
        return False
    columns = (predictions.ids, predictions.groups, predictions.sites)
    has_all_rows = all(column is None or column.shape == labels.shape for column in columns)
    is_in_range = labels.min() >= 0 and labels.max() < probs.shape[1]
    return bool(has_all_rows and is_in_range and predictions.is_finite)
