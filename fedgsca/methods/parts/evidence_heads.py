"""Evidence beside any method: the federation's heads and the site alone (docs/evidence.md).

`MethodWithHeads` holds a method. What travels for the wrapped method is unchanged; the heads travel
beside it, under names that begin with "evidence.". They are trained and judge until the last of the
`renewal_rounds`, in each of which every site computes its evidence again, from the opinions since
the last one and from its own features. A site that misses such a round does so in the next round it
takes part in. Its memory is versioned by round, like that of a method, so a repeated round gives
the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedgsca.evidence import (
    MIN_USEFUL,
    NUM_HEADS,
    SITE,
    Heads,
    Judgement,
    SiteEvidence,
    assign_folds,
    draw_holdout,
    head_targets,
    judge,
    judge_alone,
    judge_labels,
    layer_normalise,
    number_contents,
    to_halves,
    train_heads,
)
from fedgsca.methods.aggregate import WeightedMean
from fedgsca.methods.base import Method, SampleMemory, ServerState, WrappedMethod
from fedgsca.methods.parts import holdout
from fedgsca.methods.parts.evidence_store import (
    NOTE_PREFIX,
    evidence_arrays,
    judgement_arrays,
    read_judgement,
)
from fedgsca.methods.site import LabelEvidence, Samples, Site
from fedgsca.methods.train import evaluate_site
from fedgsca.wire import SMALLEST_GROUP, Arrays, Extra, Payload, Update

_MEMORY = "evidence"  # part of a site's store
# earlier heads know too little; a shorter run judges from its first renewal on
FIRST_JUDGED_ROUND = 3

_HEAD_EXTRAS = {
    "evidence.weight": Extra(
        (NUM_HEADS, "E", "C"),
        "weights of the four evidence heads, each trained without a quarter of the images",
        optional=True,
        low=-1e4,
        high=1e4,
        vote="mean",
        off_under_privacy=True,
    ),
    "evidence.bias": Extra(
        (NUM_HEADS, "C"),
        "their constant terms",
        optional=True,
        low=-1e4,
        high=1e4,
        vote="mean",
        off_under_privacy=True,
    ),
}
UPLOADS: Mapping[str, Extra] = {
    **_HEAD_EXTRAS,
    **holdout.UPLOADS,
}
DOWNLOADS: Mapping[str, Extra] = _HEAD_EXTRAS


class MethodWithHeads(WrappedMethod):
    """A method with evidence heads beside it. See the text of this module."""

    prefix = "evidence."

    def __init__(
        self,
        method: Method,
        renewal_rounds: range,
        holdout_share: float = 0.0,
        *,
        keeps_heads: bool = False,
    ) -> None:
        """Evidence is computed in `renewal_rounds`, of which there is at least one.

        The method does not train on `holdout_share` of each site's samples. `keeps_heads`: the
        heads are sent to the end of the run, for sites that have never seen them.
        """
        super().__init__(method)
        self.renewal_rounds = renewal_rounds
        self.holdout_share = holdout_share
        self.keeps_heads = keeps_heads
        vars(self)["uploads"] = {**method.uploads, **UPLOADS}
        vars(self)["downloads"] = {**method.downloads, **DOWNLOADS}

    # ---- server ----

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The method's message, and the heads."""
        method_state, evidence = self.split_state(state)
        payload = self.method.broadcast(method_state, round)
        # a site that missed the last renewal judges its labels in the round after it
        if not (self._is_training(round - 1) or self.keeps_heads):
            return payload
        heads = {name: array for name, array in evidence.items() if name in DOWNLOADS}
        return replace(payload, extras={**payload.extras, **heads})

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The method's next state, and the evidence of all sites."""
        method_state, evidence = self.split_state(state)
        sums = EvidenceSums()
        next_state = self.method.aggregate(method_state, self._take_evidence(updates, sums))
        evidence = {**sums.add_to(evidence), **sums.scores.to_state(state.round)}
        return replace(next_state, extras={**next_state.extras, **evidence})

    def _take_evidence(self, updates: Iterable[Update], sums: EvidenceSums) -> Iterator[Update]:
        """The updates without their evidence, which is added to the sums."""
        for update in updates:
            own_extras, evidence = self.split(update.extras)
            sums.add(evidence, update.num_samples)
            yield replace(update, extras=own_extras)

    def trim_late(self, update: Update) -> Update:
        """Without the heads: they belong to their own round."""
        update = self.method.trim_late(update)
        return replace(update, extras=self.split(update.extras)[0])

    def new_memory(self, samples: Samples, site: str, seed: int) -> SampleMemory:
        """Folds by content, opinions that favour no class, and the given label as posterior."""
        given = np.eye(samples.num_classes, dtype=np.float32)[samples.labels]
        arrays = {
            "folds": assign_folds(seed, site, _read_contents(samples)).astype(np.uint8),
            "opinion_sum": np.full_like(given, 1.0 / samples.num_classes),
            "posterior": given,
        }
        return {**self.method.new_memory(samples, site, seed), _MEMORY: arrays}

    def _is_training(self, round: int) -> bool:
        """Heads are trained until the last renewal."""
        return round <= self.renewal_rounds[-1]

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Judge the labels, then the method's own round, then train the heads."""
        own_extras, head_arrays = self.split(payload.extras)
        payload = replace(payload, extras=own_extras)
        if site.num_samples == 0:
            return self.method.local_update(payload, site)
        round = payload.round
        store = site.store.part(_MEMORY)
        memory = HeadMemory.from_arrays(store.read_before(round), site)
        due = sum(renewal <= round for renewal in self.renewal_rounds)
        features = None
        if self._is_training(round) or (memory.renewals < due and head_arrays):
            features = _read_features(payload, site)
        if features is not None:
            heads = _received_heads(head_arrays, features.shape[1], site.num_classes)
            if round >= min(FIRST_JUDGED_ROUND, self.renewal_rounds[0]):
                memory = memory.add(judge(heads, features, memory.folds))
            if memory.renewals < due:
                memory = _renew_evidence(memory, due, features, site)
        site.evidence = LabelEvidence(memory.posterior, memory.share_explained)
        extras: dict[str, np.ndarray] = {}
        update = self._train_method(memory, payload, site, extras)
        if features is not None and self._is_training(round):
            extras |= _train_heads(heads, memory, round, site, features)
        store.write(round, memory.to_arrays())
        return replace(update, extras={**update.extras, **extras})

    def _train_method(
        self, memory: HeadMemory, payload: Payload, site: Site, extras: dict[str, np.ndarray]
    ) -> Update:
        """The method's own round, without held-out samples, which score the received model.

        Adds the counts of the score to `extras`.
        """
        mask = self._holdout(site)
        if not mask.any():
            return self.method.local_update(payload, site)
        if memory.posterior is not None:
            extras |= holdout.count_holdout(payload, site, memory.posterior, mask)
        part = holdout.training_part(site, mask)
        update = self.method.local_update(payload, part)
        holdout.copy_notes(part, site, mask)
        # the weight of a site in the average stays what it is without a hold-out
        return replace(update, num_samples=site.num_samples)

    def _holdout(self, site: Site) -> np.ndarray:
        """(n,) bool: the samples that no model trains on."""
        return find_holdout(site.seed, site.name, site.samples, self.holdout_share)


