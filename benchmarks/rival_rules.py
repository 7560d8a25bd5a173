"""Relatives of the rule `mixing`, which the study of lying sites measures beside it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedgsca.federation.filters.rules import (
    Rule,
    geometric_median,
    mixing_matrix,
    register_rule,
    squared_distances,
)

RIVALS = ("clipping", "geometric-median", "multi-krum", "mixing-by-sites", "mixing-by-parts")


class _Rival(Rule):
    description: ClassVar[str] = "for the study only"
    stops: ClassVar[str] = "See benchmarks/studies/robustness.md."


@register_rule
class ClippingRule(_Rival):
    """The mean of changes of which none is longer than the median one, by images."""

    name = "clipping"

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """At most the shares of the images; they add up to less than 1."""
        norms = np.sqrt(np.diag(products))
        order = np.argsort(norms, kind="stable")
        sums = np.cumsum(sizes[order])
        middle = norms[order][np.searchsorted(sums, sums[-1] / 2)]
        shares = sizes / sizes.sum()
        return np.asarray(shares * np.minimum(1.0, middle / np.maximum(norms, 1e-30)))


@register_rule
class GeometricMedianRule(_Rival):
    """The model with the smallest sum of distances to all models (Pillutla et al., 2022)."""

    name = "geometric-median"

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Weighted by images."""
        return geometric_median(products, sizes / sizes.sum())


@register_rule
class MultiKrumRule(_Rival):
    """The mean without the f most distant models (Blanchard et al., 2017).

    The score of a model is the sum of squared distances to its n - f - 2 nearest ones.
    """

    name = "multi-krum"

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Shares of the images of those that stay, at least one."""
        count, liars = len(products), _count_liars(self, len(products))
        distances = np.sort(squared_distances(products), axis=1)
        scores = distances[:, 1 : 1 + max(1, count - liars - 2)].sum(axis=1)
        kept = np.argsort(scores, kind="stable")[: max(1, count - liars)]
        weights = np.zeros(count)
        weights[kept] = sizes[kept]
        return np.asarray(weights / weights.sum())


@register_rule
class SiteMixingRule(_Rival):
    """Mixing as published: it counts sites, whatever their numbers of images."""

    name = "mixing-by-sites"

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Every site is the mean of its n - f nearest ones, then their geometric median."""
        ones = np.ones(len(sizes))
        mixing = mixing_matrix(products, ones, ones, float(_count_liars(self, len(sizes))))
        return np.asarray(geometric_median(mixing @ products @ mixing.T, ones / len(ones)) @ mixing)


@register_rule
class PartMixingRule(_Rival):
    """Mixing by images that leaves out a part of a site where the whole does not fit."""

    name = "mixing-by-parts"

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Every site is the mean of the nearest images until all but the budget are in."""
        budget, costs = self.budget(sizes)
        distances = squared_distances(products)
        np.fill_diagonal(distances, -1.0)
        mixing = np.zeros_like(products)
        for i, order in enumerate(np.argsort(distances, axis=1, kind="stable")):
            left = float(costs.sum()) - budget
            for j in order:
                part = min(1.0, max(0.0, left / costs[j]))
                mixing[i, j] = part * sizes[j]
                left -= part * costs[j]
        mixing /= mixing.sum(axis=1, keepdims=True)
        shares = sizes / sizes.sum()
        return np.asarray(geometric_median(mixing @ products @ mixing.T, shares) @ mixing)


def _count_liars(rule: Rule, num_sites: int) -> int:
    """A share counts sites here."""
    liars = rule.liars
    return int(liars) if liars >= 1.0 else int(liars * num_sites + 1e-9)
