"""Trimmed mean (Yin et al., ICML 2018): the mean of each weight without its extreme values.

`trim` is the share of sites that is left out at each end, rounded up to a whole number, as long as
one site remains. The others are weighted by their number of images.
"""

from __future__ import annotations

import math

import numpy as np

from fedgsca.robust.base import Rule, register_rule


@register_rule
class TrimmedMeanRule(Rule):
    """See the text of this module."""

    name = "trimmed-mean"
    description = "the mean of every weight without the share `trim` of sites at either end"
    needs_all = True

    def combine(self, changes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The weighted mean over the first axis, without the extremes."""
        count = len(changes)
        cut = min(math.ceil(self.settings.trim * count), (count - 1) // 2)
        order = np.argsort(changes, axis=0, kind="stable")[cut : count - cut]
        values = np.take_along_axis(changes, order, axis=0)
        weights = sizes[order]
        return np.asarray((values * weights).sum(axis=0) / weights.sum(axis=0))
