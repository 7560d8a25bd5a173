"""How large the changes of a site may be, beside those of the other sites and of earlier rounds.

    norm        the change is larger than norm_factor times the usual one (PartMemory.usual_norm);
                from scale_factor times on it is used with the usual norm
    steady      the changes of all rounds are larger than steady_factor times the others': it is
                used with their norm
    trust       a site of which an update was refused is used with at most the norm of the others
    opposed     a site that opposed a united rest (opposition_alarm.py) moves the model at most as
                much as another one, whatever number of images it claims

The last three need nobody's decision whether the site lies: they bound its influence.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from fedgsca.config import Config
from fedgsca.engine.guard_memory import MODEL, GuardMemory
from fedgsca.engine.update_checks import FIX
from fedgsca.engine.update_facts import (
    COMPARABLE_SITES,
    PART_NAMES,
    RoundFacts,
    UpdateFacts,
    comparable_rounds,
)
from fedgsca.errors import UpdateError


def lower_median(values: Sequence[float]) -> float:
    """The median; of two values in the middle, the smaller one, which a liar cannot raise."""
    return float(sorted(values)[(len(values) - 1) // 2])


class NormLimits:
    """The limits of one run. `first_round_spread` is what the method declares."""

    def __init__(self, config: Config, memory: GuardMemory, first_round_spread: float) -> None:
        self.config = config
        self.settings = config.aggregation
        self.memory = memory
        self.first_round_spread = first_round_spread

    def follow_rate(self, round_index: int) -> None:
        """On frozen features, changes are in proportion to the learning rate.

        The statistics of BatchNorm in a network that is trained completely are not.
        """
        if self.config.model.frozen:
            # a late update may have been trained with the rate of an earlier round
            first_round = max(0, round_index - self.config.federation.staleness)
            self.memory.parts[MODEL].use_rate(self.config.train.decay_at(first_round))

    def is_surely_within(self, facts: UpdateFacts, part: str) -> bool:
        """Whether the norm is within the limits, whatever the other sites send."""
        if self.is_bounded(facts, part):
            return False
        usual_norm = self.memory.parts[part].usual_norm(facts.site)
        if usual_norm is None:
            return False
        return facts.parts[part].norm <= self.settings.scale_factor * usual_norm

    def check(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> float:
        """The largest norm that is used as it is; infinite if nothing is known.

        Raises UpdateError if the norm is so large that the update is not used at all.
        """
        usual_norm, spread = self._usual(facts, part, round_facts)
        if usual_norm == 0.0:
            return math.inf
        norm = facts.parts[part].norm
        factor = spread * self.settings.norm_factor
        if norm > factor * usual_norm:
            raise UpdateError(
                "update.change-too-large",
                f"its change{PART_NAMES[part]} has the norm {norm:.4g}; usual is "
                f"{usual_norm:.4g}, and more than {factor:g} times as much is not accepted",
                fix=FIX,
            )
        return spread * self.settings.scale_factor * usual_norm

    def factor(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> float:
        """On a change that is too large: of a site that is bounded, only the others' are usual."""
        usual_norm, _ = self._usual(facts, part, round_facts)
        if self.is_bounded(facts, part):
            usual_norm = self.other_norm(facts, part, round_facts)
        if self.is_opposed(facts.site):
            equal_norm = round_facts.equal_norm(part, facts)
            usual_norm = min(usual_norm, equal_norm) if usual_norm > 0.0 else equal_norm
        norm = facts.parts[part].norm
        return usual_norm / norm if 0.0 < usual_norm < norm else 1.0

    def is_bounded(self, facts: UpdateFacts, part: str) -> bool:
        """Whether a site may not send larger changes than the others.

        It has a strike, an update of it was refused for a retreat, it opposed a united rest, or has
        sent larger ones in most of its rounds.
        """
        has_refusal = facts.site in self.memory.strikes or facts.site in self.memory.retreats
        if has_refusal or self.is_opposed(facts.site):
            return True
        rounds = comparable_rounds(facts.num_samples)
        return self.memory.parts[part].excess(facts.site, rounds) > self.settings.steady_factor

    def is_opposed(self, site: str) -> bool:
        """Whether the influence of a site is limited since it opposed a united rest."""
        return self.settings.opposed_sites == "limit" and site in self.memory.alarms

    @staticmethod
    def other_norm(facts: UpdateFacts, part: str, round_facts: RoundFacts) -> float:
        """The median norm of the other sites (0: too few), for a site of this size."""
        other_norm = round_facts.usual_norm(part, facts.parts[part].sent_norm)
        return other_norm * round_facts.size_factor(facts.num_samples)

    def ratio(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> float:
        """The norm as a multiple of the usual one."""
        usual_norm, _ = self._usual(facts, part, round_facts)
        return facts.parts[part].norm / usual_norm if usual_norm > 0.0 else 0.0

    def _usual(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> tuple[float, float]:
        """The usual norm for a site (0: unknown), and how much wider the limits are."""
        other_norm = self.other_norm(facts, part, round_facts)
        memory = self.memory.parts[part]
        usual_norm = memory.usual_norm(facts.site, other_norm)
        if usual_norm is None:
            return other_norm, self.first_round_spread
        if other_norm == 0.0 and memory.rate:
            # nobody to compare with: as before the learning rate fell
            return usual_norm / memory.rate, 1.0
        return usual_norm, 1.0

    def remember(
        self,
        part: str,
        facts: Sequence[UpdateFacts],
        round_facts: RoundFacts,
        accepted_sites: Collection[str],
    ) -> None:
        """Add a round: the facts of all sites that sent this part."""
        memory = self.memory.parts[part]
        norms = [item.parts[part].norm for item in facts if item.parts[part].norm > 0.0]
        if len(norms) >= COMPARABLE_SITES:
            memory.add_level(lower_median(norms))
        for item in facts:
            part_facts = item.parts[part]
            other_norm = self.other_norm(item, part, round_facts)
            if part_facts.sent_norm > 0.0 and other_norm > 0.0:
                memory.add_excess(item.site, part_facts.sent_norm, other_norm)
            if item.site in accepted_sites and part_facts.norm > 0.0:
                memory.add_norm(item.site, part_facts.norm)