# ---- the server's part ----


class EvidenceSums:
    """What the sites of one round send about the evidence, added up as it arrives."""

    def __init__(self) -> None:
        self.heads = WeightedMean()
        self.scores = holdout.ScoreSums()

    def add(self, evidence: Arrays, num_samples: int) -> None:
        """Add the evidence of one site."""
        self.scores.add(evidence)
        if all(name in evidence for name in _HEAD_EXTRAS):
            heads = {name: evidence[name] for name in _HEAD_EXTRAS}
            self.heads.add(heads, float(num_samples))

    def add_to(self, evidence: Arrays) -> dict[str, np.ndarray]:
        """The server's heads after the round; without any from the sites, they stay."""
        return {**evidence, **(self.heads.result() or {})}


# ---- a site's part ----


@dataclass(frozen=True)
class HeadMemory:
    """What a site remembers about its labels between rounds. It never leaves the site."""

    # (n,) the fold of each sample
    folds: np.ndarray
    # (n, C) float32: sum of the heads' opinions since the last renewal, and their number
    opinion_sum: np.ndarray
    count: int = 0
    # renewals behind the evidence
    renewals: int = 0
    # (n, C) float32: r; None before the first renewal
    posterior: np.ndarray | None = None
    # share of the labels' information that the better judge explains, and that the heads explained
    # at the first renewal, when they had learnt given labels only
    share_explained: float = 0.0
    heads_explained: float = 0.0
    # the site's own judgement, and a digest of the features and labels that it is about
    site_judgement: Judgement | None = None
    site_digest: bytes = b""

    @staticmethod
    def from_arrays(arrays: Arrays, site: Site) -> HeadMemory:
        """The memory as it was stored; without any, that of a site at its start."""
        shape = (site.num_samples, site.num_classes)
        if not arrays:
            folds = assign_folds(site.seed, site.name, _read_contents(site.samples))
            return HeadMemory(folds, np.zeros(shape, np.float32))
        return HeadMemory(
            arrays["folds"].astype(np.int64),
            arrays["opinion_sum"],
            int(arrays["count"]),
            int(arrays["renewals"]),
            arrays.get("posterior"),
            float(arrays["explained"]),
            float(arrays["heads_explained"]),
            read_judgement(arrays, SITE),
            arrays["site_digest"].tobytes() if "site_digest" in arrays else b"",
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for the site's store."""
        arrays = {
            "folds": self.folds.astype(np.uint8),
            "opinion_sum": self.opinion_sum,
            "count": np.array(self.count),
            "renewals": np.array(self.renewals),
            "explained": np.array(self.share_explained),
            "heads_explained": np.array(self.heads_explained),
        }
        if self.posterior is not None:
            arrays["posterior"] = self.posterior
        if self.site_judgement is not None:
            arrays |= judgement_arrays(self.site_judgement, SITE)
            arrays["site_digest"] = np.frombuffer(self.site_digest, np.uint8)
        return arrays

    def add(self, opinion: np.ndarray) -> HeadMemory:
        """The memory with the opinions (n, C) of one more round."""
        opinion_sum = np.asarray(self.opinion_sum + opinion.astype(np.float32))
        return replace(self, opinion_sum=opinion_sum, count=self.count + 1)

    def mean_opinion(self) -> np.ndarray:
        """(n, C) float64, over the rounds since the last renewal; there must be one."""
        total = self.opinion_sum.astype(np.float64)
        return np.asarray(total / total.sum(axis=1, keepdims=True))

    def head_labels(self, site: Site) -> np.ndarray:
        """(n, C): what the heads are trained on; the given labels, later the posterior.

        A posterior that explains nothing would only teach the heads their own opinion.
        """
        if self.posterior is None or self.share_explained < MIN_USEFUL:
            return np.asarray(np.eye(site.num_classes)[site.labels])
        return np.asarray(self.posterior, dtype=np.float64)


def _renew_evidence(
    memory: HeadMemory, renewals: int, features: np.ndarray, site: Site
) -> HeadMemory:
    """The memory with new evidence; features (n, D) normalised."""
    parts = to_halves(memory.folds)
    _, weights = head_targets(memory.head_labels(site))
    federation = judge_labels(
        memory.mean_opinion(), site.labels, parts, weights=weights, checked=site.checked
    )
    if memory.renewals:
        federation = replace(federation, share_explained=memory.heads_explained)
    site_judgement = memory.site_judgement
    digest = _digest_samples(features, site)
    if site_judgement is None or digest != memory.site_digest:
        groups = number_contents(_read_contents(site.samples))
        site_judgement = judge_alone(
            features, site.labels, groups, site.num_classes, checked=site.checked
        )
    evidence = SiteEvidence.of_federation(federation, site_judgement, site.num_sites)
    notes = evidence_arrays(evidence)
    site.note(**{NOTE_PREFIX + name: array for name, array in notes.items()})
    return HeadMemory(
        memory.folds,
        np.zeros_like(memory.opinion_sum),
        renewals=renewals,
        posterior=evidence.posterior(site.labels, site.checked).astype(np.float32),
        share_explained=evidence.share_explained,
        heads_explained=federation.share_explained,
        site_judgement=site_judgement,
        site_digest=digest,
    )


def _digest_samples(features: np.ndarray, site: Site) -> bytes:
    """Identifies what a site's own judgement depends on."""
    digest = hashlib.sha256(np.ascontiguousarray(features).tobytes())
    digest.update(site.labels.astype("<i8").tobytes())
    if site.checked is not None:
        digest.update(site.checked.to_bytes())
    return digest.digest()


def _train_heads(
    heads: Heads, memory: HeadMemory, round: int, site: Site, features: np.ndarray
) -> dict[str, np.ndarray]:
    """One epoch of the received heads at a site, and what is sent; features (n, D) normalised."""
    targets, weights = head_targets(memory.head_labels(site))
    heads = train_heads(
        heads,
        features,
        targets,
        weights,
        memory.folds,
        site.rng(round, "evidence").permutation(site.num_samples),
        num_sites=site.num_sites,
    )
    return {"evidence.weight": heads.weight, "evidence.bias": heads.bias}


def find_holdout(seed: int, site: str, samples: Samples, share: float) -> np.ndarray:
    """(n,) bool; nothing at a site that would keep too few samples to train on."""
    mask = np.zeros(len(samples), bool)
    if share > 0:
        mask = draw_holdout(seed, site, _read_contents(samples), share)
    if np.count_nonzero(~mask) < SMALLEST_GROUP:
        mask[:] = False
    return mask


def _read_contents(samples: Samples) -> Iterator[bytes]:
    """What decides about the fold of every sample: its group, or else the bytes of its input."""
    groups = samples.groups
    for row in range(len(samples)):
        if groups is not None and str(groups[row]):
            yield str(groups[row]).encode()
        else:
            yield np.ascontiguousarray(samples.inputs[np.array([row])]).tobytes()


def _read_features(payload: Payload, site: Site) -> np.ndarray | None:
    """(n, D) normalised features; None if the received model has diverged.

    Frozen features are the site's inputs, or come beside the images. Otherwise the received model
    computes them, in the pass that the audit and some methods need anyway.
    """
    if not site.samples.are_images:
        return site.samples.inputs
    if site.samples.features is not None:
        return site.samples.features
    site.load(payload.weights)
    evaluation = evaluate_site(site, features=True)
    assert evaluation.features is not None
    if not np.isfinite(evaluation.losses).all():
        return None
    site.evaluation = evaluation
    features = layer_normalise(evaluation.features)
    return features if np.isfinite(features).all() else None


def _received_heads(evidence: Arrays, width: int, num_classes: int) -> Heads:
    if "evidence.weight" not in evidence:
        return Heads.zeros(width, num_classes)
    return Heads(evidence["evidence.weight"], evidence["evidence.bias"])
