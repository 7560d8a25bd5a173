"""Coordinate-wise median (Yin et al., ICML 2018), weighted by the number of images.

The weighted median of a number is the smallest value at which at least half of all images are at
sites with this value or a lower one; if exactly half are, the mean of it and the next value.
"""

from __future__ import annotations

import numpy as np

from fedgsca.robust.base import Rule, register_rule


@register_rule
class MedianRule(Rule):
    """See the text of this module."""

    name = "median"
    description = "the weighted median of every single weight"
    needs_all = True

    def combine(self, changes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The weighted median over the first axis."""
        order = np.argsort(changes, axis=0, kind="stable")
        values = np.take_along_axis(changes, order, axis=0)
        cumulative = np.cumsum(sizes[order], axis=0)
        half = sizes.sum() / 2.0
        low = np.argmax(cumulative >= half, axis=0)[None]
        high = np.argmax(cumulative > half, axis=0)[None]
        low_values = np.take_along_axis(values, low, axis=0)[0]
        high_values = np.take_along_axis(values, high, axis=0)[0]
        return np.asarray((low_values + high_values) / 2.0)
