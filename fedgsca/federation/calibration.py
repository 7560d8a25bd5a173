"""Whether a probability means what it says, and one number that corrects it.

    curve        bins of the largest probability: how sure the model was, how often it was right
    ECE          sum_b n_b/n |right_b - sure_b|, the expected calibration error
    temperature  softmax(z / T), with the T that minimises the mean loss of images that the model
                 was neither trained nor tested on (Guo et al., On Calibration of Modern Neural
                 Networks, ICML 2017); it changes no predicted class

The ECE of a perfect model is above zero, because a bin of few images is right more or less often
than its probability by chance. `chance_ece` says how large it then is. Only numpy is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedgsca.rng import stream

BINS = 10
_DRAWS = 1000
# images times draws that are in memory at once
_CHUNK_ENTRIES = 2_000_000
# 1 / T is searched between these; a model that is always right has no best temperature
MIN_TEMPERATURE = 0.05
MAX_TEMPERATURE = 20.0
_STEPS = 80


@dataclass(frozen=True)
class ReliabilityCurve:
    """Bins of equal width over the largest probability; a value on an edge is in the lower bin."""

    edges: np.ndarray  # (B + 1,) from 0 to 1
    counts: np.ndarray  # (B,) images
    confidence: np.ndarray  # (B,) mean of the largest probability; NaN in an empty bin
    accuracy: np.ndarray  # (B,) share of right predictions; NaN in an empty bin

    @property
    def ece(self) -> float:
        """The expected calibration error, 0 to 1."""
        gaps = np.nan_to_num(np.abs(self.accuracy - self.confidence))
        return float((self.counts * gaps).sum() / max(1, self.counts.sum()))


def reliability_curve(
    labels: np.ndarray, probs: np.ndarray, num_bins: int = BINS
) -> ReliabilityCurve:
    """The calibration curve of probabilities (n, C) against labels (n,)."""
    confidence = probs.max(axis=1)
    is_right = probs.argmax(axis=1) == labels
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    bins = find_bins(confidence, num_bins)
    counts = np.bincount(bins, minlength=num_bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(bins, confidence, minlength=num_bins) / counts
        accuracy = np.bincount(bins, is_right, minlength=num_bins) / counts
    return ReliabilityCurve(edges, counts, mean_confidence, accuracy)


def find_bins(confidence: np.ndarray, num_bins: int = BINS) -> np.ndarray:
    """(n,) int: the bin of every largest probability."""
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    return np.searchsorted(edges[1:-1], confidence)


def chance_ece(confidence: np.ndarray, num_bins: int = BINS) -> float:
    """The ECE, 0 to 1, below which 95 % of perfectly calibrated models stay.

    `confidence` (n,) are the largest probabilities; a perfect model is right with just these.
    """
    n = len(confidence)
    cells = np.zeros((n, num_bins))
    cells[np.arange(n), find_bins(confidence, num_bins)] = 1.0
    expected_hits = confidence @ cells
    rng = stream(0, "chance ece", n)
    part_size = max(1, _CHUNK_ENTRIES // max(1, n))
    errors = []
    for start in range(0, _DRAWS, part_size):
        size = min(part_size, _DRAWS - start)
        is_right = rng.random((size, n)) < confidence
        errors.append(np.abs(is_right @ cells - expected_hits).sum(axis=1) / n)
    return float(np.quantile(np.concatenate(errors), 0.95))


def brier_score(labels: np.ndarray, probs: np.ndarray) -> float:
    """The mean squared distance to the one-hot label, summed over the classes: 0 to 2."""
    distance = np.array(probs, dtype=np.float64)
    distance[np.arange(len(labels)), labels] -= 1.0
    return float(np.square(distance).sum(axis=1).mean())


def log_loss(labels: np.ndarray, probs: np.ndarray) -> float:
    """The mean cross-entropy of probabilities (n, C)."""
    own_probs = probs[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(own_probs, np.finfo(np.float64).tiny)).mean())


# ---- temperature ----


def scale_probabilities(probs: np.ndarray, temperature: float) -> np.ndarray:
    """softmax(z / T) from the probabilities softmax(z), both (n, C)."""
    logits = _logits(probs) / temperature
    logits -= logits.max(axis=1, keepdims=True)
    odds = np.exp(logits)
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def fit_temperature(labels: np.ndarray, probs: np.ndarray) -> float:
    """The T between 0.05 and 20 with the smallest mean loss of labels (n,).

    The loss is convex in 1 / T, and its slope there is the mean of E_p[z] - z_y: a bisection of the
    slope finds the minimum. At an end of the range, that end is returned.
    """
    logits = _logits(probs)
    own_logit = logits[np.arange(len(labels)), labels]
    low = 1.0 / MAX_TEMPERATURE
    high = 1.0 / MIN_TEMPERATURE
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        mean_logit = (scale_probabilities(probs, 1.0 / middle) * logits).sum(axis=1)
        if float((mean_logit - own_logit).mean()) <= 0.0:
            low = middle
        else:
            high = middle
    return float(2.0 / (low + high))


def _logits(probs: np.ndarray) -> np.ndarray:
    """(n, C): logits up to a constant for every row."""
    return np.log(np.maximum(np.asarray(probs, np.float64), np.finfo(np.float64).tiny))
