"""The round loop, the same for every method and engine.

    broadcast -> exchange with the sites -> aggregate -> evaluate -> save

A run that is killed at any point continues from its last checkpoint and ends in the same bytes: all
randomness is addressed, a site's memory is versioned by round, and lines of metrics.jsonl beyond
the checkpoint are removed before the loop continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedgsca.config import Config
from fedgsca.engine import checkpoint
from fedgsca.engine.base import (
    ALARM,
    Engine,
    PatientEngine,
    Reply,
    RunObserver,
    SilentObserver,
    SiteEvaluator,
)
from fedgsca.engine.direction_limits import REVERSAL_CODE
from fedgsca.engine.guard import UpdateGuard, is_blamed, is_malformed
from fedgsca.engine.guard_memory import MODEL, GuardMemory
from fedgsca.engine.image_claims import check_agreed_sites
from fedgsca.engine.late_sites import LateSites
from fedgsca.engine.lateness import check_lateness, late_weight, rebase
from fedgsca.engine.local import LocalEngine, SiteRunner
from fedgsca.engine.norm_limits import lower_median
from fedgsca.engine.participation import draw_sites
from fedgsca.engine.processes import ProcessEngine
from fedgsca.engine.run_companions import check_companions, describe_companions
from fedgsca.engine.site_evaluation import (
    ModelScores,
    pool_scores,
    predict_test_images,
    score_model,
)
from fedgsca.engine.update_checks import absurd_array, averaged_extras, received_arrays
from fedgsca.engine.update_facts import RoundFacts, Scaling, UpdateFacts
from fedgsca.errors import QuorumError, UpdateError
from fedgsca.experiment.records import (
    PrivacyBudget,
    RoundRecord,
    RunResult,
    SiteRecord,
    SiteValue,
    TimingRecord,
    finite,
)
from fedgsca.experiment.run_folder import RunFolder
from fedgsca.experiment.simulation import Experiment, prepare
from fedgsca.methods.base import Method, ServerState
from fedgsca.methods.compose import compose_method
from fedgsca.methods.parts.holdout import read_score
from fedgsca.metrics import HEADLINE_ROUNDS, stability
from fedgsca.privacy.accountant import spent_epsilon
from fedgsca.robust.base import Rule, RuleSettings, make_rule
from fedgsca.robust.combine import combine_extras, combine_models, scale_change
from fedgsca.robust.spool import UpdateSpool
from fedgsca.site import weights_of
from fedgsca.support.text import one_line
from fedgsca.wire import Arrays, Payload, Update, check_extras, check_update, num_bytes

NO_HEADS_MESSAGE = (
    "evidence heads are off under privacy: FedGSCA and the audit use the losses of the model"
)
_MAX_STRANGER_NAME = 80  # characters
_MAX_STRANGERS = 10  # in a round; further ones are counted
LOG_LIMIT = 64  # larger arrays of an update are not written to metrics.jsonl


def run(
    config: Config,
    out: Path,
    *,
    jobs: int = 1,
    observer: RunObserver | None = None,
    engine: Engine | None = None,
    experiment: Experiment | None = None,
    stop_after: int | None = None,
) -> RunResult | None:
    """Run an experiment, or continue it, in its folder.

    Returns the content of result.json, or None if the run stopped before its last round.
    `stop_after` is the number of rounds that the run then has, those of earlier calls included.
    `experiment` is the part of it that is on this machine; without one, all sites are here.
    `engine` carries the messages, and whoever passes one closes it; without one, the sites run
    here, in `jobs` processes, which end with this call.
    """
    observer = observer or SilentObserver()
    with RunFolder(out, config) as folder:
        result = folder.result()
        if result is not None:
            return result
        folder.check_version()
        experiment = experiment or prepare(config)
        check_agreed_sites(config, experiment.names)
        spent_epsilon(config, 1)  # a missing accountant is noticed before the first round
        method = compose_method(config)
        runner = SiteRunner(experiment, method, out)
        folder.write_setup(experiment)
        newest = checkpoint.read_latest(folder.checkpoints, config.fingerprint())
        if newest is None:
            newest = checkpoint.Checkpoint(method.start(weights_of(runner.model), config.seed))
        else:
            rounds = newest.state.round
            check_companions(out, rounds, checkpoint.read_companions(folder.checkpoints, rounds))
        state = newest.state
        guard = UpdateGuard(
            config,
            GuardMemory.from_arrays(experiment.names, newest.guard),
            first_round_spread=method.first_round_spread,
            response_slack=method.response_slack,
            retreat_slack=method.retreat_slack,
        )
        folder.cut_metrics(state.round)
        observer.on_start(experiment, state.round)
        if config.privacy is not None and config.audit.enabled:
            observer.on_message(NO_HEADS_MESSAGE)
        end_round = config.train.rounds
        if stop_after is not None:
            end_round = min(end_round, stop_after)
        carrier = engine or _local_engine(runner, jobs)
        if config.federation.simulated_lateness > 0:
            carrier = LateSites(carrier, config, experiment.names, out)
        loop = RoundLoop(method, carrier, runner, folder, observer, guard)
        try:
            while state.round < end_round:
                state = _run_patiently(loop, state)
        finally:
            if engine is None:
                loop.engine.close()
        if state.round < config.train.rounds:
            return None
        predictions = predict_test_images(runner, state.weights)
        return folder.finish(state, experiment, method, predictions)


def _run_patiently(loop: RoundLoop, state: ServerState) -> ServerState:
    """One round; with an engine that can wait for absent sites, repeated until a quorum answers.

    A round without a quorum leaves the state as it was, as if the run had been resumed.
    """
    attempt = 0
    while True:
        try:
            return loop.run_round(state, attempt)
        except QuorumError as error:
            engine = loop.engine
            if not isinstance(engine, PatientEngine):
                raise
            if not engine.wait_for_quorum(attempt, error.message):
                raise
            attempt += 1


def _local_engine(runner: SiteRunner, jobs: int) -> Engine:
    sites = list(runner.experiment.sites)
    if jobs > 1 and len(sites) > 1:
        return ProcessEngine(runner.experiment.config, sites, runner.folder, jobs)
    return LocalEngine(runner)


@dataclass
class RoundLoop:
    """What stays the same from round to round."""

    method: Method
    engine: Engine
    runner: SiteRunner
    folder: RunFolder
    observer: RunObserver
    guard: UpdateGuard

    @property
    def experiment(self) -> Experiment:
        """The experiment as far as it is on this machine."""
        return self.runner.experiment

    def run_round(self, state: ServerState, attempt: int = 0) -> ServerState:
        """One communication round: `state` is before it, the returned state after it.

        `attempt` counts the repetitions of a round that had no quorum.
        """
        config, round_index = self.experiment.config, state.round
        start = time.perf_counter()
        start_cpu = time.process_time()
        readmissions = self._readmit()
        asked_sites = self._asked_sites(state, attempt)
        payload = self.method.broadcast(state, round_index)
        check_extras("payload", payload.extras, self.method.downloads, self.experiment.dims)
        state, validator = self._train_and_aggregate(state, payload, asked_sites)
        end_of_exchange = time.perf_counter()
        cpu = time.process_time() - start_cpu
        record = self._record(validator, payload)
        record = replace(record, expected_f1=read_score(state.extras, round_index))
        record = self._with_scores(record, state)
        end_of_evaluation = time.perf_counter()
        self.folder.append_metrics(record)
        memory = self.guard.memory.to_arrays()
        companions = describe_companions(self.folder.path, state.round)
        checkpoint.save(self.folder.checkpoints, state, config.fingerprint(), memory, companions)
        self.folder.end_readmission(readmissions)
        end = time.perf_counter()
        timing = TimingRecord(
            round=round_index,
            sites=validator.site_seconds,
            exchange=end_of_exchange - start,
            evaluate=end_of_evaluation - end_of_exchange,
            save=end - end_of_evaluation,
            cpu=cpu if isinstance(self.engine, LocalEngine) else None,
        )
        self.folder.append_timing(timing)
        self.observer.on_round_done(record, end - start)
        return state

    def _readmit(self) -> list[str]:
        """Sites that a person readmitted since the last round."""
        sites = [name for name in self.experiment.names if self.folder.is_readmitted(name)]
        self.guard.readmit(sites)
        for site in sites:
            self.observer.on_message(f"{site} takes part again: it was readmitted")
        return sites

    def _asked_sites(self, state: ServerState, attempt: int) -> tuple[str, ...] | None:
        """The sites of the round, if it does not ask all (participation.py)."""
        config = self.experiment.config
        if not config.federation.is_partial or self.method.asks_all_sites(state):
            return None
        excluded_sites = self.guard.sites_put_aside()
        return draw_sites(
            config,
            self.experiment.names,
            state.round,
            excluded_sites=excluded_sites,
            attempt=attempt,
        )

    def _train_and_aggregate(
        self, state: ServerState, payload: Payload, asked_sites: tuple[str, ...] | None
    ) -> tuple[ServerState, UpdateValidator]:
        """Train at the sites and aggregate their updates.

        Nothing is trained before `aggregate` asks for the first update. `updates` is a chain of
        generators, so that one update at a time is in memory:

            method.aggregate iterates over the updates
              -> validator.accept takes the next reply and checks it
                -> engine.exchange trains the next site
                  -> SiteRunner.run_round -> method.local_update, at the site
        """
        # not at the top: it imports torch, and `fedgsca resume` of a finished run needs none
        from fedgsca.models.build import trainable_names

        trainable = trainable_names(self.runner.model)
        settings = self.experiment.config.aggregation
        rule = make_rule(settings.rule, RuleSettings(settings.bound, settings.trim, settings.liars))
        validator = UpdateValidator(
            self.method, payload, self.experiment, trainable, self.observer, self.guard, rule
        )
        validator.asked_sites = asked_sites
        with UpdateSpool(self.folder.path) as spool:
            if asked_sites is None:
                replies = self.engine.exchange(payload)
            else:
                replies = self.engine.exchange(payload, asked_sites)
            updates = validator.accept(replies, spool)
            # iterating over the updates trains the sites
            state = self.method.aggregate(state, updates)
        validator.check_quorum()
        validator.check_aggregate(state)
        check_model(state.weights, payload.round)
        validator.end_round()
        return state, validator

    def _record(self, validator: UpdateValidator, payload: Payload) -> RoundRecord:
        """The line of metrics.jsonl, without scores."""
        config = self.experiment.config
        payload_bytes = num_bytes(payload.weights) + num_bytes(payload.extras)
        mean_drift = float(np.mean(validator.drift)) if validator.drift else None
        return RoundRecord(
            round=payload.round,
            lr=self.experiment.train.lr_at(payload.round),
            stability=mean_drift,
            bytes_up=validator.bytes_up,
            bytes_down=len(validator.names) * payload_bytes,
            sites=validator.sites,
            asked_sites=validator.asked_sites,
            refusals=validator.refusals,
            opposition=validator.opposed_sites or None,
            privacy=_budget(config, payload.round + 1),
        )

    def _with_scores(self, record: RoundRecord, state: ServerState) -> RoundRecord:
        """The record with the scores of the aggregated model, in rounds that are tested."""
        if not _is_tested(self.experiment.config, record.round):
            return record
        test, val = self.experiment.test, self.experiment.val
        scores: ModelScores | None = None
        if test is not None:
            scores = score_model(self.runner, state.weights, test)
        elif isinstance(self.engine, SiteEvaluator):
            replies = self.engine.evaluate_at_sites(Payload(record.round, state.weights))
            scores = pool_scores(replies, self.experiment.dims, self.observer.on_message)
        if scores is not None:
            self._warn_about_loss(record.round, scores.loss)
            record = replace(
                record,
                f1=scores.f1,
                recall=scores.recall,
                precision=scores.precision,
                loss=finite(scores.loss),
                confusion=scores.confusion,
                test_counts=scores.test_counts,
                site_confusions=scores.site_confusions,
            )
        if val is not None:
            record = replace(record, val_f1=score_model(self.runner, state.weights, val).f1)
        return record

    def _warn_about_loss(self, round_index: int, loss: float | None) -> None:
        if loss is not None and not math.isfinite(loss):
            self.observer.on_message(
                f"round {round_index + 1}: the loss on the test images is not finite, so it is not"
                " recorded; the model may be diverging"
            )


def check_model(weights: Arrays, round_index: int) -> None:
    """Refuse an aggregated model with a negative variance: the last good checkpoint then stays.

    A server half that treats BatchNorm's buffers like parameters can produce one, although no
    site sent anything unusual. Numbers that are not finite are found by `check_aggregate`.
    """
    for name, array in weights.items():
        if name.endswith("running_var") and (array < 0).any():
            raise UpdateError(
                "round.invalid-model",
                f"round {round_index + 1}: the aggregated model is not valid: {name} is a variance"
                " and has negative values",
                fix="lower the learning rate, or correct the server half of the method: it must"
                " average buffers such as running_var, see fedgsca.aggregate.is_buffer",
            )


def _budget(config: Config, rounds: int) -> PrivacyBudget | None:
    epsilon = spent_epsilon(config, rounds)
    if epsilon is None or config.privacy is None:
        return None
    return PrivacyBudget(epsilon, config.privacy.delta)


def _is_tested(config: Config, round_index: int) -> bool:
    is_final = round_index >= config.train.rounds - HEADLINE_ROUNDS
    return is_final or round_index % config.federation.eval_every == 0


@dataclass
class UpdateValidator:
    """Between the engine and the method: checks every update and counts what the log needs."""

    method: Method
    payload: Payload
    experiment: Experiment
    trainable: tuple[str, ...]
    observer: RunObserver
    guard: UpdateGuard
    rule: Rule
    sites: dict[str, SiteRecord] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)  # site -> reason
    drift: list[float] = field(default_factory=list)  # change of the weights at each site
    bytes_up: int = 0
    site_seconds: dict[str, float] = field(default_factory=dict)
    facts: list[UpdateFacts] = field(default_factory=list)
    blame: list[str] = field(default_factory=list)  # sites that the guard refused
    reversed_sites: list[str] = field(default_factory=list)  # refused for their direction
    scaled_sites: dict[str, float] = field(default_factory=dict)  # site -> factor on its change
    malformed_sites: list[str] = field(default_factory=list)  # their answers have no usable form
    # (name, code) -> how often it was refused in this round
    num_refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    strangers: set[str] = field(default_factory=set)  # names of sites that nobody knows
    opposed_sites: dict[str, str] = field(default_factory=dict)  # site -> how it opposes the others
    simulation_metrics: dict[str, Mapping[str, float | None]] = field(default_factory=dict)
    asked_sites: tuple[str, ...] | None = None  # None: all
    rounds_late: dict[str, int] = field(default_factory=dict)
    answered_sites: set[str] = field(default_factory=set)

    @property
    def names(self) -> Sequence[str]:
        """The sites that were asked."""
        return self.experiment.names if self.asked_sites is None else self.asked_sites

    def accept(self, replies: Iterator[Reply], spool: UpdateSpool) -> Iterator[Update]:
        """The usable updates, one by one. A site whose update is not usable is left out.

        Updates stream as long as none has to wait for the others. From the first one that has to,
        all wait in `spool`, so that their order, and with it the bytes of the result, remains.
        """
        self.guard.start_round(self.payload, self.method.uploads)
        pending_facts = []
        digests: set[bytes] = set()
        for reply in replies:
            try:
                self._check_expected(reply)
            except UpdateError as error:
                self._refuse(reply.site, error)
                continue
            self.observer.on_site_done(self.payload.round, reply)
            self.site_seconds[reply.site] = reply.seconds
            self.simulation_metrics[reply.site] = reply.simulation_metrics
            try:
                update, facts = self._examine(reply)
            except UpdateError as error:
                self._refuse(reply.site, error)
                continue
            streams = len(spool) == 0 and self._can_stream()
            is_usual = self.guard.is_usual(facts, digests)
            self.facts.append(facts)
            if facts.digest:
                digests.add(facts.digest)
            if streams and is_usual:
                yield self._use(update, self._bound(update, facts))
            else:
                pending_facts.append(facts)
                spool.add(update)
        self._report_repetitions()
        yield from self._judge(pending_facts, spool)

    def _examine(self, reply: Reply) -> tuple[Update, UpdateFacts]:
        """The update of a reply, if it is usable on its own. A late one is discounted."""
        update = self._check(reply)
        old_payload = reply.late_to
        if old_payload is None:
            return update, self.guard.examine(update)
        bound = self.experiment.config.federation.staleness
        check_lateness(self.method, old_payload, self.payload, bound)
        facts = self.guard.examine(update, old_payload)
        rounds = self.payload.round - old_payload.round
        weight = late_weight(rounds)
        self.rounds_late[reply.site] = rounds
        update = rebase(update, old_payload.weights, self.payload.weights, weight)
        return self.method.trim_late(update), facts.discounted(weight)

    def _judge(self, pending_facts: Sequence[UpdateFacts], spool: UpdateSpool) -> Iterator[Update]:
        """The usable ones among the updates that had to wait."""
        positions = []
        scalings: dict[int, Scaling] = {}
        round_facts = RoundFacts(self.facts)
        for position, facts in enumerate(pending_facts):
            try:
                scalings[position] = self.guard.judge(facts, round_facts)
                positions.append(position)
            except UpdateError as error:
                self._refuse(facts.site, error)
        if self.rule.needs_all:
            yield from self._combine(positions, spool)
            return
        for position in positions:
            update, facts = spool.update(position), pending_facts[position]
            if scalings[position].factors:
                update, facts = self._scale(update, facts, scalings[position])
            yield self._use(update, self._bound(update, facts))

    def _scale(
        self, update: Update, facts: UpdateFacts, scaling: Scaling
    ) -> tuple[Update, UpdateFacts]:
        """The update with changes of the usual norm; the guard remembers it like this."""
        factors = scaling.factors
        times = ", ".join(f"{1.0 / factor:.1f}" for factor in factors.values())
        measure = "usual norm"
        if self.guard.norms.is_opposed(update.site):
            measure = "influence of another site"
        self.observer.on_message(
            f"round {self.payload.round + 1}: the change of {update.site} is scaled down to the"
            f" {measure}: it was {times} times as large"
        )
        self.scaled_sites[update.site] = min(factors.values())
        scaled_facts = facts.scaled(scaling)
        self.facts[self.facts.index(facts)] = scaled_facts
        for part, factor in factors.items():
            update = self._scale_part(update, part, factor)
        return update, scaled_facts

    def _scale_part(self, update: Update, part: str, factor: float) -> Update:
        if part == MODEL:
            weights = scale_change(update.weights, self.payload.weights, factor)
            return replace(update, weights=weights)
        names = averaged_extras(self.method.uploads, update.extras)
        values = {name: update.extras[name] for name in names}
        reference = received_arrays(self.payload, part, values)
        return replace(update, extras={**update.extras, **scale_change(values, reference, factor)})

    def _combine(self, positions: Sequence[int], spool: UpdateSpool) -> Iterator[Update]:
        """The updates with the model and the extras that the rule makes of all of them."""
        model = combine_models(self.rule, spool, positions, self.payload.weights)
        extras = combine_extras(
            self.rule, spool, positions, self.method.uploads, self.payload.extras
        )
        for position, result in zip(positions, extras, strict=True):
            update = spool.update(position)
            yield self._use(update, replace(update, weights=model, extras=result))

    def _can_stream(self) -> bool:
        needs_level = self.rule.needs_level and self.guard.level() is None
        return not self.rule.needs_all and not needs_level

    def _bound(self, update: Update, facts: UpdateFacts) -> Update:
        """The update with its change scaled down, if the rule says so."""
        if not self.rule.needs_level:
            return update
        for part, part_facts in facts.parts.items():
            factor = self.rule.bound_change(part_facts.norm, self._level(part))
            if factor < 1.0:
                update = self._scale_part(update, part, factor)
        return update

    def _level(self, part: str) -> float:
        """The usual norm of a change; in the first round, when all sites have answered."""
        level = self.guard.level(part)
        if level is not None:
            return level
        norms = [item.parts[part].norm for item in self.facts if part in item.parts]
        nonzero_norms = [norm for norm in norms if norm > 0.0]
        return lower_median(nonzero_norms) if nonzero_norms else 0.0

    def _use(self, update: Update, result: Update) -> Update:
        """Write down what the site sent; `result` is what the method gets of it."""
        self.bytes_up += num_bytes(update.weights) + num_bytes(update.extras)
        self.drift.append(stability(self.payload.weights, update.weights, self.trainable))
        values = {**_loggable_extras(update), **self.simulation_metrics[update.site]}
        if update.site in self.scaled_sites:
            values["scaled_down"] = self.scaled_sites[update.site]
        rounds_late = self.rounds_late.get(update.site)
        if rounds_late is not None:
            values["rounds_late"] = rounds_late
            self.observer.on_message(
                f"round {self.payload.round + 1}: the update of {update.site} for round"
                f" {self.payload.round - rounds_late + 1} counts with a smaller weight"
            )
        self.sites[update.site] = SiteRecord(update.num_samples, values)
        return result

    def _refuse(self, site: str, error: UpdateError) -> None:
        reason = one_line(error.message)  # it may quote names that the site has chosen
        name = self._display_name(site)
        key = (name, error.code)
        self.num_refusals[key] = self.num_refusals.get(key, 0) + 1
        if self.num_refusals[key] > 1:  # thousands of answers are one message
            return
        self.refusals[name] = reason
        self.observer.on_message(f"round {self.payload.round + 1}: {name} is left out: {reason}")
        if is_blamed(error):
            self.blame.append(site)
        if is_malformed(error):
            self.malformed_sites.append(site)
        if error.code == REVERSAL_CODE:
            self.reversed_sites.append(site)

    def _display_name(self, site: str) -> str:
        """The name of a site in messages and files. A stranger may call itself anything.

        All strangers beyond the first few have one name: they must not fill the log.
        """
        if site in self.experiment.names:
            return site
        name = one_line(site, _MAX_STRANGER_NAME)
        if name in self.experiment.names:  # it looks like one of ours
            name = f"{name} (another name)"
        if name not in self.strangers and len(self.strangers) >= _MAX_STRANGERS:
            return "other unknown names"
        self.strangers.add(name)
        return name

    def _report_repetitions(self) -> None:
        for (name, _), count in self.num_refusals.items():
            if count > 1:
                self.observer.on_message(
                    f"round {self.payload.round + 1}: {name} sent {count:,} such answers"
                )

    def _check(self, reply: Reply) -> Update:
        update = reply.update
        if update is not None or reply.is_malformed:
            self.guard.check_participation(reply.site)
        if update is None and reply.is_malformed:
            raise UpdateError(
                "update.malformed-message",
                reply.error or "its message cannot be used",
                fix="check that the site runs the same version; look for a damaged connection",
            )
        if update is None:
            raise UpdateError(
                "update.no-reply", reply.error or "no reply", fix="see the site's log"
            )
        if update.site != reply.site:
            raise UpdateError(
                "update.wrong-site",
                f"the update is signed {update.site!r}",
                fix="let every site answer only for itself",
            )
        check_update(update, self.payload.weights, self.method.uploads, self.experiment.dims)
        if reply.memory_since is not None:
            self.guard.check_memory(reply.site, reply.memory_since)
        if reply.declared_samples is not None:
            self.guard.check_declaration(update, reply.declared_samples)
        return update

    def _check_expected(self, reply: Reply) -> None:
        """Engines ask every site once; a reply that nobody waits for must not count all the same.

        An update for an earlier round may come from a site that this round does not ask. A reply
        without content is the engine's own: it says why there is no answer.
        """
        if reply.update is None and not reply.is_malformed:
            return
        names = self.names if reply.late_to is None else self.experiment.names
        if reply.site not in names:
            raise UpdateError(
                "update.not-asked",
                "it was not asked in this round",
                fix="look at the engine that carries the messages",
            )
        if reply.site in self.answered_sites:
            raise UpdateError(
                "update.second-reply",
                "it answered twice in this round; the second answer is left out",
                fix="look for a second node that runs under the name of this site",
            )
        self.answered_sites.add(reply.site)

    def check_quorum(self) -> None:
        """Stop the run if too few sites sent a usable update."""
        excluded_sites = self.guard.sites_put_aside()
        names = [name for name in self.names if name not in excluded_sites]
        quorum = quorum_of(self.experiment.config, len(names))
        if len(self.sites) >= quorum:
            return
        site, reason = next(iter(self.refusals.items()), ("no site", "no reply"))
        raise QuorumError(
            "round.quorum-not-reached",
            f"round {self.payload.round + 1}: {len(self.sites)} of {len(names)} sites sent a usable"
            f" update, but {quorum} are needed; the first problem is at {site}: {reason}",
            fix="fix this site and the others named in the log, then run `fedgsca resume`;"
            " finished rounds are kept",
        )

    def check_aggregate(self, state: ServerState) -> None:
        """Stop the run before a model that is not usable becomes a checkpoint."""
        name = absurd_array(state.weights)
        if name is None:
            return
        largest = max(self.facts, key=lambda item: item.norm, default=None)
        suspect = "no site" if largest is None else f"{largest.site}, norm {largest.norm:.4g}"
        raise UpdateError(
            "round.invalid-aggregate",
            f"round {self.payload.round + 1}: the new model has numbers in {name} that are not "
            f"finite or absurd; the largest change came from {suspect}",
            fix="check this site, then run `fedgsca resume`; finished rounds are kept",
        )

    def end_round(self) -> None:
        """Let the guard remember the round, and report sites that are put aside from now on."""
        excluded_sites = self.guard.sites_put_aside()
        self.guard.remember(
            self.payload.round,
            self.facts,
            self.sites.keys(),
            self.blame,
            self.reversed_sites,
            self.malformed_sites,
        )
        self.opposed_sites = self.guard.opposition.messages
        for site, text in self.opposed_sites.items():
            self.observer.on_message(f"{ALARM}, round {self.payload.round + 1}: {site}: {text}")
        for site in self.guard.sites_put_aside():
            if site not in excluded_sites:
                self.observer.on_message(
                    f"{site} is put aside from round {self.payload.round + 2} on; "
                    f"`fedgsca readmit RUN {site}` lets it take part again"
                )


def quorum_of(config: Config, sites: int) -> int:
    """How many usable updates a round needs."""
    return max(1, math.ceil(config.federation.quorum * sites))


def _loggable_extras(update: Update) -> dict[str, SiteValue]:
    """Small extras as plain numbers and lists; a value that is not finite becomes None."""
    values: dict[str, SiteValue] = {}
    for name, array in update.extras.items():
        if np.size(array) <= LOG_LIMIT:
            plain = np.asarray(array).astype(object)
            plain[np.asarray(~np.isfinite(array))] = None
            values[name] = plain.tolist()
    return values
