"""The last filter, and the list of all filters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fedgsca.config import Config
from fedgsca.federation.filters.base import RoundContext, UpdateFilter
from fedgsca.federation.filters.claims import ClaimFilter
from fedgsca.federation.filters.distance import DistanceFilter
from fedgsca.federation.filters.form import ClipFilter, FormFilter, RepetitionFilter
from fedgsca.federation.filters.lateness import LatenessFilter
from fedgsca.federation.robust.base import Rule, RuleSettings, make_rule
from fedgsca.federation.robust.combine import combine_extras, combine_models
from fedgsca.federation.robust.spool import UpdateSpool
from fedgsca.methods.base import Method
from fedgsca.wire import Extra, Update

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
