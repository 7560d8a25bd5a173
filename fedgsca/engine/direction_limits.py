"""Whether the changes of a site lead where training leads, over its rounds.

    mirrored    the model points against the one that was sent out, and those of others do not
    reversed    the changes of all rounds push the model further wherever it goes, and those of
                others do not (robust/motion.py)
    retreat     the site moves away from the models that it sent before, and others do not
                (robust/anchor.py): it begins to send its change reversed

Whether a change points in the direction of the others is not judged: honest sites with different
classes or labels pull in opposite directions (docs/robustness.md has the measurements).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedgsca.config import Config
from fedgsca.engine.guard_memory import EXTRAS, GuardMemory, PartMemory
from fedgsca.engine.update_checks import FIX
from fedgsca.engine.update_facts import (
    MIN_RESEMBLANCE,
    PART_NAMES,
    SMALL_SITE,
    PartFacts,
    RoundFacts,
    UpdateFacts,
)
from fedgsca.errors import UpdateError
from fedgsca.robust.anchor import SiteAnchor
from fedgsca.robust.motion import SiteMotion

REVERSAL_CODE = "update.reversed-changes"
_GAP = 0.3  # by which cosine or response must differ from the median of the other sites
_SMALL_SITE_SLACK = 0.2  # on max_response
# on max_response: heads are trained towards judgements of the labels, which a refresh replaces
_EXTRAS_SLACK = 0.2
_ACCIDENTS = 2  # retreats in a row that may happen to an honest site


class DirectionLimits:
    """The limits of one run; the slacks are what the method declares."""

    def __init__(
        self, config: Config, memory: GuardMemory, response_slack: float, retreat_slack: float
    ) -> None:
        self.memory = memory
        self.max_response = min(1.0, config.aggregation.max_response + response_slack)
        self.max_retreat = config.aggregation.max_retreat + retreat_slack

    def is_surely_within(self, facts: UpdateFacts, part: str) -> bool:
        """Whether the directions are within the limits, whatever the other sites send."""
        part_facts = facts.parts[part]
        if part_facts.points_away(self._response_limit(facts, part)):
            return False
        # other sites only make the step of this one, and so the evidence, smaller
        if part_facts.pull is not None and part_facts.pull.product < 0.0:
            approach = part_facts.pull.approach()
            return self._evidence(facts.site, part, approach, 0.0) <= self.max_retreat
        return True

    def check(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> None:
        """Raises UpdateError if the update leads where training does not lead."""
        self._check_turn(facts, part, round_facts)
        self._check_retreat(facts, part, round_facts)

    def _check_turn(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> None:
        """Only the exception is refused: a stage or a liar may turn the honest sites, too."""
        site_facts = facts.parts[part]
        resemblance = site_facts.resemblance
        gap = round_facts.resemblance_gap(part, resemblance)
        if resemblance is not None and resemblance < MIN_RESEMBLANCE and gap > _GAP:
            raise UpdateError(
                "update.mirrored-model",
                f"its model{PART_NAMES[part]} points against the one it received: their cosine is "
                f"{resemblance:.2f}, and training keeps it positive",
                fix=FIX,
            )
        limit = self._response_limit(facts, part)
        gap = round_facts.response_gap(part, site_facts.response)
        if site_facts.response is not None and site_facts.response > limit and gap > _GAP:
            rounds = self.memory.parts[part].motions[facts.site].count + 1
            raise UpdateError(
                "update.reversed-changes",
                f"its changes{PART_NAMES[part]} push the model further wherever it goes: over "
                f"{rounds} rounds their correlation with the model is {site_facts.response:+.2f}; "
                f"training makes it negative, and more than {limit:g} is not accepted",
                fix=FIX,
            )

    def _evidence(
        self, site: str, part: str, approach: float | None, common_loss: float | None
    ) -> float:
        anchor = self.memory.parts[part].anchors.get(site)
        if anchor is None:
            return 0.0
        if approach is None or common_loss is None:
            return anchor.evidence
        return anchor.evidence_with(approach, common_loss)

    def retreat(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> float:
        """The evidence that a site moves away from what it sent before, with this round.

        That of the rounds before if there are too few other sites to compare with.
        """
        part_facts = facts.parts[part]
        approach = round_facts.approach(part, part_facts)
        common_loss = round_facts.common_loss(part, part_facts)
        return self._evidence(facts.site, part, approach, common_loss)

    def _check_retreat(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> None:
        """Refuse a retreat; the third in a row is an offence (`is_blamed`).

        One or two can be a jump of honest training that does not converge smoothly.
        """
        retreat = self.retreat(facts, part, round_facts)
        if retreat <= self.max_retreat:
            return
        problem = (
            f"its changes{PART_NAMES[part]} lead away from the models that it sent before: "
            f"added up, {retreat:.2f} times a usual step; training leads back to them, and "
            f"more than {self.max_retreat:g} is not accepted"
        )
        anchor = self.memory.parts[part].anchors[facts.site]
        if anchor.num_refusals >= _ACCIDENTS:
            raise UpdateError("update.continued-retreat", problem, fix=FIX)
        raise UpdateError("update.retreat", problem, fix=FIX)

    def _response_limit(self, facts: UpdateFacts, part: str) -> float:
        slack = _SMALL_SITE_SLACK if facts.num_samples < SMALL_SITE else 0.0
        if part == EXTRAS:
            slack += _EXTRAS_SLACK
        return min(1.0, self.max_response + slack)

    def remember(
        self,
        part: str,
        facts: Sequence[UpdateFacts],
        round_facts: RoundFacts,
        accepted_sites: Collection[str],
        reversed_sites: Collection[str],
    ) -> None:
        """Add a round: the facts of all sites that sent this part.

        The changes of sites that were refused as reversed are remembered, too: otherwise every
        refusal would improve what is known about the site.
        """
        memory = self.memory.parts[part]
        for item in facts:
            is_accepted = item.site in accepted_sites
            if is_accepted or item.site in reversed_sites:
                self._remember_motion(memory, item.site, item.parts[part])
            self._remember_anchor(part, item, round_facts, is_accepted=is_accepted)

    @staticmethod
    def _remember_motion(memory: PartMemory, site: str, facts: PartFacts) -> None:
        if facts.change is not None and facts.model is not None:
            motion = memory.motions.get(site, SiteMotion.zero())
            memory.motions[site] = motion.add(facts.change, facts.model)

    def _remember_anchor(
        self, part: str, item: UpdateFacts, round_facts: RoundFacts, *, is_accepted: bool
    ) -> None:
        """The anchor is a model that was used; a refusal leaves the evidence at the limit."""
        anchors = self.memory.parts[part].anchors
        facts, anchor = item.parts[part], anchors.get(item.site)
        if facts.change is None or facts.model is None:
            return
        if anchor is None and is_accepted:
            anchors[item.site] = SiteAnchor.start(facts.change, facts.model)
        approach = round_facts.approach(part, facts)
        if anchor is None or approach is None:
            return
        retreat = min(self.retreat(item, part, round_facts), self.max_retreat)
        if is_accepted:
            anchors[item.site] = anchor.add(facts.change, facts.model, approach, retreat)
        else:
            is_retreat = retreat >= self.max_retreat
            anchors[item.site] = anchor.refuse(retreat, is_retreat=is_retreat)
            if is_retreat:
                retreats = self.memory.retreats
                retreats[item.site] = retreats.get(item.site, 0) + 1
