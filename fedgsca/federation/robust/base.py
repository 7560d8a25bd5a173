"""The contract of an aggregation rule, and how it reaches every method.

A method takes a weighted mean of the models that the sites sent. A rule replaces these models by
one, so that the method needs no change: whatever weights it uses, the mean of n equal models is
this model. A rule sees the inner products of the sites' changes and their numbers of images, and
answers with the coefficient of each change (`coefficients`).

All updates of a round wait in one temporary file for it, and one array of every site at a time is
in memory. The rule `mean` replaces nothing, and nothing waits.

A new rule is one file with a class that derives from `Rule` and is decorated with
`@register_rule`. Built-in ones are in fedgsca/federation/robust/rules/; other packages use the
entry point group `fedgsca.federation.robust.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar, cast

import numpy as np

from fedgsca.config import RULES


@dataclass(frozen=True)
class RuleSettings:
    """What a rule must survive."""

    liars: float = 0.25  # below 1 a share of the images, else a number of sites
    # of all sites that were asked; 0: of those that have a vote
    images: float = 0.0

    def budget(self, sizes: np.ndarray) -> tuple[float, np.ndarray]:
        """What liars can have at most, and how much of it each site of these sizes (n,) has."""
        if self.liars >= 1.0:
            return self.liars, np.ones(len(sizes))
        return self.liars * max(self.images, float(sizes.sum())), sizes


class Rule:
    """An aggregation rule."""

    name: ClassVar[str]
    description: ClassVar[str]
    # what it can and cannot stop, for kit and log: one or two sentences
    stops: ClassVar[str]
    # whether it replaces anything, and so needs all updates of a round before the first is used
    needs_all: ClassVar[bool] = True

    def __init__(self, settings: RuleSettings) -> None:
        self.settings = settings

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


def make_rule(name: str, settings: RuleSettings) -> Rule:
    """The rule with this name; the configuration has checked that there is one."""
    return load_rules()[name](settings)


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
