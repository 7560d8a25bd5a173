"""The contract of an aggregation rule, and how it reaches every method.

A method takes a weighted mean of the models that the sites sent. A rule replaces these models, so
that the method needs no change: whatever weights it uses, the mean of n equal models is this model.

    mean           nothing is replaced
    norm-bound     every model on its own, one at a time (`bound_change`)
    coordinates    one model from all, array by array (`combine`)
    distances      one model from all, a mean whose weights come from distances (`coefficients`)

The last two need all updates of a round. They are kept in one temporary file, and one array of
every site at a time is in memory.

A new rule is one file with a class that derives from `Rule` and is decorated with
`@register_rule`. Built-in ones are in fedgsca/robust/rules/; other packages use the entry point
group `fedgsca.robust.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from fedgsca.support.registry import Registry


@dataclass(frozen=True)
class RuleSettings:
    """The options of all rules; each rule reads its own."""

    bound: float = 1.0
    trim: float = 0.25
    liars: float = 0.25  # below 1 a share of the images, else a number of sites
    # agreed number of images of all sites that were asked; 0: of those that have a vote
    images: float = 0.0


class Rule:
    """An aggregation rule. The default replaces nothing."""

    name: ClassVar[str]
    description: ClassVar[str]
    # what it can and cannot stop, for kit and log: one or two sentences
    stops: ClassVar[str] = ""
    # whether all updates of a round are needed before the first can be used
    needs_all: ClassVar[bool] = False
    # whether `bound_change` is used, which has to know the usual norm of a change
    needs_level: ClassVar[bool] = False
    # whether `coefficients` is used instead of `combine`
    uses_distances: ClassVar[bool] = False

    def __init__(self, settings: RuleSettings) -> None:
        self.settings = settings

    def bound_change(self, norm: float, level: float) -> float:
        """The factor on a change of this norm; `level` is the usual norm of a change."""
        return 1.0

    def combine(self, changes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """One change from the changes (n, ...) of one array by n sites of these sizes (n,)."""
        raise NotImplementedError

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The weight of each site in the mean (n,), from the inner products (n, n) of changes."""
        raise NotImplementedError


RULES: Registry[type[Rule]] = Registry("fedgsca.robust.rules")
R = TypeVar("R", bound=type[Rule])


def register_rule(rule: R) -> R:
    """Class decorator that offers a rule as a value of `aggregation.rule`."""
    RULES.register(rule.name, rule)
    return rule


def load_rules() -> Mapping[str, type[Rule]]:
    """All rules by name: those of this package and those of plugins."""
    return RULES.load()


def make_rule(name: str, settings: RuleSettings) -> Rule:
    """The rule with this name; the configuration has checked that there is one."""
    return load_rules()[name](settings)


def squared_distances(products: np.ndarray) -> np.ndarray:
    """(n, n) squared distances between changes, from their inner products."""
    squares = np.diag(products)
    return np.asarray(np.maximum(squares[:, None] + squares[None, :] - 2.0 * products, 0.0))


_STEPS = 100
_SMALLEST = 1e-6  # of the largest distance: a point at the median itself must not divide by zero


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
        inverse = shares / np.maximum(distances, _SMALLEST * distances.max())
        weights = inverse / inverse.sum()
    return np.asarray(weights)
