"""The guard: leaves out updates that no honest site sends, and remembers who sent them.

Every update passes `examine` when it arrives, which needs no other update:

    put aside   a site that was left out `strikes` times stays out until a person readmits it
    absurd      a number beyond MAX_VALUE, a counter beyond MAX_COUNT
    clip        under `privacy`: a change larger than clip plus what the noise can add
    size        another number of images than in the site's first round
    repeated    the bytes of an update of an earlier round

`judge` compares with the other sites of the round, so it waits until all have answered. Updates
that are certainly fine (`is_usual`) do not wait: a norm within `norm_factor` times the median of
the last rounds is accepted by `judge`, whatever the others send.

    norm        the change is larger than norm_factor times the larger one of two medians: of the
                other sites in this round, and of the last rounds
    share       more than max_share of all images
    copy        the bytes of another site's update in this round

The direction of a change is not judged: honest sites with different classes or labels pull in
opposite directions (docs/robustness.md has the measurements).

The guard's memory is a part of the checkpoint, so that a run that is resumed judges as before.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedgsca.config import Config
from fedgsca.errors import UpdateError
from fedgsca.wire import Arrays, Update

MAX_VALUE = 1e8  # no weight of a usable network is larger
MAX_COUNT = 10**9  # steps of a BatchNorm counter in one round
_LEVELS = 5  # rounds whose median norm is remembered
_DIGEST_ROUNDS = 50  # rounds whose updates are recognised when they are sent again
_DIGEST_SIZE = 16
_NORM_SITES = 3  # that train in a round, for a comparison of their changes
_SHARE_SITES = 3  # with fewer sites, one may well have almost all images
_SIZE_SPREAD = 100  # honest sites are not more than this many times larger than the median
_DEVIATIONS = 8.0  # of the norm of the noise, beyond which nobody draws it
_ROUNDING = 1e-4
_FIX = 'look at the data and the software of the site; the page "Lying sites" explains the check'


@dataclass(frozen=True)
class UpdateFacts:
    """What is remembered of an update while its round lasts."""

    site: str
    num_samples: int
    norm: float  # L2 norm of the change
    digest: bytes


@dataclass
class GuardMemory:
    """What the guard knows from earlier rounds. Sites are in the order of `names`."""

    names: tuple[str, ...]
    levels: list[float] = field(default_factory=list)
    # images in the first accepted update; -1 before it
    sizes: dict[str, int] = field(default_factory=dict)
    strikes: dict[str, int] = field(default_factory=dict)
    digests: dict[int, list[bytes]] = field(default_factory=dict)  # round -> accepted updates

    def to_arrays(self) -> dict[str, np.ndarray]:
        """As arrays for a checkpoint."""
        arrays: dict[str, np.ndarray] = {
            "levels": np.array(self.levels, dtype=np.float64),
            "sizes": np.array([self.sizes.get(name, -1) for name in self.names], dtype=np.int64),
            "strikes": np.array([self.strikes.get(name, 0) for name in self.names], dtype=np.int64),
        }
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
        memory.levels = [float(level) for level in arrays["levels"]]
        for name, size, strikes in zip(names, arrays["sizes"], arrays["strikes"], strict=True):
            if size >= 0:
                memory.sizes[name] = int(size)
            if strikes > 0:
                memory.strikes[name] = int(strikes)
        for key, content in sorted(arrays.items()):
            group, _, number = key.partition("/")
            if group == "digests":
                memory.digests[int(number)] = _split_digests(content.tobytes())
        return memory


def _split_digests(content: bytes) -> list[bytes]:
    starts = range(0, len(content), _DIGEST_SIZE)
    return [content[start : start + _DIGEST_SIZE] for start in starts]


class UpdateGuard:
    """The guard of one run."""

    def __init__(
        self, config: Config, memory: GuardMemory, *, first_round_spread: float = 1.0
    ) -> None:
        """`first_round_spread` is what the method declares."""
        self.config = config
        self.first_round_spread = first_round_spread
        self.settings = config.aggregation
        self.memory = memory

    # ---- who takes part ----

    def sites_put_aside(self) -> list[str]:
        """Sites that take part again only when a person says so."""
        if not self.settings.guard:
            return []
        limit = self.settings.strikes
        return [name for name, strikes in self.memory.strikes.items() if strikes >= limit]

    def readmit(self, sites: Collection[str]) -> None:
        """Forget why these sites were left out, and the sizes that they claimed."""
        for site in sites:
            self.memory.strikes.pop(site, None)
            self.memory.sizes.pop(site, None)

    # ---- an update on its own ----

    def examine(self, update: Update, reference: Arrays) -> UpdateFacts:
        """The facts about an update. Raises UpdateError if it is not usable on its own."""
        if not self.settings.guard:
            norm = change_norm(update.weights, reference)
            return UpdateFacts(update.site, update.num_samples, norm, b"")
        if update.site in self.sites_put_aside():
            raise UpdateError(
                "update.site-put-aside",
                f"it was put aside after {self.settings.strikes} refused updates",
                fix="when the cause is fixed, run `fedgsca readmit RUN SITE`",
            )
        _check_magnitude(update, reference)
        norm = change_norm(update.weights, reference)
        self._check_clip(norm, reference)
        self._check_size(update)
        digest = _digest(update.weights) if norm > 0.0 else b""
        self._check_repeated(digest)
        return UpdateFacts(update.site, update.num_samples, norm, digest)

    def _check_clip(self, norm: float, reference: Arrays) -> None:
        """Under `privacy`, every site clips: a larger change was not made by this software."""
        privacy = self.config.privacy
        if privacy is None:
            return
        count = sum(value.size for value in reference.values() if value.dtype.kind == "f")
        noise_norm = privacy.noise * (math.sqrt(count) + _DEVIATIONS) if privacy.noise else 0.0
        rounding = _ROUNDING * (1.0 + _norm_of(reference))
        limit = privacy.clip * (1.0 + noise_norm) * (1.0 + _ROUNDING) + rounding
        if norm > limit:
            raise UpdateError(
                "update.not-clipped",
                f"its change has the norm {norm:.4g}, but with privacy.clip = {privacy.clip:g} "
                f"at most {limit:.4g} is possible: the site does not clip",
                fix=_FIX,
            )

    def _check_size(self, update: Update) -> None:
        size = self.memory.sizes.get(update.site, update.num_samples)
        if update.num_samples != size:
            raise UpdateError(
                "update.size-changed",
                f"it claims {update.num_samples:,} images, but {size:,} in its first round",
                fix=_FIX,
            )

    def _check_repeated(self, digest: bytes) -> None:
        """A round starts from another model and other random draws: no update occurs twice."""
        if not digest:  # an unchanged model: a site that does not train in this round
            return
        for round_index, digests in self.memory.digests.items():
            if digest in digests:
                raise UpdateError(
                    "update.repeated",
                    f"it is the same as an update of round {round_index + 1}",
                    fix=_FIX,
                )

    # ---- an update among the others ----

    def level(self) -> float | None:
        """The usual norm of a change: the median of the last rounds; None in the first round."""
        return float(np.median(self.memory.levels)) if self.memory.levels else None

    def is_usual(self, facts: UpdateFacts, round_facts: Sequence[UpdateFacts]) -> bool:
        """Whether `judge` accepts the update, whatever the sites send that have not answered."""
        if not self.settings.guard:
            return True
        level = self.level()
        if level is None or facts.site not in self.memory.sizes:
            return False
        if facts.digest and any(facts.digest == item.digest for item in round_facts):
            return False
        return facts.norm <= self.settings.norm_factor * level

    def judge(self, facts: UpdateFacts, round_facts: Sequence[UpdateFacts]) -> None:
        """Raises UpdateError if the update is not usable beside those of the other sites.

        `round_facts` are all other updates of the round that passed `examine`.
        """
        if not self.settings.guard:
            return
        self._check_norm(facts, [item.norm for item in round_facts])
        self._check_share(facts, [item.num_samples for item in round_facts])
        self._check_copy(facts, round_facts)

    def _check_norm(self, facts: UpdateFacts, norms: Sequence[float]) -> None:
        nonzero_norms = sorted(norm for norm in norms if norm > 0.0)
        factor = self.settings.norm_factor
        level = self.level()
        if level is None:
            factor *= self.first_round_spread
        usual_norm = level or 0.0
        # of two sites that differ, nobody knows which one lies
        if len(nonzero_norms) + 1 >= _NORM_SITES:
            # of two values in the middle the larger one: a tiny change must not expel the others
            usual_norm = max(usual_norm, nonzero_norms[len(nonzero_norms) // 2])
        if usual_norm == 0.0:
            return
        if facts.norm > factor * usual_norm:
            raise UpdateError(
                "update.change-too-large",
                f"its change has the norm {facts.norm:.4g}; usual is {usual_norm:.4g}, and more "
                f"than {factor:g} times as much is not accepted",
                fix=_FIX,
            )

    def _check_share(self, facts: UpdateFacts, sizes: Sequence[int]) -> None:
        if len(sizes) + 1 < _SHARE_SITES or facts.site in self.memory.sizes:
            return
        # several liars must not hide behind each other's claims
        limit = _SIZE_SPREAD * sorted(sizes)[len(sizes) // 2]
        total = facts.num_samples + sum(min(size, limit) for size in sizes)
        if facts.num_samples > self.settings.max_share * total:
            raise UpdateError(
                "update.share-too-large",
                f"it claims {facts.num_samples:,} of {total:,} images; the largest share "
                f"allowed is {self.settings.max_share:g}",
                fix="if it has so many images, raise aggregation.max_share",
            )

    def _check_copy(self, facts: UpdateFacts, round_facts: Sequence[UpdateFacts]) -> None:
        for item in round_facts:
            is_copy = bool(facts.digest) and facts.digest == item.digest
            if is_copy and item.site < facts.site:
                raise UpdateError(
                    "update.copy",
                    f"it is the same as the update of {item.site} in this round",
                    fix=_FIX,
                )

    # ---- the end of a round ----

    def remember(
        self,
        round_index: int,
        facts: Sequence[UpdateFacts],
        accepted_sites: Collection[str],
        strikes: Collection[str],
    ) -> None:
        """Add a round: all facts, the sites whose updates were used, and those to blame."""
        memory = self.memory
        norms = [item.norm for item in facts if item.norm > 0.0]
        if len(norms) >= _NORM_SITES:
            memory.levels = [*memory.levels, lower_median(norms)][-_LEVELS:]
        usable_facts = [item for item in facts if item.site in accepted_sites]
        for item in usable_facts:
            memory.sizes.setdefault(item.site, item.num_samples)
        digests = [item.digest for item in usable_facts if item.digest]
        if digests:
            memory.digests[round_index] = digests
        for old_round in sorted(memory.digests)[:-_DIGEST_ROUNDS]:
            del memory.digests[old_round]
        for site in strikes:
            memory.strikes[site] = memory.strikes.get(site, 0) + 1


def is_blamed(error: UpdateError) -> bool:
    """Whether a refusal counts towards `strikes`: only what no accident explains.

    Of two equal updates nobody knows the original, and a site that is put aside has its strikes.
    """
    return error.code in {
        "update.absurd-number",
        "update.not-clipped",
        "update.size-changed",
        "update.repeated",
        "update.change-too-large",
        "update.share-too-large",
    }


def lower_median(values: Sequence[float]) -> float:
    """The median; of two values in the middle, the smaller one, which a liar cannot raise."""
    return float(sorted(values)[(len(values) - 1) // 2])


def change_norm(weights: Arrays, reference: Arrays) -> float:
    """L2 norm of a change over all floating-point arrays; infinite if it is too large to square."""
    squares = []
    for name, value in reference.items():
        if value.dtype.kind == "f":
            change = np.subtract(weights[name], value, dtype=np.float64).ravel()
            squares.append(float(np.vdot(change, change)))
    return math.sqrt(math.fsum(squares))


def _norm_of(arrays: Arrays) -> float:
    return math.sqrt(
        math.fsum(
            float(np.square(value, dtype=np.float64).sum())
            for value in arrays.values()
            if value.dtype.kind == "f"
        )
    )


def absurd_array(weights: Arrays) -> str | None:
    """The first array with numbers that are not finite or beyond MAX_VALUE, if there is one."""
    for name, value in weights.items():
        if value.dtype.kind == "f" and value.size and not np.abs(value).max() <= MAX_VALUE:
            return name
    return None


def _check_magnitude(update: Update, reference: Arrays) -> None:
    name = absurd_array(update.weights)
    if name is not None:
        largest = float(np.abs(update.weights[name]).max())
        raise UpdateError(
            "update.absurd-number",
            f"{name} has numbers up to {largest:.3g}, beyond {MAX_VALUE:g}",
            fix=_FIX,
        )
    for name, value in update.weights.items():
        if name.endswith("running_var") and (value < 0).any():
            raise UpdateError(
                "update.absurd-number",
                f"{name} is a variance and has negative numbers",
                fix=_FIX,
            )
        if value.dtype.kind in "iu" and value.size:
            steps = value.astype(np.float64) - reference[name].astype(np.float64)
            if np.abs(steps).max() > MAX_COUNT:
                raise UpdateError(
                    "update.absurd-number",
                    f"the counter {name} moved by {np.abs(steps).max():.3g}",
                    fix=_FIX,
                )


def _digest(weights: Arrays) -> bytes:
    """Of the bytes of a model."""
    sha = hashlib.blake2b(digest_size=_DIGEST_SIZE)
    for name in sorted(weights):
        if weights[name].dtype.kind == "f":
            sha.update(np.ascontiguousarray(weights[name]).data)
    return sha.digest()
