"""The guard: leaves out updates that no honest site sends, and remembers who sent them.

Every update passes `examine` when it arrives, which needs no other update:

    put aside   a site that was left out `strikes` times stays out until a person readmits it
    absurd      a number beyond MAX_VALUE, a counter beyond MAX_COUNT
    counts      sums that are larger than the site's number of images allows
    clip        under `privacy`: a change larger than clip plus what the noise can add
    agreed      more images than people agreed on beforehand (image_claims.py)
    size        another number of images than in the site's first round (image_claims.py)
    repeated    the bytes of an update of an earlier round

`judge` compares with the other sites of the round, so it waits until all have answered. Updates
that are certainly fine (`is_usual`) do not wait: what earlier rounds and the update itself allow is
accepted by `judge`, whatever the others send.

    norm, steady, trust, opposed    how large changes may be (norm_limits.py)
    mirrored, reversed, retreat     where changes may lead (direction_limits.py)
    share                           more than max_share of all images (image_claims.py)
    copy                            the bytes of another site's update in this round

After a round, `remember` looks for sites that oppose all others and outweigh them
(opposition_alarm.py).

The weights are one part of an update; the extras of which the server takes the mean, such as
evidence heads, are another one. Norms and directions are judged for each part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedgsca.config import Config
from fedgsca.engine.direction_limits import DirectionLimits
from fedgsca.engine.guard_memory import EXTRAS, MODEL, GuardMemory
from fedgsca.engine.image_claims import ImageClaims
from fedgsca.engine.norm_limits import NormLimits
from fedgsca.engine.opposition_alarm import OppositionAlarm
from fedgsca.engine.update_checks import (
    FIX,
    averaged_extras,
    change_norm,
    check_clip,
    check_counts,
    check_magnitude,
    digest_of,
    received_arrays,
    resemblance_of,
    trained_arrays,
)
from fedgsca.engine.update_facts import (
    PartFacts,
    RoundFacts,
    Scaling,
    UpdateFacts,
    comparable_rounds,
)
from fedgsca.errors import UpdateError
from fedgsca.robust.motion import SiteMotion, Sketcher
from fedgsca.wire import Arrays, Extra, Payload, Update

# above this cosine with the model that was sent out, an update only scales that model: weight decay
# does so at all sites alike when no sample has a loss left
ONLY_SCALED = 1.0 - 1e-6
_ACCIDENTS = 2  # malformed updates in a row that may happen to an honest site


class UpdateGuard:
    """The guard of one run."""

    def __init__(
        self,
        config: Config,
        memory: GuardMemory,
        *,
        first_round_spread: float = 1.0,
        response_slack: float = 0.0,
        retreat_slack: float = 0.0,
    ) -> None:
        """`first_round_spread` and the slacks are what the method declares."""
        self.config = config
        self.settings = config.aggregation
        self.memory = memory
        self.norms = NormLimits(config, memory, first_round_spread)
        self.directions = DirectionLimits(config, memory, response_slack, retreat_slack)
        self.claims = ImageClaims(self.settings, memory)
        self.opposition = OppositionAlarm(self.settings, memory)
        self.payload = Payload(0, {})
        self.uploads: Mapping[str, Extra] = {}
        self._sketcher = Sketcher()
        self._models: dict[str, np.ndarray] = {}  # what was sent out, see PartFacts.model

    def start_round(self, payload: Payload, uploads: Mapping[str, Extra]) -> None:
        """Remember what is sent out; `uploads` are the declarations of the method."""
        self.payload = payload
        self.uploads = uploads
        if self.settings.guard:
            self._models = self._received_models(payload)
            self.norms.follow_rate(payload.round)

    def _received_models(self, payload: Payload) -> dict[str, np.ndarray]:
        """Sketches of the parts of a payload, relative to the first one of the run."""
        extras = {}
        for name in averaged_extras(self.uploads, payload.extras):
            extras[name] = np.asarray(payload.extras[name])
        models = {}
        for part, arrays in ((MODEL, payload.weights), (EXTRAS, extras)):
            sketch = self._sketch(arrays)
            memory = self.memory.parts[part]
            if memory.origin is None:
                memory.origin = sketch
            models[part] = sketch - memory.origin
        return models

    def _sketch(self, arrays: Arrays) -> np.ndarray:
        return self._sketcher.sketch(trained_arrays(arrays))

    # ---- who takes part ----

    def sites_put_aside(self) -> list[str]:
        """Sites that take part again only when a person says so."""
        return [site for site in self.memory.strikes if self.is_put_aside(site)]

    def is_put_aside(self, site: str) -> bool:
        """Whether the updates of a site are left out until a person readmits it."""
        return self.settings.guard and self.memory.strikes.get(site, 0) >= self.settings.strikes

    def check_participation(self, site: str) -> None:
        """A site that was put aside is left out, whatever it sends."""
        if self.is_put_aside(site):
            raise UpdateError(
                "update.site-put-aside",
                f"it was put aside after {self.settings.strikes} refused updates",
                fix="when the cause is fixed, run `fedgsca readmit RUN SITE`",
            )

    def readmit(self, sites: Collection[str]) -> None:
        """Forget these sites: why they were left out, their sizes and their changes."""
        for site in sites:
            self.memory.forget(site)

    def check_memory(self, site: str, since: int) -> None:
        """A site that begins anew after it took part would train another model.

        This is no lie, so it is checked without the guard, too. `since` is the round in which the
        site's memory begins.
        """
        first_round = self.memory.first_rounds.get(site, since)
        if since > first_round:
            raise UpdateError(
                "update.lost-memory",
                f"it takes part since round {first_round + 1}, but remembers nothing before round "
                f"{since + 1}: its state folder was lost",
                fix="restore the state folder of the site from a backup, or run `fedgsca readmit "
                "RUN SITE`, to let it begin as a new site",
            )

    def check_declaration(self, update: Update, declared_samples: int) -> None:
        """A site trains on at most the images that it had when it connected."""
        if self.settings.guard:
            self.claims.check_declaration(update, declared_samples)

    # ---- an update on its own ----

    def examine(self, update: Update, payload: Payload | None = None) -> UpdateFacts:
        """The facts about an update. Raises UpdateError if it is not usable on its own.

        `payload` is what the site answers, if it is not that of this round.
        """
        is_late = payload is not None and payload is not self.payload
        payload = self.payload if payload is None else payload
        reference = payload.weights
        if not self.settings.guard:
            norm = change_norm(update.weights, reference)
            return UpdateFacts(update.site, update.num_samples, {MODEL: PartFacts(norm)}, b"")
        self.check_participation(update.site)
        check_magnitude(update, reference)
        check_counts(update, self.uploads)
        norm = change_norm(update.weights, reference)
        check_clip(self.config, norm, reference)
        self.claims.check_update(update)
        digest = digest_of(update.weights) if norm > 0.0 else b""
        self._check_repeated(digest)
        models = self._received_models(payload) if is_late else self._models
        parts = {}
        for part, arrays in self._parts_of(update).items():
            part_reference = received_arrays(payload, part, arrays)
            parts[part] = self._part_facts(update, part, arrays, part_reference, models[part])
        return UpdateFacts(update.site, update.num_samples, parts, digest)

    def _parts_of(self, update: Update) -> dict[str, Arrays]:
        parts = {MODEL: update.weights}
        names = averaged_extras(self.uploads, update.extras)
        if names:
            parts[EXTRAS] = {name: np.asarray(update.extras[name]) for name in names}
        return parts

    def _part_facts(
        self, update: Update, part: str, arrays: Arrays, reference: Arrays, model: np.ndarray
    ) -> PartFacts:
        norm = change_norm(arrays, reference)
        if norm == 0.0:  # a site that does not train in this round
            return PartFacts(norm)
        change = self._sketch(arrays) - self._sketch(reference)
        motion = self.memory.parts[part].motions.get(update.site, SiteMotion.zero())
        motion = motion.add(change, model)
        is_known = motion.count >= comparable_rounds(update.num_samples)
        response = motion.response() if is_known else None
        resemblance = resemblance_of(arrays, reference)
        step = float(np.linalg.norm(change))
        anchor = self.memory.parts[part].anchors.get(update.site)
        pull = None if anchor is None else anchor.pull(change, model)
        return PartFacts(norm, change, model, resemblance, response, step=step, pull=pull)

    def _check_repeated(self, digest: bytes) -> None:
        """A round starts from another model and other random draws: no update occurs twice."""
        if not digest:  # an unchanged model: a site that does not train in this round
            return
        round_index = self.memory.round_of(digest)
        if round_index is not None:
            raise UpdateError(
                "update.repeated",
                f"it is the same as an update of round {round_index + 1}",
                fix=FIX,
            )

    # ---- an update among the others ----

    def level(self, part: str = MODEL) -> float | None:
        """The usual norm of a change: the median of the last rounds; None in the first round."""
        return self.memory.parts[part].level()

    def is_usual(self, facts: UpdateFacts, digests: Collection[bytes]) -> bool:
        """Whether `judge` accepts the update, whatever the sites send that have not answered.

        `digests` are those of the updates of this round that have arrived.
        """
        if not self.settings.guard:
            return True
        if facts.site not in self.memory.sizes:
            return False
        if facts.digest in digests:
            return False
        for part in facts.parts:
            if not self.directions.is_surely_within(facts, part):
                return False
            if not self.norms.is_surely_within(facts, part):
                return False
        return True

    def judge(self, facts: UpdateFacts, round_facts: RoundFacts) -> Scaling:
        """Raises UpdateError if the update is not usable beside those of the other sites.

        `round_facts` are all updates of the round that passed `examine`. Returns how to scale down
        changes that are unusually large, but not so large that they are refused.
        """
        if not self.settings.guard:
            return Scaling({})
        factors: dict[str, float] = {}
        is_offence = False
        for part, part_facts in facts.parts.items():
            limit = self.norms.check(facts, part, round_facts)
            is_offence = is_offence or part_facts.norm > limit
            if part_facts.norm > limit or self.norms.is_bounded(facts, part):
                factors[part] = self.norms.factor(facts, part, round_facts)
            self.directions.check(facts, part, round_facts)
        self.claims.check_share(facts, round_facts)
        self._check_copy(facts, round_facts)
        smaller_factors = {part: factor for part, factor in factors.items() if factor < 1.0}
        return Scaling(smaller_factors, is_offence)

    def _check_copy(self, facts: UpdateFacts, round_facts: RoundFacts) -> None:
        resemblance = facts.parts[MODEL].resemblance
        if resemblance is not None and resemblance > ONLY_SCALED:
            return
        site = round_facts.first_site(facts.digest)
        if site is not None and site < facts.site:
            raise UpdateError(
                "update.copy",
                f"it is the same as the update of {site} in this round",
                fix=FIX,
            )

    # ---- the end of a round ----

    def remember(
        self,
        round_index: int,
        facts: Sequence[UpdateFacts],
        accepted_sites: Collection[str],
        strikes: Collection[str],
        reversed_sites: Collection[str] = (),
        malformed_sites: Collection[str] = (),
    ) -> None:
        """Add a round: all facts, the sites whose updates were used, and those to blame.

        `malformed_sites` answered with something that could not be read or had the wrong form: the
        third time in a row it is an offence. One or two can be a fault of the network.

        The changes of sites that were refused as reversed are remembered, too: otherwise every
        refusal would improve what is known about the site.
        """
        memory = self.memory
        round_facts = RoundFacts(facts)
        usable_facts = [item for item in facts if item.site in accepted_sites]
        for part in memory.parts:
            part_facts = [item for item in facts if part in item.parts]
            self.norms.remember(part, part_facts, round_facts, accepted_sites)
            self.directions.remember(part, part_facts, round_facts, accepted_sites, reversed_sites)
        for item in usable_facts:
            memory.sizes.setdefault(item.site, item.num_samples)
            memory.first_rounds.setdefault(item.site, round_index)
        memory.add_digests(round_index, [item.digest for item in usable_facts if item.digest])
        if self.settings.guard:
            self.opposition.remember(round_index, usable_facts)
        repeat_offenders = [
            *self._repeatedly_scaled(facts),
            *self._count_malformed(malformed_sites, [item.site for item in facts]),
        ]
        for site in [*strikes, *repeat_offenders]:
            memory.strikes[site] = memory.strikes.get(site, 0) + 1
        for item in facts:
            if item.is_exaggerated:
                memory.scalings[item.site] = memory.scalings.get(item.site, 0) + 1

    def _count_malformed(
        self, malformed_sites: Collection[str], other_sites: Collection[str]
    ) -> list[str]:
        """Sites that sent what cannot be used once more than may happen by accident."""
        counts = self.memory.malformed_counts
        for site in other_sites:
            counts.pop(site, None)
        for site in malformed_sites:
            counts[site] = counts.get(site, 0) + 1
        return [site for site in malformed_sites if counts[site] > _ACCIDENTS]

    def _repeatedly_scaled(self, facts: Sequence[UpdateFacts]) -> list[str]:
        """Sites whose change was too large again: once may happen, more often is an offence.

        It is one offence only: the influence of the site is limited from then on, and an honest
        site among many with other classes may move so far in several rounds.
        """
        sites = [item.site for item in facts if item.is_exaggerated]
        earlier_sites = [site for site in sites if site in self.memory.scalings]
        return [site for site in earlier_sites if site not in self.memory.strikes]


def is_malformed(error: UpdateError) -> bool:
    """Whether an answer has not even the form of an update; repeated ones are an offence."""
    return error.code in {
        "update.invalid-weights",
        "update.invalid-extras",
        "update.malformed-message",
    }


def is_blamed(error: UpdateError) -> bool:
    """Whether a refusal counts towards `strikes`: only what no accident explains.

    Of two equal updates nobody knows the original, and a site that is put aside has its strikes.
    """
    return error.code in {
        "update.absurd-number",
        "update.false-count",
        "update.not-clipped",
        "update.size-changed",
        "update.more-than-declared",
        "update.more-than-agreed",
        "update.repeated",
        "update.mirrored-model",
        "update.reversed-changes",
        "update.continued-retreat",
        "update.change-too-large",
        "update.share-too-large",
    }
