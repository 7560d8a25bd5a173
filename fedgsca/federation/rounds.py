"""The round loop, the same for every method and engine.

    broadcast -> exchange with the sites -> aggregate -> evaluate -> save

A run that is killed at any point continues from its last checkpoint and ends in the same bytes: all
randomness is addressed, a site's memory is versioned by round, and lines of metrics.jsonl beyond
the checkpoint are removed before the loop continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedgsca.config import SITES_SOURCE, Config
from fedgsca.config.loading import unknown_agreement
from fedgsca.errors import ConfigError, QuorumError, UpdateError
from fedgsca.federation import checkpoint
from fedgsca.federation.base import Engine, PatientEngine, RunObserver, SiteEvaluator
from fedgsca.federation.filters.base import UpdateFilter, memory_of, restore_memory
from fedgsca.federation.filters.form import number_problem
from fedgsca.federation.filters.lateness import LateSites
from fedgsca.federation.filters.rule import make_filters
from fedgsca.federation.intake import Intake
from fedgsca.federation.local import LocalEngine, SiteRunner
from fedgsca.federation.privacy import spent_epsilon
from fedgsca.federation.processes import ProcessEngine
from fedgsca.federation.records import RoundRecord, RunResult, TimingRecord, finite
from fedgsca.federation.run_folder import RunFolder, read_result, read_rounds
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.federation.site_evaluation import (
    ModelScores,
    pool_scores,
    predict_test_images,
    score_model,
)
from fedgsca.methods.base import Method, ServerState, compose_method
from fedgsca.methods.parts.holdout import read_score
from fedgsca.methods.site import weights_of
from fedgsca.metrics import HEADLINE_ROUNDS
from fedgsca.rng import stream
from fedgsca.wire import Arrays, Payload, check_extras

NO_HEADS_MESSAGE = (
    "evidence heads are off under privacy: `fedgsca audit` will find no evidence in this run"
)


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
    observer = observer or RunObserver()
    with RunFolder(out, config) as folder:
        result = read_result(out)
        if result is not None:
            return result
        folder.check_version()
        experiment = experiment or prepare(config, folder=out)
        problem = unknown_agreement(config, experiment.names)
        if problem is not None:
            raise ConfigError("config.unknown-site", problem, fix="correct the name of the site")
        spent_epsilon(config, 1)  # a missing accountant is noticed before the first round
        method = compose_method(config)
        runner = SiteRunner(experiment, method, out)
        folder.write_setup(experiment)
        newest = checkpoint.read_latest(folder.checkpoints, config.fingerprint())
        if newest is None:
            newest = checkpoint.Checkpoint(method.start(weights_of(runner.model), config.seed))
        else:
            checkpoint.check_companions(out, newest)
        state = newest.state
        filters = make_filters(config, method, experiment.names, experiment.dims)
        restore_memory(filters, newest.filters)
        folder.cut_metrics(state.round)
        observer.on_start(experiment, state.round)
        observer.on_history(read_rounds(out))
        if config.privacy is not None and config.audit.enabled:
            observer.on_message(NO_HEADS_MESSAGE)
        end_round = config.train.rounds
        if stop_after is not None:
            end_round = min(end_round, stop_after)
        carrier = engine or _local_engine(runner, jobs)
        if config.federation.simulated_lateness > 0:
            carrier = LateSites(carrier, config, experiment.names, out)
        loop = RoundLoop(method, carrier, runner, folder, observer, filters)
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
    """Processes where they save time: a head on frozen features trains faster than they start."""
    sites = list(runner.experiment.sites)
    if jobs > 1 and len(sites) > 1 and not runner.experiment.config.model.frozen:
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
    filters: Sequence[UpdateFilter]

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
        payload = self.method.broadcast(state, round_index)
        check_extras("payload", payload.extras, self.method.downloads, self.experiment.dims)
        intake = self._open_intake(payload, self._asked_sites(state, attempt))
        state = self._train_and_aggregate(state, intake)
        intake.check_quorum(config)
        check_model(state.weights, round_index)
        end_of_exchange = time.perf_counter()
        cpu = time.process_time() - start_cpu
        record = intake.finish(self.experiment)
        record = replace(record, expected_f1=read_score(state.extras, round_index))
        record = self._with_scores(record, state)
        end_of_evaluation = time.perf_counter()
        self._save(record, state)
        end = time.perf_counter()
        timing = TimingRecord(
            round=round_index,
            sites=intake.site_seconds,
            exchange=end_of_exchange - start,
            evaluate=end_of_evaluation - end_of_exchange,
            save=end - end_of_evaluation,
            cpu=cpu if isinstance(self.engine, LocalEngine) else None,
        )
        self.folder.append("timing.jsonl", timing)
        self.observer.on_round_done(record, end - start)
        return state

    def _asked_sites(self, state: ServerState, attempt: int) -> tuple[str, ...] | None:
        """The sites of the round, if it does not ask all."""
        config = self.experiment.config
        if not config.federation.is_partial or self.method.asks_all_sites(state):
            return None
        return draw_sites(config, self.experiment.names, state.round, attempt=attempt)

    def _open_intake(self, payload: Payload, asked_sites: tuple[str, ...] | None) -> Intake:
        # not at the top: it imports torch, and `fedgsca resume` of a finished run needs none
        from fedgsca.models.build import trainable_names

        return Intake(
            payload,
            self.experiment.names,
            asked_sites,
            self.filters,
            self.observer,
            trainable_names(self.runner.model),
            self.folder.path,
            self._logged_extras(),
        )

    def _logged_extras(self) -> frozenset[str] | None:
        """Extras that the log may name beside a hospital: those to which its settings agree."""
        if self.experiment.config.data.source != SITES_SOURCE:
            return None
        uploads = self.method.uploads
        return frozenset(name for name, extra in uploads.items() if extra.diagnostic)

    def _train_and_aggregate(self, state: ServerState, intake: Intake) -> ServerState:
        """Train at the sites and aggregate their updates.

        Nothing is trained before `aggregate` asks for the first update. `updates` is a chain of
        generators, so that one update at a time is in memory, unless a rule needs all of them:

            method.aggregate iterates over the updates
              -> intake.updates takes the next reply and passes it through the filters
                -> engine.exchange trains the next site
                  -> SiteRunner.run_round -> method.local_update, at the site
        """
        if intake.asked_sites is None:
            replies = self.engine.exchange(intake.payload)
        else:
            replies = self.engine.exchange(intake.payload, intake.asked_sites)
        return self.method.aggregate(state, intake.updates(replies))

    def _save(self, record: RoundRecord, state: ServerState) -> None:
        self.folder.append("metrics.jsonl", record)
        checkpoint.save(
            self.folder.checkpoints,
            state,
            self.experiment.config.fingerprint(),
            memory_of(self.filters),
            checkpoint.describe_companions(self.folder.path, state.round),
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
            if not math.isfinite(scores.loss):
                self.observer.on_message(
                    f"round {record.round + 1}: the loss on the test images is not finite, so it is"
                    " not recorded; the model may be diverging"
                )
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


def check_model(weights: Arrays, round_index: int) -> None:
    """Stop the run before a model that is not usable becomes a checkpoint.

    Every update has passed the same check, so the server half of the method has done it, for
    example by treating BatchNorm's buffers like parameters.
    """
    problem = number_problem(weights)
    if problem is not None:
        raise UpdateError(
            "round.invalid-model",
            f"round {round_index + 1}: the aggregated model is not valid: {problem}",
            fix="lower the learning rate, or correct the server half of the method: it must"
            " average buffers such as running_var, see fedgsca.methods.aggregate.is_buffer",
        )


def _is_tested(config: Config, round_index: int) -> bool:
    is_final = round_index >= config.train.rounds - HEADLINE_ROUNDS
    return is_final or round_index % config.federation.eval_every == 0


def draw_sites(
    config: Config, names: Sequence[str], round_index: int, *, attempt: int = 0
) -> tuple[str, ...]:
    """The sites that a round asks, in the order of their names: n, drawn without replacement.

    The draw depends on the seed, the round and the names only, so that a resumed run, worker
    processes and Flower ask the same sites. `attempt` counts the repetitions of a round because too
    few sites answered: the same sites may be away for long.
    """
    candidates = sorted(names)
    count = config.federation.num_asked(len(names))
    address: tuple[str | int, ...] = ("participation", round_index)
    if attempt:
        address = (*address, attempt)
    positions = stream(config.seed, *address).permutation(len(candidates))[:count]
    return tuple(candidates[position] for position in sorted(positions))
