"""Evidence heads beside any method: a slow second opinion about labels (docs/evidence.md).

`MethodWithHeads` holds a method. What travels for the wrapped method is unchanged; what travels for
the heads has names that begin with "evidence." and is declared beside it. Heads are trained and
judge in every round until the last collection. A refresh of the posterior takes two rounds,
because every message rides on a round that takes place anyway:

    round t      up    log_likelihoods      of the given labels, for each power
    round t + 1  down  power, refresh       the best power; the site computes r and keeps it

A site that misses one of these rounds refreshes its posterior in the next round it takes part in;
one that was away until a power was chosen judges its labels by the heads that it receives first.
Its memory is versioned by round, like that of a method, so a repeated round gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedgsca.evidence import (
    MAX_DECLINE,
    MIN_USEFUL,
    NUM_HEADS,
    POWERS,
    Heads,
    Judgement,
    assign_folds,
    best_power,
    draw_holdout,
    explain_opinions,
    explained_across_folds,
    head_targets,
    judge,
    layer_normalise,
    own_references,
    sharpen,
    to_halves,
    train_heads,
)
from fedgsca.methods.aggregate import WeightedMean
from fedgsca.methods.base import Method, SampleMemory, ServerState
from fedgsca.methods.parts import holdout
from fedgsca.methods.site import LabelEvidence, Samples, Site
from fedgsca.methods.train import evaluate_site
from fedgsca.wire import SMALLEST_GROUP, Arrays, Extra, Payload, Update

PREFIX = "evidence."
_MEMORY = "evidence"  # part of a site's store
# earlier heads know too little; a shorter run judges from its first collection on
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
    "evidence.log_likelihoods": Extra(
        (len(POWERS),),
        "how well the heads explain the given labels, one sum per power; NaN: not computed",
        optional=True,
        high=0,
        nan=True,
        # no honest mean over images is lower for all powers
        per_image=(-30.0 * holdout.MAX_HOLDOUT_FACTOR * len(POWERS), 0.0),
        vote="mean",
        off_under_privacy=True,
    ),
}
DOWNLOADS: Mapping[str, Extra] = {
    **_HEAD_EXTRAS,
    "evidence.power": Extra(
        (),
        "the power that makes the heads' probabilities explain the labels best",
        optional=True,
        low=POWERS[0],
        high=POWERS[-1],
    ),
    "evidence.refresh": Extra((), "how often the power was chosen", optional=True, low=0),
}


class MethodWithHeads(Method):
    """A method with evidence heads beside it. See the text of this module."""

    name = ""  # that of the method

    def __init__(
        self,
        method: Method,
        collection_rounds: range,
        holdout_share: float = 0.0,
        *,
        keeps_heads: bool = False,
    ) -> None:
        """Opinions are collected in `collection_rounds`, of which there is at least one.

        The method does not train on `holdout_share` of each site's samples. `keeps_heads`: the
        heads are sent to the end of the run, for sites that have never seen them.
        """
        super().__init__(method.options, method.rounds)
        self.method = method
        self.collection_rounds = collection_rounds
        self.holdout_share = holdout_share
        self.keeps_heads = keeps_heads
        # the declarations of a method are attributes of its class; here they are the method's own
        vars(self).update(
            name=method.name,
            card=method.card,
            head=method.head,
            logged=method.logged,
            late=method.late,
            uploads={**method.uploads, **UPLOADS},
            downloads={**method.downloads, **DOWNLOADS},
        )

    # ---- server ----

    def start(self, weights: Arrays, seed: int) -> ServerState:
        """As the method starts; the heads start at zero, at the sites."""
        return self.method.start(weights, seed)

    def broadcast(self, state: ServerState, round: int) -> Payload:
        """The method's message, and what the server knows about the evidence."""
        method_state, evidence = _split_state(state)
        payload = self.method.broadcast(method_state, round)
        evidence = {name: a for name, a in evidence.items() if name in DOWNLOADS}
        # a site that missed the last collection judges its labels in the round after it
        if not (self._is_training(round - 1) or self.keeps_heads):
            evidence = {name: a for name, a in evidence.items() if name not in _HEAD_EXTRAS}
        return replace(payload, extras={**payload.extras, **evidence})

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        """The method's next state, and the evidence of all sites."""
        method_state, evidence = _split_state(state)
        sums = EvidenceSums()
        next_state = self.method.aggregate(method_state, sums.take_from(updates))
        evidence = {**sums.add_to(evidence), **sums.scores.to_state(state.round)}
        return replace(next_state, extras={**next_state.extras, **evidence})

    def asks_all_sites(self, state: ServerState) -> bool:
        """As the method asks."""
        return self.method.asks_all_sites(_split_state(state)[0])

    def trim_late(self, update: Update) -> Update:
        """Without the evidence: a message of the refresh belongs to its own round."""
        update = self.method.trim_late(update)
        return replace(update, extras=_split_extras(update.extras)[1])

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
        """Heads are trained until the last collection."""
        return round <= self.collection_rounds[-1]

    # ---- site ----

    def local_update(self, payload: Payload, site: Site) -> Update:
        """Judge the labels, train the heads, then the method's own round."""
        evidence, own_extras = _split_extras(payload.extras)
        payload = replace(payload, extras=own_extras)
        if site.num_samples == 0:
            return self.method.local_update(payload, site)
        store = site.store.part(_MEMORY)
        memory = HeadMemory.from_arrays(store.read_before(payload.round), site)
        memory = _catch_up(memory, evidence, payload, site)
        memory = _refresh_posterior(memory, evidence, site)
        site.evidence = LabelEvidence(
            memory.posterior, memory.share_explained, memory.plain_explained
        )
        extras: dict[str, np.ndarray] = {}
        features = _read_features(payload, site) if self._is_training(payload.round) else None
        update = self._train_method(memory, payload, site, extras)
        if features is not None:
            memory, head_extras = self._train_heads(memory, evidence, payload, site, features)
            extras |= head_extras
        store.write(payload.round, memory.to_arrays())
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

    def _train_heads(
        self,
        memory: HeadMemory,
        evidence: Arrays,
        payload: Payload,
        site: Site,
        features: np.ndarray,
    ) -> tuple[HeadMemory, dict[str, np.ndarray]]:
        """One round of the heads at a site: the new memory, and what is sent.

        features (n, D), normalised.
        """
        heads = _received_heads(evidence, features.shape[1], site.num_classes)
        round = payload.round
        if round >= min(FIRST_JUDGED_ROUND, self.collection_rounds[0]):
            memory = memory.add(judge(heads, features, memory.folds))
        targets, weights = head_targets(memory.head_labels(site))
        extras = {}
        if round in self.collection_rounds:
            extras["evidence.log_likelihoods"] = _log_likelihoods(memory, site)
        heads = train_heads(
            heads,
            features,
            targets,
            weights,
            memory.folds,
            site.rng(round, "evidence").permutation(site.num_samples),
            num_sites=site.num_sites,
        )
        extras |= {"evidence.weight": heads.weight, "evidence.bias": heads.bias}
        return memory, extras


