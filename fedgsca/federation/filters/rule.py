"""`make_filters`, the list of all filters, and the last one, which a rule of robust/ decides.

`RuleFilter` makes one model from the updates of a round. The same for what travels beside the model
and is averaged by the server (`Extra.vote`): evidence heads, FedGP's network, selectors. Each array
is a vector on which the rule decides anew, because a site can lie about one of them and be right
about the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedgsca.config import Config
from fedgsca.federation.filters.base import RoundContext, UpdateFilter
from fedgsca.federation.filters.claims import ClaimFilter
from fedgsca.federation.filters.distance import DistanceFilter
from fedgsca.federation.filters.form import ClipFilter, FormFilter, RepetitionFilter
from fedgsca.federation.filters.lateness import LatenessFilter
from fedgsca.federation.robust.rules import Rule, RuleSettings, make_rule
from fedgsca.federation.robust.spool import UpdateSpool
from fedgsca.methods.base import Method
from fedgsca.wire import Arrays, Extra, Update

_DIAGNOSIS = "mixing"  # the rule of the distance filter


def make_filters(
    config: Config, method: Method, names: Sequence[str], dims: Mapping[str, int]
) -> list[UpdateFilter]:
    """The filters of a run, in their order. `dims` are those of `Extra.resolve`."""
    settings = config.aggregation
    rule_settings = RuleSettings(liars=settings.liars)
    claims = ClaimFilter(settings, names)
    filters: list[UpdateFilter] = [FormFilter(method.uploads, dims), claims]
    if config.privacy is not None:
        filters.append(ClipFilter(config.privacy))
    filters += [
        RepetitionFilter(),
        LatenessFilter(method, config.federation.staleness),
        DistanceFilter(make_rule(_DIAGNOSIS, rule_settings), names),
    ]
    rule = make_rule(settings.rule, rule_settings)
    if rule.needs_all:
        # a round that asks some of the sites knows nothing about the images of the others
        known_claims = None if config.federation.is_partial else claims
        filters.append(RuleFilter(rule, method.uploads, known_claims))
    return filters


class RuleFilter(UpdateFilter):
    """Gives every update the model, and the extras, that the rule makes of all of them."""

    name = "rule"

    def __init__(
        self, rule: Rule, uploads: Mapping[str, Extra], claims: ClaimFilter | None = None
    ) -> None:
        """`claims` know the images of all sites, also of those that are absent.

        Without them, a liar among few answers would have a larger share than was agreed on.
        """
        self.rule = rule
        self.uploads = uploads
        self.claims = claims

    def judge(self, updates: Iterator[Update], context: RoundContext) -> Iterator[Update]:
        """All updates, when the last one is there."""
        payload = context.payload
        images = 0.0 if self.claims is None else self.claims.total_images()
        rule = type(self.rule)(replace(self.rule.settings, images=images))
        with UpdateSpool(context.folder) as spool:
            for update in updates:
                spool.add(update)
            positions = range(len(spool))
            model = combine_models(rule, spool, positions, payload.weights)
            extras = combine_extras(rule, spool, positions, self.uploads, payload.extras)
            for position in positions:
                result = spool.update_with(position, model)
                yield replace(result, extras=extras[position])


# ---- one model from the updates of a round, by a rule ----


Reader = Callable[[int, str], np.ndarray]  # position of an update, name of an array -> the array


def combine_models(
    rule: Rule, spool: UpdateSpool, positions: Sequence[int], reference: Arrays
) -> dict[str, np.ndarray]:
    """The model that the rule makes of the updates at `positions`; `reference` is the one sent out.

    A site that did not train (an unchanged model) and a site without images have no vote. Integer
    buffers are the lower median.
    """
    voters = []
    for position in positions:
        if spool.num_samples(position) > 0 and _has_changed(spool.weight, position, reference):
            voters.append(position)
    return _combine(_for_round(rule, spool, positions), spool, voters, spool.weight, reference)


def combine_extras(
    rule: Rule,
    spool: UpdateSpool,
    positions: Sequence[int],
    uploads: Mapping[str, Extra],
    payload_extras: Arrays,
) -> list[dict[str, np.ndarray]]:
    """The extras of the updates at `positions`, those that are averaged as the rule makes them.

    `payload_extras` are those that were sent out; without one, changes are from zero. A site that
    sent numbers that are not finite (NaN: none) has no vote and keeps them.
    """
    rule = _for_round(rule, spool, positions)
    results = [spool.extras(position) for position in positions]
    for name, extra in uploads.items():
        if not extra.vote:
            continue
        owners = []
        for i, extras in enumerate(results):
            is_sent = name in extras and bool(np.isfinite(extras[name]).all())
            if is_sent and spool.num_samples(positions[i]) > 0:
                owners.append(i)
        if not owners:
            continue
        first = results[owners[0]][name]
        # what was sent out may be NaN, too: there was none yet
        sent_value = payload_extras.get(name, np.zeros_like(first))
        reference = np.nan_to_num(sent_value).astype(first.dtype)
        voters = [positions[i] for i in owners]
        value = _combine(rule, spool, voters, spool.extra, {name: reference})[name]
        if extra.finish is not None:
            value = np.asarray(extra.finish(value)).astype(first.dtype)
        for i in owners:
            results[i][name] = value
    return results


def _for_round(rule: Rule, spool: UpdateSpool, positions: Sequence[int]) -> Rule:
    """The rule with the images of all updates, whether they have a vote or not."""
    images = float(sum(spool.num_samples(position) for position in positions))
    if images <= rule.settings.images:
        return rule
    return type(rule)(replace(rule.settings, images=images))


def _combine(
    rule: Rule, spool: UpdateSpool, voters: Sequence[int], read: Reader, reference: Arrays
) -> dict[str, np.ndarray]:
    if not voters:
        return dict(reference)
    sizes = np.array([float(spool.num_samples(position)) for position in voters])
    coefficients = rule.coefficients(_inner_products(read, voters, reference), sizes)
    model: dict[str, np.ndarray] = {}
    for name, value in reference.items():
        if value.dtype.kind == "f":
            change = np.tensordot(coefficients, _changes(read, voters, name, value), axes=1)
            model[name] = np.asarray(value + change).astype(value.dtype)
        else:
            stack = np.stack([read(position, name) for position in voters])
            model[name] = np.asarray(np.sort(stack, axis=0)[(len(voters) - 1) // 2])
    return model


def _has_changed(read: Reader, position: int, reference: Arrays) -> bool:
    for name, value in reference.items():
        if value.dtype.kind == "f" and not np.array_equal(read(position, name), value):
            return True
    return False


def _changes(
    read: Reader, positions: Sequence[int], name: str, reference: np.ndarray
) -> np.ndarray:
    """(n, ...) of one array, in double precision."""
    rows = []
    for position in positions:
        rows.append(np.subtract(read(position, name), reference, dtype=np.float64))
    return np.stack(rows)


def _inner_products(read: Reader, positions: Sequence[int], reference: Arrays) -> np.ndarray:
    """(n, n) of the changes, summed array by array, by name: a resumed run has another order."""
    products = np.zeros((len(positions), len(positions)))
    for name in sorted(reference):
        value = reference[name]
        if value.dtype.kind == "f":
            rows = _changes(read, positions, name, value).reshape(len(positions), -1)
            products += rows @ rows.T
    return products
