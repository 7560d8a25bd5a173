"""The guard: leaves out updates that no honest site sends, and remembers who sent them.

Every update passes `examine` when it arrives, which needs no other update:

    put aside   a site that was left out `strikes` times stays out until a person readmits it
    absurd      a number beyond MAX_VALUE, a counter beyond MAX_COUNT
    counts      sums that are larger than the site's number of images allows
    clip        under `privacy`: a change larger than clip plus what the noise can add
    size        another number of images than in the site's first round
    repeated    the bytes of an update of an earlier round

`judge` compares with the other sites of the round, so it waits until all have answered. Updates
that are certainly fine (`is_usual`) do not wait: what earlier rounds and the update itself allow is
accepted by `judge`, whatever the others send.

    norm        the change is larger than norm_factor times the usual one (PartMemory.usual_norm);
                from scale_factor times on it is used with the usual norm
    steady      the changes of all rounds are larger than steady_factor times the others': it is
                used with their norm
    trust       a site of which an update was refused is used with at most the norm of the others
    mirrored    the model points against the one that was sent out, and those of others do not
    reversed    the changes of all rounds push the model further wherever it goes, and those of
                others do not (robust/motion.py)
    retreat     the site moves away from the models that it sent before, and others do not
                (robust/anchor.py): it begins to send its change reversed
    share       more than max_share of all images
    copy        the bytes of another site's update in this round

The weights are one part of an update; the extras of which the server takes the mean, such as
evidence heads, are another one. Norm, mirrored, reversed and retreat are judged for each part.

Whether a change points in the direction of the others is not judged: honest sites with different
classes or labels pull in opposite directions (docs/robustness.md has the measurements).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fedgsca.aggregate import is_buffer
from fedgsca.config import Config
from fedgsca.engine.guard_memory import EXTRAS, MODEL, GuardMemory, PartMemory
from fedgsca.engine.update_facts import (
    COMPARABLE_SITES,
    MIN_RESEMBLANCE,
    PartFacts,
    RoundFacts,
    Scaling,
    UpdateFacts,
)
from fedgsca.errors import UpdateError
from fedgsca.robust.anchor import SiteAnchor
from fedgsca.robust.motion import SiteMotion, Sketcher
from fedgsca.wire import Arrays, Extra, Payload, Update

MAX_VALUE = 1e8  # no weight of a usable network is larger
MAX_COUNT = 10**9  # steps of a BatchNorm counter in one round
_GAP = 0.3  # by which cosine or response must differ from the median of the other sites
# Rounds of a site before its response or its excess says something. A few images make a few steps,
# which overshoot: a round of such a site says less.
_COMPARABLE_ROUNDS = 2
_SMALL_SITE_ROUNDS = 4
SMALL_SITE = 100  # images
_SMALL_SITE_SLACK = 0.2  # on max_response
# on max_response: heads are trained towards judgements of the labels, which a refresh replaces
_EXTRAS_SLACK = 0.2
# above this cosine with the model that was sent out, an update only scales that model: weight decay
# does so at all sites alike when no sample has a loss left
ONLY_SCALED = 1.0 - 1e-6
_ACCIDENTS = 2  # retreats in a row that may happen to an honest site
_SHARE_SITES = 3  # with fewer sites, one may well have almost all images
_SIZE_SPREAD = 100  # honest sites are not more than this many times larger than the median
_DIGEST_SIZE = 16
_DEVIATIONS = 8.0  # of the norm of the noise, beyond which nobody draws it
_ROUNDING = 1e-4
_PART_NAMES = {MODEL: "", EXTRAS: " of the extras that are averaged"}
REVERSAL_CODE = "update.reversed-changes"
_FIX = 'look at the data and the software of the site; the page "Lying sites" explains the check'


def comparable_rounds(num_samples: int) -> int:
    """After how many rounds what a site sent over its rounds is judged."""
    return _SMALL_SITE_ROUNDS if num_samples < SMALL_SITE else _COMPARABLE_ROUNDS


def averaged_extras(uploads: Mapping[str, Extra], extras: Arrays) -> list[str]:
    """The names of extras of which the server takes the mean."""
    return [name for name in sorted(extras) if name in uploads and uploads[name].vote == "mean"]


def received_arrays(payload: Payload, part: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """What the coordinator sent under the names of `arrays`; zeros for extras it did not send."""
    source = payload.weights if part == MODEL else payload.extras
    reference = {}
    for name, value in arrays.items():
        reference[name] = np.asarray(source[name]) if name in source else np.zeros_like(value)
    return reference


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
        self.first_round_spread = first_round_spread
        self.settings = config.aggregation
        self.max_response = min(1.0, self.settings.max_response + response_slack)
        self.max_retreat = self.settings.max_retreat + retreat_slack
        self.memory = memory
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
            self._follow_rate(payload.round)

    def _follow_rate(self, round_index: int) -> None:
        """On frozen features, changes are in proportion to the learning rate.

        The statistics of BatchNorm in a network that is trained completely are not.
        """
        if self.config.model.frozen:
            # a late update may have been trained with the rate of an earlier round
            first_round = max(0, round_index - self.config.federation.staleness)
            self.memory.parts[MODEL].use_rate(self.config.train.lr_at(first_round))

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
        return self._sketcher.sketch(_trained(arrays))

    # ---- who takes part ----

    def sites_put_aside(self) -> list[str]:
        """Sites that take part again only when a person says so."""
        return [site for site in self.memory.strikes if self.is_put_aside(site)]

    def is_put_aside(self, site: str) -> bool:
        """Whether the updates of a site are left out until a person readmits it."""
        return self.settings.guard and self.memory.strikes.get(site, 0) >= self.settings.strikes

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
        if self.is_put_aside(update.site):
            raise UpdateError(
                "update.site-put-aside",
                f"it was put aside after {self.settings.strikes} refused updates",
                fix="when the cause is fixed, run `fedgsca readmit RUN SITE`",
            )
        _check_magnitude(update, reference)
        _check_counts(update, self.uploads)
        norm = change_norm(update.weights, reference)
        self._check_clip(norm, reference)
        self._check_size(update)
        digest = _digest(update.weights) if norm > 0.0 else b""
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
        resemblance = _resemblance(arrays, reference)
        step = float(np.linalg.norm(change))
        anchor = self.memory.parts[part].anchors.get(update.site)
        pull = None if anchor is None else anchor.pull(change, model)
        return PartFacts(norm, change, model, resemblance, response, step=step, pull=pull)

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

    def check_declaration(self, update: Update, declared_samples: int) -> None:
        """A site trains on at most the images that it had when it connected."""
        if self.settings.guard and update.num_samples > declared_samples:
            raise UpdateError(
                "update.more-than-declared",
                f"it claims {update.num_samples:,} images, but {declared_samples:,} when it "
                "connected",
                fix=_FIX,
            )

    def _check_repeated(self, digest: bytes) -> None:
        """A round starts from another model and other random draws: no update occurs twice."""
        if not digest:  # an unchanged model: a site that does not train in this round
            return
        round_index = self.memory.round_of(digest)
        if round_index is not None:
            raise UpdateError(
                "update.repeated",
                f"it is the same as an update of round {round_index + 1}",
                fix=_FIX,
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
        for part, part_facts in facts.parts.items():
            limit = self._response_limit(facts, part)
            if part_facts.points_away(limit) or self._is_bounded(facts, part):
                return False
            # other sites only make the step of this one, and so the evidence, smaller
            if part_facts.pull is not None and part_facts.pull.product < 0.0:
                approach = part_facts.pull.approach()
                if self._evidence(facts.site, part, approach, 0.0) > self.max_retreat:
                    return False
            usual_norm = self.memory.parts[part].usual_norm(facts.site)
            if usual_norm is None or part_facts.norm > self.settings.scale_factor * usual_norm:
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
            limit = self._check_norm(facts, part, round_facts)
            is_offence = is_offence or part_facts.norm > limit
            if part_facts.norm > limit or self._is_bounded(facts, part):
                factors[part] = self._factor(facts, part, round_facts)
            self._check_direction(facts, part, round_facts)
            self._check_retreat(facts, part, round_facts)
        self._check_share(facts, round_facts)
        self._check_copy(facts, round_facts)
        smaller_factors = {part: factor for part, factor in factors.items() if factor < 1.0}
        return Scaling(smaller_factors, is_offence)

    def _check_norm(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> float:
        """The largest norm that is used as it is; infinite if nothing is known."""
        usual_norm, spread = self._usual(facts, part, round_facts)
        if usual_norm == 0.0:
            return math.inf
        norm = facts.parts[part].norm
        factor = spread * self.settings.norm_factor
        if norm > factor * usual_norm:
            raise UpdateError(
                "update.change-too-large",
                f"its change{_PART_NAMES[part]} has the norm {norm:.4g}; usual is "
                f"{usual_norm:.4g}, and more than {factor:g} times as much is not accepted",
                fix=_FIX,
            )
        return spread * self.settings.scale_factor * usual_norm

    def _factor(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> float:
        """On a change that is too large: of a site that is bounded, only the others' are usual."""
        usual_norm, _ = self._usual(facts, part, round_facts)
        if self._is_bounded(facts, part):
            usual_norm = self._other_norm(facts, part, round_facts)
        norm = facts.parts[part].norm
        return usual_norm / norm if 0.0 < usual_norm < norm else 1.0

    def _is_bounded(self, facts: UpdateFacts, part: str) -> bool:
        """Whether a site may not send larger changes than the others.

        It has a strike, or has sent larger ones in most of its rounds.
        """
        if self.memory.strikes.get(facts.site, 0) > 0:
            return True
        rounds = comparable_rounds(facts.num_samples)
        return self.memory.parts[part].excess(facts.site, rounds) > self.settings.steady_factor

    @staticmethod
    def _other_norm(facts: UpdateFacts, part: str, round_facts: RoundFacts) -> float:
        """The median norm of the other sites (0: too few), for a site of this size."""
        other_norm = round_facts.usual_norm(part, facts.parts[part].sent_norm)
        return other_norm * round_facts.size_factor(facts.num_samples)

    def norm_ratio(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> float:
        """The norm as a multiple of the usual one."""
        usual_norm, _ = self._usual(facts, part, round_facts)
        return facts.parts[part].norm / usual_norm if usual_norm > 0.0 else 0.0

    def _usual(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> tuple[float, float]:
        """The usual norm for a site (0: unknown), and how much wider the limits are."""
        other_norm = self._other_norm(facts, part, round_facts)
        memory = self.memory.parts[part]
        usual_norm = memory.usual_norm(facts.site, other_norm)
        if usual_norm is None:
            return other_norm, self.first_round_spread
        if other_norm == 0.0 and memory.rate:
            # nobody to compare with: as before the learning rate fell
            return usual_norm * self.config.train.lr / memory.rate, 1.0
        return usual_norm, 1.0

    def _check_direction(self, facts: UpdateFacts, part: str, round_facts: RoundFacts) -> None:
        """Only the exception is refused: a stage or a liar may turn the honest sites, too."""
        site_facts = facts.parts[part]
        resemblance = site_facts.resemblance
        gap = round_facts.resemblance_gap(part, resemblance)
        if resemblance is not None and resemblance < MIN_RESEMBLANCE and gap > _GAP:
            raise UpdateError(
                "update.mirrored-model",
                f"its model{_PART_NAMES[part]} points against the one it received: their cosine is "
                f"{resemblance:.2f}, and training keeps it positive",
                fix=_FIX,
            )
        limit = self._response_limit(facts, part)
        gap = round_facts.response_gap(part, site_facts.response)
        if site_facts.response is not None and site_facts.response > limit and gap > _GAP:
            rounds = self.memory.parts[part].motions[facts.site].count + 1
            raise UpdateError(
                "update.reversed-changes",
                f"its changes{_PART_NAMES[part]} push the model further wherever it goes: over "
                f"{rounds} rounds their correlation with the model is {site_facts.response:+.2f}; "
                f"training makes it negative, and more than {limit:g} is not accepted",
                fix=_FIX,
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
            f"its changes{_PART_NAMES[part]} lead away from the models that it sent before: "
            f"added up, {retreat:.2f} times a usual step; training leads back to them, and "
            f"more than {self.max_retreat:g} is not accepted"
        )
        anchor = self.memory.parts[part].anchors[facts.site]
        if anchor.num_refusals >= _ACCIDENTS:
            raise UpdateError("update.continued-retreat", problem, fix=_FIX)
        raise UpdateError("update.retreat", problem, fix=_FIX)

    def _response_limit(self, facts: UpdateFacts, part: str) -> float:
        slack = _SMALL_SITE_SLACK if facts.num_samples < SMALL_SITE else 0.0
        if part == EXTRAS:
            slack += _EXTRAS_SLACK
        return min(1.0, self.max_response + slack)

    def _check_share(self, facts: UpdateFacts, round_facts: RoundFacts) -> None:
        size, sizes = facts.num_samples, round_facts.sizes
        if sizes.count(size) + 1 < _SHARE_SITES or facts.site in self.memory.sizes:
            return
        # several liars must not hide behind each other's claims
        limit = _SIZE_SPREAD * sizes.upper_median(size)
        total = size + int(sizes.capped_sum(size, limit))
        if size > self.settings.max_share * total:
            raise UpdateError(
                "update.share-too-large",
                f"it claims {size:,} of {total:,} images; the largest share "
                f"allowed is {self.settings.max_share:g}",
                fix="if it has so many images, raise aggregation.max_share",
            )

    def _check_copy(self, facts: UpdateFacts, round_facts: RoundFacts) -> None:
        resemblance = facts.parts[MODEL].resemblance
        if resemblance is not None and resemblance > ONLY_SCALED:
            return
        site = round_facts.first_site(facts.digest)
        if site is not None and site < facts.site:
            raise UpdateError(
                "update.copy",
                f"it is the same as the update of {site} in this round",
                fix=_FIX,
            )

    # ---- the end of a round ----

    def remember(
        self,
        round_index: int,
        facts: Sequence[UpdateFacts],
        accepted_sites: Collection[str],
        strikes: Collection[str],
        reversed_sites: Collection[str] = (),
    ) -> None:
        """Add a round: all facts, the sites whose updates were used, and those to blame.

        The changes of sites that were refused as reversed are remembered, too: otherwise every
        refusal would improve what is known about the site.
        """
        memory = self.memory
        round_facts = RoundFacts(facts)
        moving_sites = {*accepted_sites, *reversed_sites}
        usable_facts = [item for item in facts if item.site in accepted_sites]
        for part, part_memory in memory.parts.items():
            norms = []
            for item in facts:
                if part in item.parts and item.parts[part].norm > 0.0:
                    norms.append(item.parts[part].norm)
            if len(norms) >= COMPARABLE_SITES:
                part_memory.add_level(lower_median(norms))
            for item in facts:
                if part in item.parts:
                    self._remember_excess(part, item, round_facts)
                if part in item.parts and item.site in accepted_sites:
                    self._remember_norm(part_memory, item.site, item.parts[part])
                if part in item.parts and item.site in moving_sites:
                    self._remember_motion(part_memory, item.site, item.parts[part])
                if part in item.parts:
                    is_accepted = item.site in accepted_sites
                    self._remember_anchor(part, item, round_facts, is_accepted=is_accepted)
        for item in usable_facts:
            memory.sizes.setdefault(item.site, item.num_samples)
            memory.first_rounds.setdefault(item.site, round_index)
        memory.add_digests(round_index, [item.digest for item in usable_facts if item.digest])
        for site in [*strikes, *self._repeatedly_scaled(facts)]:
            memory.strikes[site] = memory.strikes.get(site, 0) + 1
        for item in facts:
            if item.is_exaggerated:
                memory.scalings[item.site] = memory.scalings.get(item.site, 0) + 1

    def _repeatedly_scaled(self, facts: Sequence[UpdateFacts]) -> list[str]:
        """Sites whose change was too large again: once may happen, more often is an offence."""
        sites = [item.site for item in facts if item.is_exaggerated]
        return [site for site in sites if site in self.memory.scalings]

    def _remember_excess(self, part: str, facts: UpdateFacts, round_facts: RoundFacts) -> None:
        norm = facts.parts[part].sent_norm
        other_norm = self._other_norm(facts, part, round_facts)
        if norm > 0.0 and other_norm > 0.0:
            self.memory.parts[part].add_excess(facts.site, norm, other_norm)

    @staticmethod
    def _remember_norm(memory: PartMemory, site: str, facts: PartFacts) -> None:
        if facts.norm > 0.0:
            memory.add_norm(site, facts.norm)

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
        "update.repeated",
        "update.mirrored-model",
        "update.reversed-changes",
        "update.continued-retreat",
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


def _trained(arrays: Arrays) -> dict[str, np.ndarray]:
    """The parameters without buffers and counters."""
    names = [name for name, value in arrays.items() if value.dtype.kind == "f"]
    return {name: arrays[name] for name in names if not is_buffer(name)}


def _resemblance(arrays: Arrays, reference: Arrays) -> float | None:
    """The cosine of the trained parameters that were sent with those that were received."""
    product = square = reference_square = 0.0
    for name, value in _trained(reference).items():
        a = np.asarray(arrays[name], dtype=np.float64).ravel()
        b = np.asarray(value, dtype=np.float64).ravel()
        product += float(a @ b)
        square += float(a @ a)
        reference_square += float(b @ b)
    if square == 0.0 or reference_square == 0.0:
        return None
    return product / math.sqrt(square) / math.sqrt(reference_square)


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


def _check_counts(update: Update, uploads: Mapping[str, Extra]) -> None:
    """Sums over images must fit the number of images."""
    for name, value in update.extras.items():
        limits = uploads[name].per_image if name in uploads else None
        if limits is None:
            continue
        sums = np.nansum(np.atleast_1d(value), axis=-1)
        low, high = (limit * update.num_samples for limit in limits)
        tolerance = _ROUNDING * max(abs(low), abs(high), 1.0)
        if sums.size and (sums.min() < low - tolerance or sums.max() > high + tolerance):
            raise UpdateError(
                "update.false-count",
                f"{name} adds up to {sums.min():.4g} to {sums.max():.4g}, which is not possible "
                f"with {update.num_samples:,} images",
                fix=_FIX,
            )


def _digest(weights: Arrays) -> bytes:
    """Of the bytes of a model."""
    sha = hashlib.blake2b(digest_size=_DIGEST_SIZE)
    for name in sorted(weights):
        if weights[name].dtype.kind == "f":
            sha.update(np.ascontiguousarray(weights[name]).data)
    return sha.digest()
