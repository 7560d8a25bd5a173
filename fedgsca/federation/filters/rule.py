"""`make_filters`, the list of all filters, and the last one, for which a rule (rules.py) decides.

`RuleFilter` makes one model from the updates of a round. The same for what travels beside the model
and is averaged by the server (`Extra.vote`): evidence heads, FedGP's network, selectors. Each array
is a vector on which the rule decides anew, because a site can lie about one of them and be right
about the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fedgsca.config import Config
from fedgsca.federation.filters.base import (
    RoundContext,
    SpooledArray,
    UpdateFilter,
    UpdateSpool,
    WaitingUpdate,
)
from fedgsca.federation.filters.claims import ClaimFilter
from fedgsca.federation.filters.distance import DistanceFilter
from fedgsca.federation.filters.form import ClipFilter, FormFilter, RepetitionFilter
from fedgsca.federation.filters.lateness import LatenessFilter
from fedgsca.federation.filters.rules import Rule, load_rules
from fedgsca.methods.base import Method
from fedgsca.wire import Arrays, Extra, Update

_DIAGNOSIS = "mixing"  # the rule of the distance filter


def make_filters(
    config: Config, method: Method, names: Sequence[str], dims: Mapping[str, int]
) -> list[UpdateFilter]:
    """The filters of a run, in their order. `dims` are those of `Extra.resolve`."""
    settings = config.aggregation
    rules = load_rules()
    claims = ClaimFilter(settings, names)
    filters: list[UpdateFilter] = [FormFilter(method.uploads, dims), claims]
    if config.privacy is not None:
        filters.append(ClipFilter(config.privacy))
    filters += [
        RepetitionFilter(),
        LatenessFilter(method, config.federation.staleness),
        DistanceFilter(rules[_DIAGNOSIS](settings.liars), names),
    ]
    rule = rules[settings.rule](settings.liars)
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
        with UpdateSpool(context.folder) as spool:
            for update in updates:
                spool.add(update)
            entries = spool.updates
            # of all updates, whether they have a vote or not
            images = float(sum(update.num_samples for update in entries))
            if self.claims is not None:
                images = max(images, self.claims.total_images())
            self.rule.images = images
            model = combine_models(self.rule, entries, payload.weights)
            extras = combine_extras(self.rule, entries, self.uploads, payload.extras)
            for old, own_extras in zip(entries, extras, strict=True):
                yield Update(old.site, old.num_samples, model, own_extras)


# ---- one model from the updates of a round, by a rule ----


def combine_models(
    rule: Rule, updates: Sequence[WaitingUpdate], reference: Arrays
) -> dict[str, np.ndarray]:
    """The model that the rule makes of the updates; `reference` is the one that was sent out.

    A site that did not train (an unchanged model) and a site without images have no vote. Integer
    buffers are the lower median.
    """
    voters = []
    for update in updates:
        if update.num_samples > 0 and _has_changed(update, reference):
            voters.append(update)
    return _combine(rule, voters, [update.weights for update in voters], reference)


def combine_extras(
    rule: Rule,
    updates: Sequence[WaitingUpdate],
    uploads: Mapping[str, Extra],
    payload_extras: Arrays,
) -> list[dict[str, np.ndarray]]:
    """The extras of the updates, those that are averaged as the rule makes them.

    `payload_extras` are those that were sent out; without one, changes are from zero. A site that
    sent numbers that are not finite (NaN: none) has no vote and keeps them.
    """
    results = []
    for update in updates:
        results.append({name: array.read() for name, array in update.extras.items()})
    for name, extra in uploads.items():
        if not extra.vote:
            continue
        owners = []
        for i, extras in enumerate(results):
            is_sent = name in extras and bool(np.isfinite(extras[name]).all())
            if is_sent and updates[i].num_samples > 0:
                owners.append(i)
        if not owners:
            continue
        first = results[owners[0]][name]
        # what was sent out may be NaN, too: there was none yet
        sent_value = payload_extras.get(name, np.zeros_like(first))
        reference = np.nan_to_num(sent_value).astype(first.dtype)
        voters = [updates[i] for i in owners]
        columns = [update.extras for update in voters]
        value = _combine(rule, voters, columns, {name: reference})[name]
        if extra.finish is not None:
            value = np.asarray(extra.finish(value)).astype(first.dtype)
        for i in owners:
            results[i][name] = value
    return results


def _combine(
    rule: Rule,
    voters: Sequence[WaitingUpdate],
    arrays: Sequence[Mapping[str, SpooledArray]],
    reference: Arrays,
) -> dict[str, np.ndarray]:
    """The arrays of `reference` as the rule makes them of those of the n voters."""
    if not voters:
        return dict(reference)
    sizes = np.array([float(update.num_samples) for update in voters])
    # array by array, by name: a resumed run has another order
    products = np.zeros((len(voters), len(voters)))
    for name in sorted(reference):
        if reference[name].dtype.kind == "f":
            rows = _changes(arrays, name, reference[name]).reshape(len(voters), -1)
            products += rows @ rows.T
    coefficients = rule.coefficients(products, sizes)
    model: dict[str, np.ndarray] = {}
    for name, value in reference.items():
        if value.dtype.kind == "f":
            change = np.tensordot(coefficients, _changes(arrays, name, value), axes=1)
            model[name] = np.asarray(value + change).astype(value.dtype)
        else:
            stack = np.stack([row[name].read() for row in arrays])
            model[name] = np.asarray(np.sort(stack, axis=0)[(len(voters) - 1) // 2])
    return model


def _has_changed(update: WaitingUpdate, reference: Arrays) -> bool:
    for name, value in reference.items():
        if value.dtype.kind == "f" and not np.array_equal(update.weights[name].read(), value):
            return True
    return False


def _changes(
    arrays: Sequence[Mapping[str, SpooledArray]], name: str, reference: np.ndarray
) -> np.ndarray:
    """(n, ...) of one array, in double precision."""
    rows = []
    for row in arrays:
        rows.append(np.subtract(row[name].read(), reference, dtype=np.float64))
    return np.stack(rows)
