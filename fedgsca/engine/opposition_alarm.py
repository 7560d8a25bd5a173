"""The alarm when a few sites lead the model against all others (robust/opposition.py).

Nothing is refused: the site may be right, and a person has to look. Until then it moves the model
at most as much as another site (`aggregation.opposed_sites`, norm_limits.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from fedgsca.config import AggregationConfig
from fedgsca.engine.checkpoint import KEEP
from fedgsca.engine.guard_memory import MODEL, GuardMemory
from fedgsca.engine.update_facts import UpdateFacts, comparable_rounds
from fedgsca.robust.opposition import Balance, Streak, extend_streaks, weigh_sites
from fedgsca.support.text import join_words

_ALARM_ROUNDS = 2  # in a row: one round proves little
_SILENT_ROUNDS = 10  # after an alarm, before the same site is reported again


class OppositionAlarm:
    """Of one run."""

    def __init__(self, settings: AggregationConfig, memory: GuardMemory) -> None:
        self.settings = settings
        self.memory = memory
        self.balance = Balance()  # of the newest round
        self.messages: dict[str, str] = {}  # site -> what to tell people after the newest round

    def remember(self, round_index: int, facts: Sequence[UpdateFacts]) -> None:
        """Add a round: the facts about the updates that were used."""
        self.messages = {}
        changes, sizes = {}, {}
        for item in facts:
            motion = self.memory.parts[MODEL].motions.get(item.site)
            is_trained = MODEL in item.parts and item.parts[MODEL].change is not None
            if motion is None or not is_trained:
                continue
            if motion.count >= comparable_rounds(item.num_samples):
                changes[item.site] = motion.change_sum
                sizes[item.site] = item.num_samples
        self.balance = weigh_sites(changes, sizes)
        memory = self.memory
        memory.streaks = extend_streaks(memory.streaks, self.balance, list(changes), round_index)
        for site in self.balance.opponents if self.balance.is_alarming else ():
            streak = memory.streaks[site]
            is_due = round_index - memory.alarms.get(site, -_SILENT_ROUNDS) >= _SILENT_ROUNDS
            if streak.count >= _ALARM_ROUNDS and is_due:
                self.messages[site] = self._describe(site, sizes[site], streak, round_index)
                memory.alarms[site] = round_index

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
        advice = "start a new run with `--set aggregation.rule=median`"
        if streak.first_round == 0 or round_index - streak.first_round <= KEEP - 2:
            advice = (
                f"run `fedgsca resume RUN --from {start}` as long as that round is kept (the last"
                f" {KEEP} are), or {advice}"
            )
        return (
            f"since round {start} {subject} the model against all other sites, who agree with each"
            f" other: {owner} changes {verb} {self.balance.weight:.1f} times as much as theirs"
            f" together.{limit} Ask whether it really has {num_samples:,} images, and look at its"
            f" labels and its software; then {advice}"
        )
