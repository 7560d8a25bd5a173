"""One model from the updates of a round, by an aggregation rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgsca.robust.base import Rule
from fedgsca.robust.spool import UpdateSpool
from fedgsca.wire import Arrays

_MAX_SIZE = 2.0  # weight of a site in a rule, as a multiple of the median


def combine_models(
    rule: Rule, spool: UpdateSpool, positions: Sequence[int], reference: Arrays
) -> dict[str, np.ndarray]:
    """The model that the rule makes of the updates at `positions`; `reference` is the one sent out.

    A site that did not train (an unchanged model) and a site without images have no vote. Integer
    buffers are the lower median.
    """
    voters = [position for position in positions if _votes(spool, position, reference)]
    if not voters:
        return dict(reference)
    sizes = _capped_sizes([float(spool.num_samples(position)) for position in voters])
    weights = None
    if rule.uses_distances:
        weights = rule.coefficients(_inner_products(spool, voters, reference), sizes)
    model: dict[str, np.ndarray] = {}
    for name, value in reference.items():
        if value.dtype.kind != "f":
            stack = np.stack([spool.weight(position, name) for position in voters])
            model[name] = np.asarray(np.sort(stack, axis=0)[(len(voters) - 1) // 2])
            continue
        changes = _changes(spool, voters, name, value)
        if weights is None:
            change = rule.combine(changes, sizes)
        else:
            change = np.tensordot(weights, changes, axes=1)
        model[name] = np.asarray(value + change).astype(value.dtype)
    return model


def scale_change(weights: Arrays, reference: Arrays, factor: float) -> dict[str, np.ndarray]:
    """The reference model plus `factor` times the change."""
    model = {}
    for name, value in weights.items():
        if value.dtype.kind == "f":
            change = np.subtract(value, reference[name], dtype=np.float64)
            value = np.asarray(reference[name] + factor * change).astype(value.dtype)
        model[name] = value
    return model


def _capped_sizes(claims: Sequence[float]) -> np.ndarray:
    """(n,) numbers of images, none above twice the median: a claim must not buy the majority."""
    sizes = np.array(claims)
    return np.asarray(np.minimum(sizes, _MAX_SIZE * np.sort(sizes)[(len(sizes) - 1) // 2]))


def _votes(spool: UpdateSpool, position: int, reference: Arrays) -> bool:
    if spool.num_samples(position) <= 0:
        return False
    for name, value in reference.items():
        if value.dtype.kind == "f" and not np.array_equal(spool.weight(position, name), value):
            return True
    return False


def _changes(
    spool: UpdateSpool, positions: Sequence[int], name: str, reference: np.ndarray
) -> np.ndarray:
    rows = []
    for position in positions:
        rows.append(np.subtract(spool.weight(position, name), reference, dtype=np.float64))
    return np.stack(rows)


def _inner_products(spool: UpdateSpool, positions: Sequence[int], reference: Arrays) -> np.ndarray:
    """(n, n), summed array by array."""
    products = np.zeros((len(positions), len(positions)))
    for name, value in reference.items():
        if value.dtype.kind == "f":
            rows = _changes(spool, positions, name, value).reshape(len(positions), -1)
            products += rows @ rows.T
    return products
