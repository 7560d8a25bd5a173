"""Nearest-neighbour mixing, then the geometric median (Allouah et al., AISTATS 2023), by images.

A consortium signs one statement: "liars hold at most a share rho of the images that we agreed on"
(`aggregation.liars`), or "at most f of our sites lie". Every site is then replaced by a mean:

    R_i    the sites that i leaves out: from the farthest to the nearest, each one that still fits
           into the budget, rho times all images or f sites
    M_i    the mean of all others, site i included, weighted by their images n_j
    model  the geometric median of M_1 ... M_n, weighted by n_i

So only a set of sites that could be the liars is ever left out, and a site that has clearly more
images than the budget (beyond a slack of a tenth) never is. Whatever liars within the budget send,
an honest site has either left them out or has left out honest sites that are farther away: their
pull is bounded by how much honest sites differ.
"""

from __future__ import annotations

import numpy as np

from fedgsca.federation.robust.base import Rule, geometric_median, register_rule, squared_distances

# of the longest change: changes that are nearer than this are equal, and none is left out for it
_EQUAL = 1e-12
# of the budget: nearly equal sites, and those that lost an image, can all be left out
_SLACK = 0.1


@register_rule
class MixingRule(Rule):
    """See the text of this module."""

    name = "mixing"
    description = "each model becomes the mean of its nearest ones, then their geometric median"
    stops = (
        "Stops any lie about the model by sites that together hold no more of the agreed images "
        "than aggregation.liars says, up to how much honest sites differ. It does not stop false "
        "numbers of images, which agreed numbers stop, nor more liars than that; what only one "
        "small site knows may be lost."
    )

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The weight of each site in the geometric median of the mixed changes."""
        budget, costs = self.settings.budget(sizes)
        mixing = mixing_matrix(products, sizes, costs, budget)
        shares = sizes / sizes.sum()
        return np.asarray(geometric_median(mixing @ products @ mixing.T, shares) @ mixing)


def mixing_matrix(
    products: np.ndarray, sizes: np.ndarray, costs: np.ndarray, budget: float
) -> np.ndarray:
    """(n, n): row i has the weights of the sites in M_i; each row adds up to 1.

    `costs` (n,) are what it takes of the budget to leave a site out.
    """
    distances = squared_distances(products)
    np.fill_diagonal(distances, -1.0)  # nobody leaves out itself
    order = np.argsort(-distances, axis=1, kind="stable")  # farthest first
    rows = np.arange(len(sizes))
    budgets = np.full(len(sizes), budget * (1.0 + _SLACK))
    weights = np.tile(np.asarray(sizes, dtype=np.float64), (len(sizes), 1))
    smallest = _EQUAL * float(np.diag(products).max(initial=0.0))
    for columns in order.T:
        is_left_out = (distances[rows, columns] > smallest) & (costs[columns] <= budgets)
        budgets -= np.where(is_left_out, costs[columns], 0.0)
        weights[rows[is_left_out], columns[is_left_out]] = 0.0
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
