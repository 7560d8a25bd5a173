"""Sketches: a few numbers of a model's change that keep inner products between changes.

Blocks of the flattened arrays are added up with random signs (a count sketch whose buckets take
turns), which keeps inner products up to a relative error of about 1/sqrt(SKETCH_SIZE).
"""

from __future__ import annotations

import numpy as np

from fedgsca.rng import stream
from fedgsca.wire import Arrays

SKETCH_SIZE = 1024


class Sketcher:
    """Sketches of changes of one model; the signs are drawn once."""

    def __init__(self) -> None:
        self._signs: dict[str, np.ndarray] = {}

    def sketch(self, arrays: Arrays, reference: Arrays) -> np.ndarray:
        """(SKETCH_SIZE,) of `arrays` minus the arrays of the same names in `reference`."""
        total = np.zeros(SKETCH_SIZE)
        offset = 0
        for name in sorted(arrays):
            change = np.subtract(arrays[name], reference[name], dtype=np.float64).ravel()
            change *= self._signs_of(name, change.size)
            # an array begins where the one before ended, so that small ones share no bucket
            end = offset + change.size
            row = np.zeros(end + -end % SKETCH_SIZE)
            row[offset:end] = change
            total += row.reshape(-1, SKETCH_SIZE).sum(axis=0)
            offset = end % SKETCH_SIZE
        return total

    def _signs_of(self, name: str, size: int) -> np.ndarray:
        if name not in self._signs:
            bits = stream(0, "sketch", name).integers(0, 2, size, dtype=np.int8)
            self._signs[name] = np.asarray(2 * bits - 1, dtype=np.int8)
        return self._signs[name]
