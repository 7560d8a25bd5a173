"""What the guard knows about the updates of a round while the round lasts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from fedgsca.engine.guard_memory import EXTRAS, MODEL, PARTS
from fedgsca.robust.anchor import Pull

# cosine of the model that a site sends with the one it received; training keeps it above 0, unless
# the learning rate is so large that steps overshoot (-0.3 was seen)
MIN_RESEMBLANCE = -0.5
COMPARABLE_SITES = 3  # that train in a round, for a comparison of their changes
# Rounds of a site before what it sent over its rounds says something. A few images make a few
# steps, which overshoot: a round of such a site says less.
_COMPARABLE_ROUNDS = 2
_SMALL_SITE_ROUNDS = 4
SMALL_SITE = 100  # images
# in messages
PART_NAMES = {MODEL: "", EXTRAS: " of the extras that are averaged"}


def comparable_rounds(num_samples: int) -> int:
    """After how many rounds what a site sent over its rounds is judged."""
    return _SMALL_SITE_ROUNDS if num_samples < SMALL_SITE else _COMPARABLE_ROUNDS


@dataclass(frozen=True, eq=False)
class PartFacts:
    """What is remembered of one part of an update while its round lasts."""

    norm: float  # L2 norm of the change, as it is used
    # sketches of trained parameters: the change, and the model received relative to the first one
    change: np.ndarray | None = None
    model: np.ndarray | None = None
    # cosine of the model sent and the model received; None if either is zero
    resemblance: float | None = None
    response: float | None = None  # SiteMotion.response with this round
    step: float = 0.0  # L2 norm of `change`
    pull: Pull | None = None  # towards the site's anchor; None in the first round of the site
    factor: float = 1.0  # on the change that the site sent

    @property
    def sent_norm(self) -> float:
        """L2 norm of the change that the site sent."""
        return self.norm / self.factor

    def points_away(self, max_response: float) -> bool:
        """Whether model or changes have a direction that training does not give them."""
        is_mirrored = self.resemblance is not None and self.resemblance < MIN_RESEMBLANCE
        return is_mirrored or (self.response is not None and self.response > max_response)


@dataclass(frozen=True)
class Scaling:
    """How the changes of an update are scaled down before they are used."""

    factors: Mapping[str, float]  # by part; without an entry, a part is used as it is
    is_offence: bool = False  # if it happens again


@dataclass(frozen=True, eq=False)
class UpdateFacts:
    """What is remembered of an update while its round lasts."""

    site: str
    num_samples: int
    parts: Mapping[str, PartFacts]
    digest: bytes
    is_exaggerated: bool = False  # a change was so large that it is an offence if repeated

    @property
    def norm(self) -> float:
        """L2 norm of the change of the weights."""
        return self.parts[MODEL].norm

    def influence(self, part: str) -> float:
        """What moves a mean that is weighted by images: the norm that was sent times the images."""
        return self.num_samples * self.parts[part].sent_norm

    def discounted(self, weight: float) -> UpdateFacts:
        """The facts about a late update, of whose extras nothing is averaged (lateness.py)."""
        facts = self.parts[MODEL]
        return replace(self, parts={MODEL: replace(facts, norm=weight * facts.norm)})

    def scaled(self, scaling: Scaling) -> UpdateFacts:
        """The facts about an update whose changes are scaled before they are used.

        The response is that of what the site sent.
        """
        parts = {}
        for part, facts in self.parts.items():
            factor = scaling.factors.get(part, 1.0)
            parts[part] = replace(facts, norm=factor * facts.norm, factor=factor)
        return replace(self, parts=parts, is_exaggerated=scaling.is_offence)


class OtherValues:
    """Numbers of the sites of a round; statistics of all sites but one, without a new sort."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = sorted(values)
        self._sums = [0.0, *accumulate(self._values)]

    def count(self, own_value: float | None) -> int:
        """The number of other sites; `own_value` is None for a site that is not among them."""
        return len(self._values) - (own_value is not None)

    def _pick(self, own_value: float | None, position: int) -> float:
        """The value at a position of the sorted values of the others."""
        if own_value is not None and position >= bisect_left(self._values, own_value):
            position += 1
        return self._values[position]

    def median(self, own_value: float | None) -> float:
        """The median of the others, of which there is at least one."""
        count = self.count(own_value)
        low, high = (self._pick(own_value, (count - 1) // 2), self._pick(own_value, count // 2))
        return 0.5 * (low + high)

    def upper_median(self, own_value: float | None) -> float:
        """The same; of two values in the middle, the larger one."""
        return self._pick(own_value, self.count(own_value) // 2)

    def bounded_sum(self, own_value: float, low: float, high: float) -> float:
        """The sum of the values of the others, each at least `low` and at most `high`."""
        start, end = bisect_left(self._values, low), bisect_left(self._values, high)
        total = low * start + self._sums[end] - self._sums[start]
        total += high * (len(self._values) - end)
        return total - min(max(own_value, low), high)


class RoundFacts:
    """All updates of a round that are usable on their own, prepared for comparisons.

    Every site is compared with all others, so what is compared is sorted once: a round of n sites
    takes n log n steps.
    """

    def __init__(self, facts: Sequence[UpdateFacts]) -> None:
        self.sizes = OtherValues([item.num_samples for item in facts])
        self._norms: dict[str, OtherValues] = {}
        self._influences: dict[str, OtherValues] = {}
        self._resemblances: dict[str, OtherValues] = {}
        self._responses: dict[str, OtherValues] = {}
        self._steps: dict[str, OtherValues] = {}
        self._approaches: dict[str, OtherValues] = {}
        self._approach_losses: dict[str, OtherValues] = {}
        for part in PARTS:
            rows = [item.parts[part] for item in facts if part in item.parts]
            norms = [row.sent_norm for row in rows if row.norm > 0.0]
            self._norms[part] = OtherValues(norms)
            self._influences[part] = OtherValues(_influences(facts, part))
            self._resemblances[part] = _known_values([row.resemblance for row in rows])
            self._responses[part] = _known_values([row.response for row in rows])
            self._steps[part] = OtherValues([row.step for row in rows if row.change is not None])
            self._approaches[part] = _known_values([self.approach(part, row) for row in rows])
            losses = [self._approach_loss(part, row) for row in rows]
            self._approach_losses[part] = _known_values(losses)
        self._first_sites: dict[bytes, str] = {}
        for item in facts:
            if item.digest:
                site = self._first_sites.get(item.digest, item.site)
                self._first_sites[item.digest] = min(site, item.site)

    def usual_norm(self, part: str, norm: float) -> float:
        """The median norm of the other sites that train; 0 if there are too few.

        Of two values in the middle it is the larger one: a tiny change must not expel the others.
        """
        norms = self._norms[part]
        own_norm = norm if norm > 0.0 else None
        # of two sites that differ, nobody knows which one lies
        if norms.count(own_norm) + 1 < COMPARABLE_SITES:
            return 0.0
        return norms.upper_median(own_norm)

    def equal_norm(self, part: str, facts: UpdateFacts) -> float:
        """The norm with which a site moves the mean as much as the median of the others.

        0 if there are too few.
        """
        influences = self._influences[part]
        own_influence = facts.influence(part)
        own_value = own_influence if own_influence > 0.0 else None
        if influences.count(own_value) + 1 < COMPARABLE_SITES:
            return 0.0
        return influences.median(own_value) / max(1, facts.num_samples)

    def size_factor(self, num_samples: int) -> float:
        """How many times more images than the median of the others a site has; at least 1.

        A site takes as many steps as it has batches, and each step moves the model about as far.
        """
        if self.sizes.count(num_samples) + 1 < COMPARABLE_SITES:
            return 1.0
        return max(1.0, num_samples / max(1.0, self.sizes.upper_median(num_samples)))

    def resemblance_gap(self, part: str, resemblance: float | None) -> float:
        """How much the median of the other sites is above this one; 0 if there are too few."""
        return _gap(self._resemblances[part], resemblance)

    def response_gap(self, part: str, response: float | None) -> float:
        """How much this one is above the median of the other sites; 0 if there are too few."""
        return -_gap(self._responses[part], response)

    def approach(self, part: str, facts: PartFacts) -> float | None:
        """How far a site moves towards its anchor; None in its first round."""
        if facts.pull is None:
            return None
        steps = self._steps[part]
        has_others = steps.count(facts.step) > 0
        return facts.pull.approach(steps.median(facts.step) if has_others else 0.0)

    def _approach_loss(self, part: str, facts: PartFacts) -> float | None:
        """How much less than usual a site moves towards its anchor."""
        approach = self.approach(part, facts)
        if facts.pull is None or approach is None or facts.pull.usual_approach is None:
            return None
        return facts.pull.usual_approach - approach

    def common_loss(self, part: str, facts: PartFacts) -> float | None:
        """How much less than usual, or than nothing, the other sites approach their anchors.

        The larger one of the two medians, at least 0; None if there are too few other sites.
        """
        approaches, losses = self._approaches[part], self._approach_losses[part]
        approach, loss = self.approach(part, facts), self._approach_loss(part, facts)
        if approaches.count(approach) + 1 < COMPARABLE_SITES:
            return None
        common_loss = max(0.0, -approaches.median(approach))
        if losses.count(loss):
            common_loss = max(common_loss, losses.median(loss))
        return common_loss

    def first_site(self, digest: bytes) -> str | None:
        """The first name, in alphabetical order, that sent these bytes."""
        return self._first_sites.get(digest)


def _influences(facts: Sequence[UpdateFacts], part: str) -> list[float]:
    """Of the sites that train."""
    influences = [item.influence(part) for item in facts if part in item.parts]
    return [influence for influence in influences if influence > 0.0]


def _known_values(values: Sequence[float | None]) -> OtherValues:
    return OtherValues([value for value in values if value is not None])


def _gap(values: OtherValues, value: float | None) -> float:
    if value is None or values.count(value) + 1 < COMPARABLE_SITES:
        return 0.0
    return values.median(value) - value
