"""The method's own weighted mean: no rule at all."""

from __future__ import annotations

import numpy as np

from fedgsca.robust.base import Rule, register_rule


@register_rule
class MeanRule(Rule):
    """See the text of this module."""

    name = "mean"
    description = "the method's own weighted mean"
    stops = (
        "Stops updates that are malformed, not finite, sent twice or by somebody else. A site that "
        "sends a well-formed lie moves the model as far as it likes."
    )
    needs_all = False

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Shares of the images, as in the mean of most methods."""
        return np.asarray(sizes / sizes.sum())