# ---- the server's part ----


def _split_extras(extras: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(of the evidence, of the method)."""
    evidence = {name: array for name, array in extras.items() if name.startswith(PREFIX)}
    own_extras = {name: array for name, array in extras.items() if name not in evidence}
    return evidence, own_extras


def _split_state(state: ServerState) -> tuple[ServerState, dict[str, np.ndarray]]:
    evidence, own_extras = _split_extras(state.extras)
    return replace(state, extras=own_extras), evidence


class EvidenceSums:
    """What the sites of one round send about the evidence, added up as it arrives."""

    def __init__(self) -> None:
        self.heads = WeightedMean()
        # (P,), of all sites that sent it
        self.log_likelihoods: np.ndarray | None = None
        self.scores = holdout.ScoreSums()

    def take_from(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The updates without their evidence, which is added."""
        for update in updates:
            evidence, own_extras = _split_extras(update.extras)
            self.add(evidence, update.num_samples)
            yield replace(update, extras=own_extras)

    def add(self, evidence: Arrays, num_samples: int) -> None:
        """Add the evidence of one site."""
        self.scores.add(evidence)
        if all(name in evidence for name in _HEAD_EXTRAS):
            heads = {name: evidence[name] for name in _HEAD_EXTRAS}
            self.heads.add(heads, float(num_samples))
        values = evidence.get("evidence.log_likelihoods")
        if values is not None and np.isfinite(values).all():
            total = 0.0 if self.log_likelihoods is None else self.log_likelihoods
            self.log_likelihoods = total + np.asarray(values, dtype=np.float64)

    def add_to(self, evidence: Arrays) -> dict[str, np.ndarray]:
        """The server's evidence after the round; what no site sent stays as it was."""
        state = {**evidence, **(self.heads.result() or {})}
        if self.log_likelihoods is not None:
            state["evidence.power"] = np.array(best_power(self.log_likelihoods))
            state["evidence.refresh"] = np.array(int(evidence.get("evidence.refresh", 0)) + 1)
        return state


# ---- a site's part ----


@dataclass(frozen=True)
class HeadMemory:
    """What a site remembers about its labels between rounds. It never leaves the site."""

    # (n,) the fold of each sample
    folds: np.ndarray
    # (n, C) float32: sum of the heads' opinions since the last refresh, and their number
    opinion_sum: np.ndarray
    count: int = 0
    # the refresh behind the posterior
    refresh: int = 0
    # (n, C) float32: r; None before the first refresh
    posterior: np.ndarray | None = None
    # share of the labels' entropy that the opinions behind r explain; None: as r
    share_explained: float | None = None
    # the same at the first refresh: what plain training on the given labels explained
    plain_explained: float | None = None

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
            int(arrays["refresh"]),
            arrays.get("posterior"),
            float(arrays["explained"]) if "explained" in arrays else None,
            float(arrays["plain_explained"]) if "plain_explained" in arrays else None,
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for the site's store."""
        arrays = {
            "folds": self.folds.astype(np.uint8),
            "opinion_sum": self.opinion_sum,
            "count": np.array(self.count),
            "refresh": np.array(self.refresh),
        }
        if self.posterior is not None:
            arrays["posterior"] = self.posterior
        if self.share_explained is not None:
            arrays["explained"] = np.array(self.share_explained)
        if self.plain_explained is not None:
            arrays["plain_explained"] = np.array(self.plain_explained)
        return arrays

    def add(self, opinion: np.ndarray) -> HeadMemory:
        """The memory with the opinions (n, C) of one more round."""
        opinion_sum = np.asarray(self.opinion_sum + opinion.astype(np.float32))
        return replace(self, opinion_sum=opinion_sum, count=self.count + 1)

    def mean_opinion(self) -> np.ndarray:
        """(n, C) float64, over the rounds since the last refresh; there must be one."""
        total = self.opinion_sum.astype(np.float64)
        return np.asarray(total / total.sum(axis=1, keepdims=True))

    def references(self, site: Site) -> np.ndarray:
        """(P, C): class mix of the site's own mean opinion, for each power.

        Nothing that it depends on changes between a collection and its refresh.
        """
        _, weights = head_targets(self.head_labels(site))
        return own_references(self.mean_opinion(), weights)

    def head_labels(self, site: Site) -> np.ndarray:
        """(n, C): what the heads are trained on; the given labels, later the posterior.

        A posterior that explains nothing would only teach the heads their own opinion. So would one
        that explains less than plain training did.
        """
        least = max(MIN_USEFUL, (self.plain_explained or 0.0) - MAX_DECLINE)
        if self.posterior is None or (self.share_explained or 0.0) < least:
            return np.asarray(np.eye(site.num_classes)[site.labels])
        return np.asarray(self.posterior, dtype=np.float64)


def _catch_up(memory: HeadMemory, evidence: Arrays, payload: Payload, site: Site) -> HeadMemory:
    """The memory with a first opinion, at a site that was away until a power was chosen.

    No head has been trained on its images, so the received heads judge all of them.
    """
    is_late = int(evidence.get("evidence.refresh", 0)) > memory.refresh and not memory.count
    if not is_late or "evidence.weight" not in evidence:
        return memory
    features = _read_features(payload, site)
    if features is None:
        return memory
    heads = _received_heads(evidence, features.shape[1], site.num_classes)
    return memory.add(judge(heads, features, memory.folds))


def _refresh_posterior(memory: HeadMemory, evidence: Arrays, site: Site) -> HeadMemory:
    """The memory with a new posterior, if the server has chosen a new power."""
    refresh = int(evidence.get("evidence.refresh", 0))
    if refresh <= memory.refresh or not memory.count:
        return memory
    power = float(evidence["evidence.power"])
    judgement = Judgement(memory.mean_opinion(), memory.references(site), power)
    site.note(
        evidence_probs=judgement.probs,
        evidence_references=judgement.references,
        evidence_power=np.array(power),
    )
    fit = judgement.transition(site.labels, site.checked)
    opinion = sharpen(judgement.probs, power)
    reference = judgement.references[POWERS.index(power)]
    share_explained = explained_across_folds(
        opinion, site.labels, memory.folds, reference, site.checked
    )
    plain_explained = memory.plain_explained
    return HeadMemory(
        memory.folds,
        np.zeros_like(memory.opinion_sum),
        refresh=refresh,
        posterior=fit.posterior.astype(np.float32),
        share_explained=share_explained,
        plain_explained=share_explained if plain_explained is None else plain_explained,
    )


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


def _log_likelihoods(memory: HeadMemory, site: Site) -> np.ndarray:
    """(P,) for each power, the log-likelihood of given labels that T has not seen.

    NaN for a very small site.
    """
    if site.num_samples < SMALLEST_GROUP:
        return np.full(len(POWERS), np.nan)
    opinion = memory.mean_opinion()
    opinions = np.stack([sharpen(opinion, power) for power in POWERS])
    parts, references = to_halves(memory.folds), memory.references(site)
    values, _ = explain_opinions(opinions, site.labels, parts, references, checked=site.checked)
    return np.array(values)
