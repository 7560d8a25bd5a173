"""One model from the updates of a round, by an aggregation rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedgsca.robust.base import Rule
from fedgsca.robust.spool import UpdateSpool
from fedgsca.wire import Arrays, Extra

_DEVIATIONS = 6.0  # of honest sites' numbers from their median, in median deviations
_CLIP_SITES = 3


def combine_models(
    rule: Rule, spool: UpdateSpool, positions: Sequence[int], reference: Arrays
) -> dict[str, np.ndarray]:
    """The model that the rule makes of the updates at `positions`; `reference` is the one sent out.

    A site that did not train (an unchanged model) and a site without images have no vote. Integer
    buffers are the lower median.
    """
    return _combine(rule, spool, positions, spool.weight, reference)


def combine_extras(
    rule: Rule,
    spool: UpdateSpool,
    positions: Sequence[int],
    uploads: Mapping[str, Extra],
    payload_extras: Arrays,
) -> list[dict[str, np.ndarray]]:
    """The extras of the updates at `positions` after the vote that each declares (Extra.vote).

    `payload_extras` are those that were sent out; without one, a mean starts from zero.
    """
    results = [spool.extras(position) for position in positions]
    for name, extra in uploads.items():
        owners = [i for i, extras in enumerate(results) if name in extras]
        if not owners or not extra.vote:
            continue
        values = [results[i][name] for i in owners]
        if extra.vote == "mean":
            reference = {name: np.asarray(payload_extras.get(name, np.zeros_like(values[0])))}
            voters = [positions[i] for i in owners]
            value = _combine(rule, spool, voters, spool.extra, reference)[name]
            votes = [value] * len(owners)
        elif extra.vote == "median":
            votes = _medians(values, extra)
        else:
            votes = _clip_values(values)
        for i, vote in zip(owners, votes, strict=True):
            results[i][name] = vote
    return results


def _combine(
    rule: Rule,
    spool: UpdateSpool,
    positions: Sequence[int],
    read: Callable[[int, str], np.ndarray],
    reference: Arrays,
) -> dict[str, np.ndarray]:
    voters = []
    for position in positions:
        if spool.num_samples(position) > 0 and _has_changed(read, position, reference):
            voters.append(position)
    if not voters:
        return dict(reference)
    sizes = np.array([float(spool.num_samples(position)) for position in voters])
    images = float(sum(spool.num_samples(position) for position in positions))
    if images > rule.settings.images:
        rule = type(rule)(replace(rule.settings, images=images))
    weights = None
    if rule.uses_distances:
        weights = rule.coefficients(_inner_products(read, voters, reference), sizes)
    model: dict[str, np.ndarray] = {}
    for name, value in reference.items():
        if value.dtype.kind != "f":
            stack = np.stack([read(position, name) for position in voters])
            model[name] = np.asarray(np.sort(stack, axis=0)[(len(voters) - 1) // 2])
            continue
        changes = _changes(read, voters, name, value)
        if weights is None:
            change = rule.combine(changes, sizes)
        else:
            change = np.tensordot(weights, changes, axes=1)
        model[name] = np.asarray(value + change).astype(value.dtype)
    return model


def _medians(values: Sequence[np.ndarray], extra: Extra) -> list[np.ndarray]:
    """The median for all who sent finite numbers; what others sent (NaN: none) is kept."""
    finite_values = [value for value in values if np.isfinite(value).all()]
    if not finite_values:
        return list(values)
    median = np.asarray(np.median(np.stack(finite_values), axis=0))
    if extra.finish is not None:
        median = np.asarray(extra.finish(median))
    median = median.astype(finite_values[0].dtype)
    return [median if np.isfinite(value).all() else value for value in values]


def _clip_values(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Each number within _DEVIATIONS median deviations of the median; NaN and order are kept."""
    stack = np.stack(values).astype(np.float64)
    stack[~np.isfinite(stack)] = np.nan
    counts = np.isfinite(stack).sum(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numbers that no site sent
        median = np.nanmedian(stack, axis=0)
        deviation = _DEVIATIONS * np.nanmedian(np.abs(stack - median), axis=0)
    # of two sites that differ, nobody knows which one lies
    deviation = np.where((counts < _CLIP_SITES) | (deviation == 0.0), np.inf, deviation)
    results = []
    for value in values:
        number = np.clip(value.astype(np.float64), median - deviation, median + deviation)
        results.append(np.asarray(number).astype(value.dtype))
    return results


def _has_changed(read: Callable[[int, str], np.ndarray], position: int, reference: Arrays) -> bool:
    for name, value in reference.items():
        if value.dtype.kind == "f" and not np.array_equal(read(position, name), value):
            return True
    return False


def _changes(
    read: Callable[[int, str], np.ndarray],
    positions: Sequence[int],
    name: str,
    reference: np.ndarray,
) -> np.ndarray:
    rows = []
    for position in positions:
        rows.append(np.subtract(read(position, name), reference, dtype=np.float64))
    return np.stack(rows)


def _inner_products(
    read: Callable[[int, str], np.ndarray], positions: Sequence[int], reference: Arrays
) -> np.ndarray:
    """(n, n), summed array by array."""
    products = np.zeros((len(positions), len(positions)))
    for name, value in reference.items():
        if value.dtype.kind == "f":
            rows = _changes(read, positions, name, value).reshape(len(positions), -1)
            products += rows @ rows.T
    return products
