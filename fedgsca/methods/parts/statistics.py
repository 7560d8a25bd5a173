"""Statistics of one site's samples."""

from __future__ import annotations

import numpy as np


def log_prior(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """(C,): logarithms of the class shares at a site.

    A class without samples counts as one sample, because log 0 breaks every loss.
    """
    counts = np.bincount(labels, minlength=num_classes)
    return np.asarray(np.log(np.maximum(counts, 1) / max(len(labels), 1)))


def class_means(
    values: np.ndarray, labels: np.ndarray, num_classes: int, *, least: int = 1
) -> np.ndarray:
    """(C,): mean of the finite values (n,) of each given class; NaN for fewer than `least`."""
    finite = np.isfinite(values)
    sums = np.bincount(labels[finite], weights=values[finite], minlength=num_classes)
    counts = np.bincount(labels[finite], minlength=num_classes)
    return np.asarray(np.where(counts >= least, sums / np.maximum(counts, 1), np.nan))
