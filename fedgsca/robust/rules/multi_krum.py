"""Multi-Krum (Blanchard et al., NeurIPS 2017): the mean without the most distant models.

With `liars` = f, Krum's score of a site is the sum of squared distances to its n - f - 2 nearest
sites, at least one. The f sites with the largest scores are left out, and the others are averaged,
weighted by their images. Without liars the result lacks f honest sites in every round.
"""

from __future__ import annotations

import numpy as np

from fedgsca.robust.base import Rule, register_rule
from fedgsca.robust.rules.krum import count_liars, krum_scores


@register_rule
class MultiKrumRule(Rule):
    """See the text of this module."""

    name = "multi-krum"
    description = "the mean without the `liars` models that are most distant from the others"
    needs_all = True
    uses_distances = True

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Shares of the images of those that stay, at least one; 0 for the others."""
        count = len(products)
        liars = count_liars(self.settings.liars, count)
        num_kept = max(1, count - liars)
        order = np.argsort(krum_scores(products, liars), kind="stable")
        weights = np.zeros(count)
        weights[order[:num_kept]] = sizes[order[:num_kept]]
        return np.asarray(weights / weights.sum())
