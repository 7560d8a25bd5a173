"""Krum (Blanchard et al., NeurIPS 2017): the one model that is nearest to its neighbours.

With `liars` = f, a site's score is the sum of squared distances to its n - f - 2 nearest sites, at
least one. The model with the smallest score is used, and all others are left out: with sites that
differ, the classes of the others are lost with them.
"""

from __future__ import annotations

import numpy as np

from fedgsca.robust.base import Rule, register_rule, squared_distances


@register_rule
class KrumRule(Rule):
    """See the text of this module."""

    name = "krum"
    description = "the single model that is nearest to its neighbours, for `liars` liars"
    needs_all = True
    uses_distances = True

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """1 for the chosen site and 0 for all others; the first one if several are equal."""
        weights = np.zeros(len(products))
        weights[
            int(np.argmin(krum_scores(products, count_liars(self.settings.liars, len(products)))))
        ] = 1.0
        return weights


def count_liars(liars: float, num_sites: int) -> int:
    """A share of the sites, or their number."""
    return int(liars) if liars >= 1.0 else int(liars * num_sites)


def krum_scores(products: np.ndarray, liars: int) -> np.ndarray:
    """(n,) sums of squared distances to the n - liars - 2 nearest sites, at least one."""
    neighbours = max(1, len(products) - liars - 2)
    distances = np.sort(squared_distances(products), axis=1)
    return np.asarray(distances[:, 1 : 1 + neighbours].sum(axis=1))
