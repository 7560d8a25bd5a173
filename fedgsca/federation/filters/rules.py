"""Aggregation rules: their contract, how they reach every method, and the built-in ones.

A method takes a weighted mean of the models that the sites sent. A rule replaces these models by
one, so that the method needs no change: whatever weights it uses, the mean of n equal models is
this model. A rule sees the inner products of the sites' changes and their numbers of images, and
answers with the coefficient of each change (`coefficients`).

All updates of a round wait in one temporary file for it, and one array of every site at a time is
in memory. The rule `mean` replaces nothing, and nothing waits.

A new rule is a class that derives from `Rule` and is decorated with `@register_rule`, in a package
with the entry point group `fedgsca.federation.filters.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeVar, cast

import numpy as np

from fedgsca.config import RULES


class Rule:
    """An aggregation rule."""

    name: ClassVar[str]
    description: ClassVar[str]
    # what it can and cannot stop, for kit and log: one or two sentences
    stops: ClassVar[str]
    # whether it replaces anything, and so needs all updates of a round before the first is used
    needs_all: ClassVar[bool] = True

    def __init__(self, liars: float = 0.25) -> None:
        """`liars` is what the rule must survive: below 1 a share of the images, else sites."""
        self.liars = liars
        # of all sites that were asked, in this round; 0: of those that have a vote
        self.images = 0.0

    def budget(self, sizes: np.ndarray) -> tuple[float, np.ndarray]:
        """What liars can have at most, and how much of it each site of these sizes (n,) has."""
        if self.liars >= 1.0:
            return self.liars, np.ones(len(sizes))
        return self.liars * max(self.images, float(sizes.sum())), sizes

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The coefficient of each change (n,), from their inner products (n, n) and images (n,)."""
        raise NotImplementedError


R = TypeVar("R", bound=type[Rule])


def register_rule(rule: R) -> R:
    """Class decorator that offers a rule as a value of `aggregation.rule`."""
    RULES.register(rule.name, rule)
    return rule


def load_rules() -> Mapping[str, type[Rule]]:
    """All rules by name: those of this package and those of plugins."""
    return cast("Mapping[str, type[Rule]]", RULES.load())


def squared_distances(products: np.ndarray) -> np.ndarray:
    """(n, n) squared distances between changes, from their inner products."""
    squares = np.diag(products)
    return np.asarray(np.maximum(squares[:, None] + squares[None, :] - 2.0 * products, 0.0))


_STEPS = 100
_TINY = 1e-15
# of the median distance: a point at the median itself must not divide by zero. Not of the largest
# one, with which a liar could choose how near is near.
_SMALLEST = 1e-6


def geometric_median(products: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The weights (n,) of n points in the one with the smallest sum of distances to them.

    Weiszfeld's steps from the weighted mean keep it a weighted mean, so that the inner products
    (n, n) of the points are all that is needed. `shares` (n,) weight the distances.
    """
    weights = shares
    for _ in range(_STEPS):
        squares = np.diag(products) - 2.0 * products @ weights + weights @ products @ weights
        distances = np.sqrt(np.maximum(squares, 0.0))
        if distances.max() == 0.0:
            break
        middle = float(np.sort(distances)[(len(distances) - 1) // 2])
        inverse = shares / np.maximum(distances, max(_SMALLEST * middle, _TINY * distances.max()))
        weights = inverse / inverse.sum()
    return np.asarray(weights)


# ---- built-in rules ----


@register_rule
class MeanRule(Rule):
    """The method's own weighted mean: no rule at all."""

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


# of the longest change: changes that are nearer than this are equal, and none is left out for it
_EQUAL = 1e-12
# of the budget: nearly equal sites, and those that lost an image, can all be left out
_SLACK = 0.1


@register_rule
class MixingRule(Rule):
    """Nearest-neighbour mixing, then the geometric median (Allouah et al., 2023), by images.

    A consortium signs one statement: "liars hold at most a share rho of the images that we agreed
    on" (`aggregation.liars`), or "at most f of our sites lie". Every site is replaced by a mean:

        R_i    the sites that i leaves out: from the farthest to the nearest, each one that still
               fits into the budget, rho times all images or f sites
        M_i    the mean of all others, site i included, weighted by their images n_j
        model  the geometric median of M_1 ... M_n, weighted by n_i

    So only a set of sites that could be the liars is ever left out, and a site that has clearly
    more images than the budget (beyond a slack of a tenth) never is. Whatever liars within the
    budget send, an honest site has either left them out or has left out honest sites that are
    farther away: their pull is bounded by how much honest sites differ.
    """

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
        budget, costs = self.budget(sizes)
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
