"""Losses on scales that two Gaussians fit better than cross-entropy with its long tail."""

from __future__ import annotations

import numpy as np


def double_softmax_losses(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(n,): cross-entropy of the softmax of probabilities (n, C), log sum_c exp(p_c) - p_y.

    Published code of FedCorr and FedDiv computes it by giving probabilities to a function that
    expects logits. It is bounded and nearly 1 - p_y.
    """
    p_y = probs[np.arange(len(labels)), labels]
    return np.asarray(np.log(np.exp(probs).sum(axis=1)) - p_y)


def unit_range(losses: np.ndarray) -> np.ndarray:
    """(n,): losses moved and scaled to 0..1; equal losses become 0."""
    low, high = float(losses.min(initial=np.inf)), float(losses.max(initial=-np.inf))
    if not high > low:
        return np.zeros(len(losses))
    return np.asarray((losses - low) / (high - low))
