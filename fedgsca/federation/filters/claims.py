"""What a site says about itself: how many images it has, and since when it remembers.

A coordinator cannot count the images of a site, which are the weight of its updates. It can hold
the site to what people agreed on beforehand or, where nobody agreed on a number, to what it said
before. A number may shrink, for a patient can leave; it grows only up to what was agreed on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedgsca.config import AggregationConfig, Config
from fedgsca.errors import UpdateError
from fedgsca.federation.filters.base import RoundContext, UpdateContext, UpdateFilter, numbers_of
from fedgsca.federation.filters.rules import load_rules
from fedgsca.wire import Arrays, Update

_MAX_NAMES = 20  # of sites in a message


class ClaimFilter(UpdateFilter):
    """At most the agreed number of images; without one, that at the connection and before."""

    name = "claims"

    def __init__(self, settings: AggregationConfig, names: Sequence[str]) -> None:
        self.settings = settings
        self.names = tuple(names)
        self.sizes: dict[str, int] = {}  # in the first update that was used
        self._sizes: dict[str, int] = {}  # of this round

    def start(self, context: RoundContext) -> None:
        """Forget the numbers of an unfinished round."""
        self._sizes = {}

    def examine(self, update: Update, context: UpdateContext) -> Update:
        """Raises UpdateError for more images than the site can have."""
        agreed_number = self.settings.agreed_images(update.site)
        limits = [(agreed_number, "the consortium agreed on")]
        if agreed_number is None:
            limits += [
                (context.reply.declared_samples, "when it connected it had"),
                (self.sizes.get(update.site), "in its first round it had"),
            ]
        for limit, source in limits:
            if limit is not None and update.num_samples > limit:
                raise UpdateError(
                    "update.too-many-images",
                    f"it claims {update.num_samples:,} images, but {source} {limit:,}",
                    fix="ask the site how many training images it has; if they are more than "
                    "before, start a new run, with another aggregation.max_images if it is agreed",
                )
        self._sizes[update.site] = update.num_samples
        self._report_new_start(context)
        return update

    def total_images(self) -> float:
        """Of all sites: in their first updates or, for those that never answered, as agreed on."""
        total = 0
        for name in self.names:
            total += self.sizes.get(name) or self.settings.agreed_images(name) or 0
        return float(total)

    def _report_new_start(self, context: UpdateContext) -> None:
        """A site without its memory trains as a new one: allowed, but never in silence."""
        round_index = context.payload.round
        if context.reply.site in self.sizes and context.reply.memory_since == round_index:
            context.round.tell(
                f"round {round_index + 1}: {context.reply.site} begins anew: it took part before, "
                "but its state folder was lost, and with it what it remembered; the run is not the "
                "one that it would have been"
            )

    def remember(self, sites: Collection[str], context: RoundContext) -> None:
        """Add the sites that took part for the first time."""
        for site in sites:
            if site in self._sizes:
                self.sizes.setdefault(site, self._sizes[site])

    def to_arrays(self) -> Arrays:
        """(K,) numbers of images, -1 for sites that did not take part yet."""
        return {"sizes": numbers_of(self.sizes, self.names)}

    def from_arrays(self, arrays: Arrays) -> None:
        """The inverse of `to_arrays`."""
        for name, size in zip(self.names, arrays["sizes"].tolist(), strict=True):
            if size >= 0:
                self.sizes[name] = size


def describe_aggregation(config: Config, names: Sequence[str]) -> str:
    """What protects the model of a deployment, and what it cannot stop, in a few sentences."""
    settings = config.aggregation
    text = f"Updates are combined by the rule {settings.rule}. {load_rules()[settings.rule].stops}"
    open_sites = [name for name in names if settings.agreed_images(name) is None]
    if open_sites:
        text += (
            f" No number of images was agreed on with {_shorten(open_sites)}: nobody would notice"
            " a false one, and it is the weight of an update."
        )
    return text


def _shorten(names: Sequence[str]) -> str:
    num_others = len(names) - _MAX_NAMES
    text = ", ".join(names[:_MAX_NAMES])
    return f"{text} and {num_others} more" if num_others > 0 else text
