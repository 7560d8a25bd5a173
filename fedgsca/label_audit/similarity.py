"""Similar samples by the cosine of their features."""

from __future__ import annotations

import numpy as np

BLOCK = 512  # rows compared at a time, so that memory does not grow with the square of n


def unit_vectors(features: np.ndarray) -> np.ndarray:
    """(n, D): every row divided by its length; a zero row stays zero."""
    return np.asarray(features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12))


def nearest_rows(unit: np.ndarray, k: int) -> np.ndarray:
    """(n, min(k, n - 1)) the most similar other rows of each row of `unit`, (n, D), in no order."""
    n = len(unit)
    k = min(k, n - 1)
    nearest = np.zeros((n, max(k, 0)), np.int64)
    if k < 1:
        return nearest
    for start in range(0, n, BLOCK):
        cosine = unit[start : start + BLOCK] @ unit.T  # (block, n)
        rows = np.arange(start, start + len(cosine))
        cosine[np.arange(len(cosine)), rows] = -np.inf  # a sample is not its own neighbour
        nearest[rows] = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
    return nearest


def order_by_similarity(unit: np.ndarray, query: np.ndarray) -> np.ndarray:
    """(n,) rows of `unit`, (n, D), the most similar to `query`, (D,), first; stable."""
    return np.argsort(-(unit @ query), kind="stable")
