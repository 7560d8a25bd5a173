"""How many images a site claims to have: the weight of its updates.

A coordinator cannot count the images of a site. It can hold a site to what it said before, to what
people agreed on beforehand, and to a share of all images that one site may have.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedgsca.config import AggregationConfig, Config
from fedgsca.engine.guard_memory import GuardMemory
from fedgsca.engine.update_checks import FIX
from fedgsca.engine.update_facts import RoundFacts, UpdateFacts
from fedgsca.errors import ConfigError, UpdateError
from fedgsca.support.text import did_you_mean, one_line
from fedgsca.wire import Update

_SHARE_SITES = 3  # with fewer sites, one may well have almost all images
_MAX_NAMES = 20  # of sites in a message
_SIZE_SPREAD = 100  # honest sites are not more than this many times larger than the median


def check_agreed_sites(config: Config, names: Sequence[str]) -> None:
    """Raises ConfigError if `aggregation.max_images` names a site that does not exist."""
    table = config.aggregation.max_images
    if not isinstance(table, dict):
        return
    for site in sorted(set(table) - set(names)):
        raise ConfigError(
            "config.unknown-site",
            f"aggregation.max_images names the site {one_line(site)!r}, which does not take part",
            fix=f"{did_you_mean(site, names)}use the names of the sites: {_shorten(names)}",
        )


def _shorten(names: Sequence[str]) -> str:
    num_others = len(names) - _MAX_NAMES
    text = ", ".join(names[:_MAX_NAMES])
    return f"{text} and {num_others} more" if num_others > 0 else text


class ImageClaims:
    """What the sites of one run may claim."""

    def __init__(self, settings: AggregationConfig, memory: GuardMemory) -> None:
        self.settings = settings
        self.memory = memory

    def check_update(self, update: Update) -> None:
        """The number of a site is at most the agreed one, and the one of its first round."""
        agreed_size = self.settings.agreed_images(update.site)
        if agreed_size is not None and update.num_samples > agreed_size:
            raise UpdateError(
                "update.more-than-agreed",
                f"it claims {update.num_samples:,} images, but the consortium agreed on "
                f"{agreed_size:,} at most",
                fix="ask the site how many training images it has; if the agreement is outdated, "
                "start a new run with another aggregation.max_images",
            )
        size = self.memory.sizes.get(update.site, update.num_samples)
        if update.num_samples != size:
            raise UpdateError(
                "update.size-changed",
                f"it claims {update.num_samples:,} images, but {size:,} in its first round",
                fix=FIX,
            )

    def check_declaration(self, update: Update, declared_samples: int) -> None:
        """A site trains on at most the images that it had when it connected."""
        if update.num_samples > declared_samples:
            raise UpdateError(
                "update.more-than-declared",
                f"it claims {update.num_samples:,} images, but {declared_samples:,} when it "
                "connected",
                fix=FIX,
            )

    def check_share(self, facts: UpdateFacts, round_facts: RoundFacts) -> None:
        """In its first round, a site does not claim nearly all images."""
        size, sizes = facts.num_samples, round_facts.sizes
        if sizes.count(size) + 1 < _SHARE_SITES or facts.site in self.memory.sizes:
            return
        # several liars must not hide behind each other's claims, and one that claims a single image
        # must not make an honest site look too large
        middle = sizes.upper_median(size)
        total = size + int(sizes.bounded_sum(size, middle, _SIZE_SPREAD * middle))
        if size > self.settings.max_share * total:
            raise UpdateError(
                "update.share-too-large",
                f"it claims {size:,} of {total:,} images; the largest share "
                f"allowed is {self.settings.max_share:g}",
                fix="if it has so many images, raise aggregation.max_share",
            )
