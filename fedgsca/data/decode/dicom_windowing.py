"""From stored grey values to what a radiologist sees: DICOM's modality, window and polarity steps.

PS3.3 C.11, in numpy alone. All steps work value by value, so they are computed once for each value
between the smallest and the largest and then looked up.

pydicom computes the modality step and VOI tables for us (dicom.py). Windows are computed here and
not by `pydicom.pixels.apply_windowing`, because that function also needs windows to be in the file
(8-bit images without a window are shown through one of our own), maps to the range of the stored
values, which a negative rescale slope turns upside down, and refuses unknown VOI functions and
widths below 1 that viewers show. Where both apply they agree: tests/unit/test_dicom.py compares
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Without a window, the middle 99 % of the pixels get the grey scale, so that a metal clip or a
# burnt-in letter does not darken the image.
_TAILS = (0.005, 0.995)

Curve = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class VoiWindow:
    """Which values, after the modality step, get the grey scale."""

    centre: float
    width: float
    function: str = "LINEAR"

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Values between 0 (black) and 1 (white)."""
        if self.function == "SIGMOID":
            exponent = np.clip(-4.0 * (values - self.centre) / self.width, -700, 700)
            return np.asarray(1.0 / (1.0 + np.exp(exponent)))
        if self.function == "LINEAR_EXACT":
            low = self.centre - self.width / 2
            high = self.centre + self.width / 2
        else:
            low = self.centre - 0.5 - (self.width - 1) / 2
            high = self.centre - 0.5 + (self.width - 1) / 2
        return _ramp(values, low, high)


@dataclass(frozen=True)
class GreyMapping:
    """How the stored values of one image become grey."""

    # stored values -> values with a meaning (Hounsfield units, optical density)
    modality: Curve
    # these -> 0..1, by window or table; None: stretch the image's own range
    tone: Curve | None
    # MONOCHROME1: the smallest value is white
    is_inverted: bool = False
    # stored values, both included, that mark pixels outside the image; shown black
    padding: tuple[int, int] | None = None


def to_grey(values: np.ndarray, mapping: GreyMapping) -> np.ndarray:
    """(H, W) stored integers -> (H, W) uint8."""
    low = int(values.min())
    high = int(values.max())
    steps = (values.astype(np.int64) - low).astype(np.uint32)
    levels = np.arange(low, high + 1, dtype=np.int64)
    first, last = mapping.padding or (1, 0)
    is_padding = (levels >= first) & (levels <= last)
    meanings = np.asarray(mapping.modality(levels), dtype=np.float64)
    if mapping.tone is not None:
        shades = mapping.tone(meanings)
    else:
        counts = np.bincount(steps.ravel(), minlength=len(levels))
        shades = stretch(meanings, np.where(is_padding, 0, counts))
    if mapping.is_inverted:
        shades = 1.0 - shades
    table = np.rint(255.0 * np.clip(shades, 0.0, 1.0)).astype(np.uint8)
    table[is_padding] = 0
    return np.asarray(table[steps])


def stretch(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """0..1 between the 0.5 and the 99.5 percentile of an image.

    values[i] occurs counts[i] times in the image.
    """
    order = np.argsort(values, kind="stable")
    share = np.cumsum(counts[order]) / max(int(counts.sum()), 1)
    positions = np.minimum(np.searchsorted(share, _TAILS), len(order) - 1)
    low, high = values[order][positions].tolist()
    return _ramp(values, float(low), float(high))


def _ramp(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """0 up to `low`, 1 from `high` on, linear between; a step where they are equal."""
    if high <= low:
        return np.asarray(values > low, dtype=np.float64)
    return np.asarray(np.clip((values - low) / (high - low), 0.0, 1.0))
