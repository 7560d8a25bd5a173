"""How the changes of a site respond to the movement of the model, in constant memory.

Whatever its data, a site that trains pulls the model towards what fits its own images: the further
the model has already moved there, the smaller the next change. So over the rounds t, the changes
D_t of an honest site are negatively correlated with the models W_t that it received:

    response = sum_t <D_t - mean D, W_t - mean W> / (|D - mean D| |W - mean W|)

For a convex loss and small steps this is a theorem (a gradient step is a contraction); for others
it was measured (docs/robustness.md). It does not depend on where the site wants to go, and so not
on its classes and labels. A site that sends its change reversed, or the reversed change of the
others, has a positive response: it pushes harder the further the model moves away.

Recent rounds count more (DECAY). The sums are kept of sketches: blocks of the flattened arrays are
added up with random signs, which keeps inner products up to a relative error of about
1/sqrt(SKETCH_SIZE).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedgsca.rng import stream
from fedgsca.wire import Arrays

SKETCH_SIZE = 1024
DECAY = 0.9  # of the weight of a round with each later one, so that a site that changes is noticed


class Sketcher:
    """Sketches of arrays with the same names and shapes; the signs are drawn once."""

    def __init__(self) -> None:
        self._signs: dict[str, np.ndarray] = {}

    def sketch(self, arrays: Arrays) -> np.ndarray:
        """(SKETCH_SIZE,) of all floating-point arrays; linear in the arrays."""
        total = np.zeros(SKETCH_SIZE)
        offset = 0
        for name in sorted(arrays):
            value = arrays[name]
            if value.dtype.kind != "f":
                continue
            signs = self._signs_of(name, value.size)
            row = np.multiply(value.ravel(), signs, dtype=np.float64)
            # arrays begin where the one before ended, so that small ones do not share a bucket
            row = np.concatenate([np.zeros(offset), row])
            row = np.concatenate([row, np.zeros(-row.size % SKETCH_SIZE)])
            total += row.reshape(-1, SKETCH_SIZE).sum(axis=0)
            offset = (offset + value.size) % SKETCH_SIZE
        return total

    def _signs_of(self, name: str, size: int) -> np.ndarray:
        if name not in self._signs:
            bits = stream(0, "sketch", name).integers(0, 2, size, dtype=np.int8)
            self._signs[name] = np.asarray(2 * bits - 1, dtype=np.int8)
        return self._signs[name]


@dataclass(frozen=True)
class SiteMotion:
    """Weighted sums over the rounds in which a site took part."""

    count: int  # rounds
    weight: float  # sum of their weights
    # (SKETCH_SIZE,) float32 as in a checkpoint: of D_t, and of W_t relative to the first model
    change_sum: np.ndarray
    model_sum: np.ndarray
    product: float  # sum_t <D_t, W_t>
    change_square: float
    model_square: float

    @staticmethod
    def zero() -> SiteMotion:
        """Before the first round."""
        zeros = np.zeros(SKETCH_SIZE, np.float32)
        return SiteMotion(0, 0.0, zeros, zeros, 0.0, 0.0, 0.0)

    def add(self, change: np.ndarray, model: np.ndarray) -> SiteMotion:
        """One more round: the sketches of the change and of the received model."""
        return SiteMotion(
            self.count + 1,
            DECAY * self.weight + 1.0,
            (DECAY * self.change_sum + change).astype(np.float32),
            (DECAY * self.model_sum + model).astype(np.float32),
            DECAY * self.product + float(change @ model),
            DECAY * self.change_square + float(change @ change),
            DECAY * self.model_square + float(model @ model),
        )

    def response(self) -> float | None:
        """The correlation of changes and models, from -1 to 1; None before there are two."""
        if self.count < 2:
            return None
        changes = self.change_sum.astype(np.float64)
        models = self.model_sum.astype(np.float64)
        covariance = self.product - float(changes @ models) / self.weight
        change_variance = self.change_square - float(changes @ changes) / self.weight
        model_variance = self.model_square - float(models @ models) / self.weight
        scale = change_variance * model_variance
        if change_variance <= 0.0 or model_variance <= 0.0 or not math.isfinite(scale):
            return None
        return covariance / math.sqrt(scale)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for a checkpoint."""
        numbers = [
            self.count,
            self.weight,
            self.product,
            self.change_square,
            self.model_square,
        ]
        return {"sums": np.stack([self.change_sum, self.model_sum]), "numbers": np.array(numbers)}

    @staticmethod
    def from_arrays(arrays: Arrays) -> SiteMotion:
        """The inverse of `to_arrays`."""
        count, *numbers = arrays["numbers"].tolist()
        weight, product, change_square, model_square = numbers
        change_sum, model_sum = arrays["sums"]
        return SiteMotion(
            int(count), weight, change_sum, model_sum, product, change_square, model_square
        )
