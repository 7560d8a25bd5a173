"""Geometric median (RFA, Pillutla et al., IEEE Transactions on Signal Processing 2022).

The model with the smallest sum of distances to the sites' models, weighted by images. Weiszfeld's
steps keep it a weighted mean of the models, so that inner products are all that is needed.
"""

from __future__ import annotations

import numpy as np

from fedgsca.robust.base import Rule, register_rule

_STEPS = 100
_SMALLEST = 1e-6  # of the largest distance: a model at the median itself must not divide by zero


@register_rule
class GeometricMedianRule(Rule):
    """See the text of this module."""

    name = "geometric-median"
    description = "the model with the smallest sum of distances to all models"
    needs_all = True
    uses_distances = True

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Weiszfeld's algorithm, from the weighted mean."""
        shares = sizes / sizes.sum()
        weights = shares
        for _ in range(_STEPS):
            squares = np.diag(products) - 2.0 * products @ weights + weights @ products @ weights
            distances = np.sqrt(np.maximum(squares, 0.0))
            if distances.max() == 0.0:
                return np.asarray(weights)
            inverse = shares / np.maximum(distances, _SMALLEST * distances.max())
            weights = inverse / inverse.sum()
        return np.asarray(weights)
