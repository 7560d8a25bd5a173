"""What the guard knows from earlier rounds. It is a part of the checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedgsca.robust.anchor import SiteAnchor
from fedgsca.robust.motion import SiteMotion
from fedgsca.robust.opposition import Streak
from fedgsca.wire import Arrays

# what is judged on its own: the weights, and the extras of which the server takes the mean
MODEL = "model"
EXTRAS = "extras"
PARTS = (MODEL, EXTRAS)
# smallest usual norm, as a share of the largest one so far
FLOOR = 0.3
_LEVELS = 5  # rounds whose norms are remembered
_DIGEST_ROUNDS = 50  # rounds whose updates are recognised when they are sent again
DIGEST_SIZE = 16  # bytes of the digest of an update
_EXCESS_DECAY = 0.9  # of the weight of a round with each later one
# no single round decides, neither a very large change nor a tiny one that hides others
_EXCESS_RANGE = (0.5, 4.0)


@dataclass(frozen=True)
class Excess:
    """How many times larger than the others' the changes of a site are, over its rounds.

    The geometric mean: an honest site may be far above the others in some rounds, but not in all.
    """

    count: int = 0  # rounds
    weight: float = 0.0  # sum of their weights
    log_sum: float = 0.0  # weighted sum of the logarithms

    def add(self, ratio: float) -> Excess:
        """One more round."""
        low, high = _EXCESS_RANGE
        return Excess(
            self.count + 1,
            _EXCESS_DECAY * self.weight + 1.0,
            _EXCESS_DECAY * self.log_sum + math.log(min(max(ratio, low), high)),
        )

    def mean(self) -> float:
        """The geometric mean; 1 before the first round."""
        return math.exp(self.log_sum / self.weight) if self.count else 1.0


@dataclass
class PartMemory:
    """Of one part of the updates. Norms are those of changes."""

    # median norm of each of the last rounds, and the largest one of all rounds
    levels: list[float] = field(default_factory=list)
    peak: float = 0.0
    # last norms of each site, of updates that were used
    norms: dict[str, list[float]] = field(default_factory=dict)
    motions: dict[str, SiteMotion] = field(default_factory=dict)
    anchors: dict[str, SiteAnchor] = field(default_factory=dict)
    excesses: dict[str, Excess] = field(default_factory=dict)
    # sketch of the model of the first round; None before it
    origin: np.ndarray | None = None
    # the learning rate at which changes have the norms above; None: they do not depend on it
    rate: float | None = None

    def level(self) -> float | None:
        """The usual norm: the median of the last rounds; None in the first round."""
        return float(np.median(self.levels)) if self.levels else None

    def usual_norm(self, site: str, other_norm: float = 0.0) -> float | None:
        """What is usual for this site; `other_norm` is the median of the other sites in this round.

        The smaller one of two: the largest norm that was ever usual, which a site that always
        exaggerates exceeds; and what is usual of late, also for the site itself, which one that
        begins to exaggerate exceeds. But at least FLOOR of the former: near the end of the training
        the changes of most honest sites nearly vanish, and those of the others look large beside
        them. None in the first round.
        """
        level = self.level()
        if level is None:
            return None
        own_norms = self.norms.get(site)
        own_norm = max(own_norms) if own_norms else 0.0
        return max(other_norm, FLOOR * self.peak, min(self.peak, max(level, own_norm)))

    def use_rate(self, rate: float) -> None:
        """Expect changes of this learning rate from now on: norms are in proportion to it.

        Otherwise a site that keeps the norm of its first rounds would be usual, and many times
        stronger than the others, when the learning rate has fallen.
        """
        if self.rate is not None and rate != self.rate:
            factor = rate / self.rate
            self.levels = [factor * level for level in self.levels]
            self.peak *= factor
            for site, norms in self.norms.items():
                self.norms[site] = [factor * norm for norm in norms]
        self.rate = rate

    def add_level(self, level: float) -> None:
        """Add the median norm of a round."""
        self.levels = [*self.levels, level][-_LEVELS:]
        self.peak = max(self.peak, level)

    def add_norm(self, site: str, norm: float) -> None:
        """Add an update that was used."""
        self.norms[site] = [*self.norms.get(site, []), norm][-_LEVELS:]

    def excess(self, site: str, rounds: int) -> float:
        """How many times larger than the others' the changes of a site usually are.

        1 as long as the site took part in fewer rounds.
        """
        excess = self.excesses.get(site, Excess())
        return excess.mean() if excess.count >= rounds else 1.0

    def add_excess(self, site: str, norm: float, other_norm: float) -> None:
        """Add what a site sent; `other_norm` is the median of the other sites, by its size.

        When a model fits its labels most changes nearly vanish; see `usual_norm`.
        """
        usual_norm = max(other_norm, FLOOR * self.peak)
        self.excesses[site] = self.excesses.get(site, Excess()).add(norm / usual_norm)

    def forget(self, site: str) -> None:
        """Forget everything about one site."""
        self.norms.pop(site, None)
        self.excesses.pop(site, None)
        self.motions.pop(site, None)
        self.anchors.pop(site, None)

    def to_arrays(self, part: str, names: Sequence[str]) -> dict[str, np.ndarray]:
        """As arrays for a checkpoint; sites by their position in `names`."""
        arrays = {f"{part}/levels": np.array([*self.levels, self.peak], dtype=np.float64)}
        if self.origin is not None:
            arrays[f"{part}/origin"] = self.origin
        if self.rate is not None:
            arrays[f"{part}/rate"] = np.array(self.rate)
        for position, name in enumerate(names):
            if name in self.norms:
                arrays[f"{part}/norms/{position}"] = np.array(self.norms[name])
            if name in self.excesses:
                excess = self.excesses[name]
                numbers = [float(excess.count), excess.weight, excess.log_sum]
                arrays[f"{part}/excess/{position}"] = np.array(numbers)
            for record in (self.motions.get(name), self.anchors.get(name)):
                if record is not None:
                    for key, value in record.to_arrays().items():
                        arrays[f"{part}/{key}/{position}"] = value
        return arrays

    @classmethod
    def from_arrays(cls, part: str, names: Sequence[str], arrays: Arrays) -> PartMemory:
        """The inverse of `to_arrays`."""
        memory = cls()
        *levels, peak = arrays.get(f"{part}/levels", np.zeros(1)).tolist()
        memory.levels, memory.peak = levels, peak
        memory.origin = arrays.get(f"{part}/origin")
        if f"{part}/rate" in arrays:
            memory.rate = float(arrays[f"{part}/rate"])
        for position, name in enumerate(names):
            norms = arrays.get(f"{part}/norms/{position}")
            if norms is not None:
                memory.norms[name] = norms.tolist()
            excess = arrays.get(f"{part}/excess/{position}")
            if excess is not None:
                count, weight, log_sum = excess.tolist()
                memory.excesses[name] = Excess(int(count), weight, log_sum)
            if f"{part}/sums/{position}" in arrays:
                motion = {key: arrays[f"{part}/{key}/{position}"] for key in ("sums", "numbers")}
                memory.motions[name] = SiteMotion.from_arrays(motion)
            if f"{part}/anchor/{position}" in arrays:
                anchor = {key: arrays[f"{part}/{key}/{position}"] for key in ("anchor", "way")}
                memory.anchors[name] = SiteAnchor.from_arrays(anchor)
        return memory


def _new_parts() -> dict[str, PartMemory]:
    return {part: PartMemory() for part in PARTS}


@dataclass
class GuardMemory:
    """What the guard knows from earlier rounds. Sites are in the order of `names`."""

    names: tuple[str, ...]
    parts: dict[str, PartMemory] = field(default_factory=_new_parts)
    # images in the first accepted update; -1 before it
    sizes: dict[str, int] = field(default_factory=dict)
    strikes: dict[str, int] = field(default_factory=dict)
    # how often the change of a site was scaled down
    scalings: dict[str, int] = field(default_factory=dict)
    # how often a change of a site was refused for a retreat, which may not be an offence
    retreats: dict[str, int] = field(default_factory=dict)
    # the round of the first accepted update
    first_rounds: dict[str, int] = field(default_factory=dict)
    # updates in a row that could not be read or had the wrong form
    malformed_counts: dict[str, int] = field(default_factory=dict)
    # sites that oppose the others, and the round in which this was last reported
    streaks: dict[str, Streak] = field(default_factory=dict)
    alarms: dict[str, int] = field(default_factory=dict)
    digests: dict[int, list[bytes]] = field(default_factory=dict)  # round -> accepted updates
    # the newest round with a digest: `digests` in the form in which it is looked up
    _rounds: dict[bytes, int] = field(default_factory=dict, compare=False, repr=False)

    def add_digests(self, round_index: int, digests: list[bytes]) -> None:
        """Remember the updates of a round, and forget those of very old rounds."""
        if digests:
            self.digests[round_index] = digests
        for old_round in sorted(self.digests)[:-_DIGEST_ROUNDS]:
            del self.digests[old_round]
        self._rounds.clear()

    def round_of(self, digest: bytes) -> int | None:
        """The newest round in which an update with this digest was used; None if there is none."""
        if not self._rounds:
            for round_index, digests in sorted(self.digests.items()):
                self._rounds |= dict.fromkeys(digests, round_index)
        return self._rounds.get(digest)

    def forget(self, site: str) -> None:
        """Forget everything about one site but the digests of its updates."""
        self.strikes.pop(site, None)
        self.sizes.pop(site, None)
        self.scalings.pop(site, None)
        self.retreats.pop(site, None)
        self.first_rounds.pop(site, None)
        self.malformed_counts.pop(site, None)
        self.streaks.pop(site, None)
        self.alarms.pop(site, None)
        for part in self.parts.values():
            part.forget(site)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """As arrays for a checkpoint."""
        arrays: dict[str, np.ndarray] = {
            "sizes": _numbers(self.names, self.sizes, -1),
            "strikes": _numbers(self.names, self.strikes, 0),
            "scalings": _numbers(self.names, self.scalings, 0),
            "first_rounds": _numbers(self.names, self.first_rounds, -1),
        }
        if self.retreats:
            arrays["retreats"] = _numbers(self.names, self.retreats, 0)
        if self.malformed_counts:
            arrays["malformed"] = _numbers(self.names, self.malformed_counts, 0)
        if self.alarms:
            arrays["alarms"] = _numbers(self.names, self.alarms, -1)
        if self.streaks:
            starts = {site: streak.first_round for site, streak in self.streaks.items()}
            counts = {site: streak.count for site, streak in self.streaks.items()}
            arrays["streak_starts"] = _numbers(self.names, starts, -1)
            arrays["streak_counts"] = _numbers(self.names, counts, 0)
        for part, memory in self.parts.items():
            arrays |= memory.to_arrays(part, self.names)
        for round_index, digests in self.digests.items():
            content = np.frombuffer(b"".join(digests), dtype=np.uint8)
            arrays[f"digests/{round_index}"] = content.copy()
        return arrays

    @classmethod
    def from_arrays(cls, names: Sequence[str], arrays: Arrays) -> GuardMemory:
        """The inverse of `to_arrays`; without arrays, as before the first round."""
        memory = cls(tuple(names))
        if not arrays:
            return memory
        for part in PARTS:
            memory.parts[part] = PartMemory.from_arrays(part, names, arrays)
        memory.sizes = _by_name(names, arrays["sizes"], 0)
        memory.strikes = _by_name(names, arrays["strikes"], 1)
        memory.scalings = _by_name(names, arrays["scalings"], 1)
        memory.first_rounds = _by_name(names, arrays["first_rounds"], 0)
        if "retreats" in arrays:
            memory.retreats = _by_name(names, arrays["retreats"], 1)
        if "malformed" in arrays:
            memory.malformed_counts = _by_name(names, arrays["malformed"], 1)
        if "alarms" in arrays:
            memory.alarms = _by_name(names, arrays["alarms"], 0)
        if "streak_starts" in arrays:
            counts = _by_name(names, arrays["streak_counts"], 1)
            for site, first_round in _by_name(names, arrays["streak_starts"], 0).items():
                memory.streaks[site] = Streak(first_round, counts[site])
        for key, content in sorted(arrays.items()):
            group, _, number = key.partition("/")
            if group == "digests":
                memory.digests[int(number)] = _split_digests(content.tobytes())
        return memory


def _numbers(names: Sequence[str], values: Mapping[str, int], missing: int) -> np.ndarray:
    return np.array([values.get(name, missing) for name in names], dtype=np.int64)


def _by_name(names: Sequence[str], numbers: np.ndarray, smallest: int) -> dict[str, int]:
    values = {}
    for name, number in zip(names, numbers.tolist(), strict=True):
        if number >= smallest:
            values[name] = number
    return values


def _split_digests(content: bytes) -> list[bytes]:
    starts = range(0, len(content), DIGEST_SIZE)
    return [content[start : start + DIGEST_SIZE] for start in starts]
