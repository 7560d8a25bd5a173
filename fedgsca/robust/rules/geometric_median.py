"""Geometric median (RFA, Pillutla et al., IEEE Transactions on Signal Processing 2022).

The model with the smallest sum of distances to the sites' models, weighted by images. Weiszfeld's
steps keep it a weighted mean of the models, so that inner products are all that is needed.
"""

from __future__ import annotations

import numpy as np

from fedgsca.robust.base import Rule, geometric_median, register_rule


@register_rule
class GeometricMedianRule(Rule):
    """See the text of this module."""

    name = "geometric-median"
    description = "the model with the smallest sum of distances to all models"
    needs_all = True
    uses_distances = True

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Weiszfeld's algorithm, from the weighted mean."""
        return geometric_median(products, sizes / sizes.sum())
