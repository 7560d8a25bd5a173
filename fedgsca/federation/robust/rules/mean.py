"""The method's own weighted mean: no rule at all."""

from __future__ import annotations

import numpy as np

from fedgsca.federation.robust.base import Rule, register_rule


@register_rule
class MeanRule(Rule):
    """See the text of this module."""

    name = "mean"
    description = "the method's own weighted mean"
    stops = (
        "Stops what is no update of this run, an update that is sent twice and more images than "
        "agreed. It does not stop a false model of the right form, which moves the mean by the "
        "site's share of the images."
    )
    needs_all = False

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Shares of the images, as in the mean of most methods."""
        return np.asarray(sizes / sizes.sum())
