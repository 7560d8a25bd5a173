"""Distances between models."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedgsca.wire import Arrays


def model_distance(a: Arrays, b: Arrays, kind: Literal["layers", "flat"] = "layers") -> float:
    """Distance of two models over floating-point tensors, BatchNorm statistics included.

    layers: the sum over tensors of the L2 norm of their difference; flat: one L2 norm of all.
    """
    squares = []
    for name in sorted(a):
        if a[name].dtype.kind == "f":
            difference = np.subtract(a[name], b[name], dtype=np.float64)
            squares.append(float(np.square(difference).sum()))
    if kind == "layers":
        return float(np.sqrt(squares).sum())
    return float(np.sqrt(np.sum(squares)))
