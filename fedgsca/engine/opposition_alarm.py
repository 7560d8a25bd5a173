"""The alarm when a few sites lead the model against all others (robust/opposition.py).

Nothing is refused: the site may be right, and a person has to look. Until then it moves the model
at most as much as another site (`aggregation.opposed_sites`, norm_limits.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedgsca.config import AggregationConfig
from fedgsca.engine.checkpoint import KEEP
from fedgsca.engine.guard_memory import EXTRAS, MODEL, GuardMemory
from fedgsca.engine.update_facts import UpdateFacts, comparable_rounds
from fedgsca.robust.opposition import Balance, Streak, extend_streaks, weigh_sites
from fedgsca.support.text import join_words

_ALARM_ROUNDS = 2  # in a row: one round proves little
_SILENT_ROUNDS = 10  # after an alarm, before the same site is reported again

_PART_NAMES = {MODEL: "the model", EXTRAS: "the evidence heads, or other models beside it,"}


class OppositionAlarm:
    """Of one run."""

    def __init__(self, settings: AggregationConfig, memory: GuardMemory) -> None:
        self.settings = settings
        self.memory = memory
        self.balance = Balance()  # of the newest round
        self.part = MODEL  # that it is about
        self.messages: dict[str, str] = {}  # site -> what to tell people after the newest round

    def remember(self, round_index: int, facts: Sequence[UpdateFacts]) -> None:
        """Add a round: the facts about the updates that were used."""
        self.messages = {}
        sizes = {item.site: item.num_samples for item in facts}
        changes = self._change_sums(facts, MODEL)
        self.part, self.balance = MODEL, weigh_sites(changes, sizes)
        if not self.balance.is_alarming:
            head_changes = self._change_sums(facts, EXTRAS)
            head_balance = weigh_sites(head_changes, sizes)
            if head_balance.is_alarming:
                changes = head_changes
                self.part, self.balance = EXTRAS, head_balance
        memory = self.memory
        memory.streaks = extend_streaks(memory.streaks, self.balance, list(changes), round_index)
        for site in self.balance.opponents if self.balance.is_alarming else ():
            streak = memory.streaks[site]
            is_due = round_index - memory.alarms.get(site, -_SILENT_ROUNDS) >= _SILENT_ROUNDS
            if streak.count >= _ALARM_ROUNDS and is_due:
                self.messages[site] = self._describe(site, sizes[site], streak, round_index)
                memory.alarms[site] = round_index

    def _change_sums(self, facts: Sequence[UpdateFacts], part: str) -> dict[str, np.ndarray]:
        """Site -> the sum of its changes, for sites with enough rounds to be compared."""
        changes = {}
        for item in facts:
            motion = self.memory.parts[part].motions.get(item.site)
            is_trained = part in item.parts and item.parts[part].change is not None
            if motion is None or not is_trained:
                continue
            if motion.count >= comparable_rounds(item.num_samples):
                changes[item.site] = motion.change_sum
        return changes

    def _describe(self, site: str, num_samples: int, streak: Streak, round_index: int) -> str:
        """What happens, since when, and what to do. `memory.alarms` has the earlier alarms only."""
        start = streak.first_round + 1
        companions = [name for name in self.balance.opponents if name != site]
        subject = f"it and {join_words(companions)} lead" if companions else "it leads"
        owner = "their" if companions else "its"
        verb, limit = "count", ""
        is_mean = self.settings.rule in ("mean", "norm-bound")  # others limit every site anyway
        if self.settings.opposed_sites == "limit" and is_mean:
            limit = " From now on it moves the model at most as much as another site."
            if site in self.memory.alarms:  # the weight is that of what the sites sent
                verb = "would count"
                limit = " It moves the model at most as much as another site."
        advice = "start a new run with `--set aggregation.rule=multi-krum`"
        if streak.first_round == 0 or round_index - streak.first_round <= KEEP - 2:
            advice = (
                f"run `fedgsca resume RUN --from {start}` as long as that round is kept (the last"
                f" {KEEP} are), or {advice}"
            )
        return (
            f"since round {start} {subject} {_PART_NAMES[self.part]} against all other sites, who"
            f" agree with each other: {owner} changes {verb} {self.balance.weight:.1f} times as"
            f" much as theirs together.{limit} Ask whether it really has {num_samples:,} images,"
            f" and look at its labels and its software; then {advice}"
        )
