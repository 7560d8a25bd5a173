"""From stored grey values to what a radiologist sees: DICOM's modality, window and polarity steps (PS3.3 C.11), in numpy alone.

All steps work value by value, so they are computed once for each value between the smallest and the largest and then looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# without a window the middle 99 % of the pixels get the grey scale: a metal clip or a burnt-in letter does not darken the rest
_TAILS = (0.005, 0.995)

Curve = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Window:
    """Which values get the grey scale, after the modality step."""

    centre: float
    width: float
    function: str = "LINEAR"

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Values between 0 (black) and 1 (white)."""
        if self.function == "SIGMOID":
            return np.asarray(
                1.0 / (1.0 + np.exp(np.clip(-4.0 * (x - self.centre) / self.width, -700, 700)))
            )
        if self.function == "LINEAR_EXACT":
            return _between(x, self.centre - self.width / 2, self.centre + self.width / 2)
        return _between(
            x, self.centre - 0.5 - (self.width - 1) / 2, self.centre - 0.5 + (self.width - 1) / 2
        )


@dataclass(frozen=True)
class Look:
    """How the stored values of one image become grey."""

    modality: Curve  # stored values -> values with a meaning (Hounsfield units, optical density)
    tone: Curve | None  # these -> 0..1, by window or table; None: stretch the image itself
    inverted: bool = False  # MONOCHROME1: the smallest value is white
    padding: tuple[int, int] | None = (
        None  # stored values, both included, that stand for "no image here"; shown black
    )


def grey(stored: np.ndarray, look: Look) -> np.ndarray:
    """(H, W) integers -> (H, W) uint8."""
    low, high = int(stored.min()), int(stored.max())
    steps = (stored.astype(np.int64) - low).astype(np.uint32)
    values = np.arange(low, high + 1, dtype=np.int64)
    first, last = look.padding or (1, 0)
    padded = (values >= first) & (values <= last)
    meant = np.asarray(look.modality(values), dtype=np.float64)
    if look.tone is not None:
        shade = look.tone(meant)
    else:
        shade = stretch(
            meant, np.where(padded, 0, np.bincount(steps.ravel(), minlength=len(values)))
        )
    shade = 1.0 - shade if look.inverted else shade
    table = np.rint(255.0 * np.clip(shade, 0.0, 1.0)).astype(np.uint8)
    table[padded] = 0
    return np.asarray(table[steps])


def stretch(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """0..1 between the 0.5 and the 99.5 percentile of an image in which values[i] occurs counts[i] times."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(counts[order]) / max(int(counts.sum()), 1)
    low, high = (
        float(values[order][min(int(np.searchsorted(share, tail)), len(order) - 1)])
        for tail in _TAILS
    )
    return _between(values, low, high)


def _between(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 up to `low`, 1 from `high` on, a line between; a step where they are equal."""
    if high <= low:
        return np.asarray(x > low, dtype=np.float64)
    return np.asarray(np.clip((x - low) / (high - low), 0.0, 1.0))
