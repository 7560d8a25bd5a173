"""The round loop, the same for every method and engine.

    broadcast -> exchange with the sites -> aggregate -> evaluate -> save

A run that is killed at any point continues from its last checkpoint and ends in the same bytes: all
randomness is addressed, a site's memory is versioned by round, and lines of metrics.jsonl beyond
the checkpoint are removed before the loop continues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedgsca.config import Config
from fedgsca.engine import checkpoint
from fedgsca.engine.base import Engine, Reply, RunObserver, SilentObserver, SiteEvaluator
from fedgsca.engine.local import LocalEngine, SiteRunner
from fedgsca.engine.processes import ProcessEngine
from fedgsca.engine.run_companions import check_companions, describe_companions
from fedgsca.engine.site_evaluation import ModelScores, pool_scores, score_model
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
from fedgsca.methods.base import Method, ServerState, make_method
from fedgsca.metrics import HEADLINE_ROUNDS, stability
from fedgsca.models.build import trainable_names
from fedgsca.privacy.accountant import spent_epsilon
from fedgsca.site import weights_of
from fedgsca.support.text import one_line
from fedgsca.wire import Arrays, Payload, Update, check_extras, check_update, num_bytes

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
        experiment = experiment or prepare(config)
        spent_epsilon(config, 1)  # a missing accountant is noticed before the first round
        method = make_method(config.method, config.options, config.train.rounds)
        runner = SiteRunner(experiment, method, out)
        folder.write_setup(experiment)
        state = checkpoint.latest(folder.checkpoints, config.fingerprint())
        if state is None:
            state = method.start(weights_of(runner.model), config.seed)
        else:
            companions = checkpoint.read_companions(folder.checkpoints, state.round)
            check_companions(out, state.round, companions)
        folder.cut_metrics(state.round)
        observer.on_start(experiment, state.round)
        end_round = config.train.rounds
        if stop_after is not None:
            end_round = min(end_round, stop_after)
        loop = RoundLoop(method, engine or _local_engine(runner, jobs), runner, folder, observer)
        try:
            while state.round < end_round:
                state = loop.run_round(state)
        finally:
            if engine is None:
                loop.engine.close()
        if state.round < config.train.rounds:
            return None
        return folder.finish(state, experiment, method)


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

    @property
    def experiment(self) -> Experiment:
        """The experiment as far as it is on this machine."""
        return self.runner.experiment

    def run_round(self, state: ServerState) -> ServerState:
        """One communication round: `state` is before it, the returned state after it."""
        config, round_index = self.experiment.config, state.round
        start = time.perf_counter()
        payload = self.method.broadcast(state, round_index)
        check_extras("payload", payload.extras, self.method.downloads, self.experiment.dims)
        state, validator = self._train_and_aggregate(state, payload)
        end_of_exchange = time.perf_counter()
        record = self._with_scores(self._record(validator, payload), state)
        end_of_evaluation = time.perf_counter()
        self.folder.append_metrics(record)
        companions = describe_companions(self.folder.path, state.round)
        checkpoint.save(self.folder.checkpoints, state, config.fingerprint(), companions)
        end = time.perf_counter()
        timing = TimingRecord(
            round=round_index,
            sites=validator.site_seconds,
            exchange=end_of_exchange - start,
            evaluate=end_of_evaluation - end_of_exchange,
            save=end - end_of_evaluation,
        )
        self.folder.append_timing(timing)
        self.observer.on_round_done(record, end - start)
        return state

    def _train_and_aggregate(
        self, state: ServerState, payload: Payload
    ) -> tuple[ServerState, UpdateValidator]:
        """Train at the sites and aggregate their updates.

        Nothing is trained before `aggregate` asks for the first update. `updates` is a chain of
        generators, so that one update at a time is in memory:

            method.aggregate iterates over the updates
              -> validator.accept takes the next reply and checks it
                -> engine.exchange trains the next site
                  -> SiteRunner.run_round -> method.local_update, at the site
        """
        trainable = trainable_names(self.runner.model)
        validator = UpdateValidator(self.method, payload, self.experiment, trainable, self.observer)
        replies = self.engine.exchange(payload)
        updates = validator.accept(replies)
        state = self.method.aggregate(state, updates)  # iterating over the updates trains the sites
        validator.check_quorum()
        check_model(state.weights, payload.round)
        return state, validator

    def _record(self, validator: UpdateValidator, payload: Payload) -> RoundRecord:
        """The line of metrics.jsonl, without scores."""
        config = self.experiment.config
        payload_bytes = num_bytes(payload.weights) + num_bytes(payload.extras)
        mean_drift = float(np.mean(validator.drift)) if validator.drift else None
        return RoundRecord(
            round=payload.round,
            lr=config.train.lr_at(payload.round),
            stability=mean_drift,
            bytes_up=validator.bytes_up,
            bytes_down=len(self.experiment.names) * payload_bytes,
            sites=validator.sites,
            refusals=validator.refusals,
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
    """Refuse aggregated weights that no site can use: the last good checkpoint then stays.

    Every number must be finite, and a variance that BatchNorm keeps must not be negative.
    """
    for name, array in weights.items():
        problem = ""
        if not np.isfinite(array).all():
            problem = "has values that are not finite"
        elif name.endswith("running_var") and (array < 0).any():
            problem = "is a variance and has negative values"
        if problem:
            raise UpdateError(
                "round.invalid-model",
                f"round {round_index + 1}: the aggregated model is not valid: {name} {problem}",
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
    sites: dict[str, SiteRecord] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)  # site -> reason
    drift: list[float] = field(default_factory=list)  # change of the weights at each site
    bytes_up: int = 0
    site_seconds: dict[str, float] = field(default_factory=dict)

    def accept(self, replies: Iterator[Reply]) -> Iterator[Update]:
        """The usable updates, one by one. A site whose update is not usable is left out."""
        for reply in replies:
            self.observer.on_site_done(self.payload.round, reply)
            self.site_seconds[reply.site] = reply.seconds
            try:
                update = self._check(reply)
            except UpdateError as error:
                reason = one_line(error.message)  # it may quote names that the site has chosen
                self.refusals[reply.site] = reason
                self.observer.on_message(
                    f"round {self.payload.round + 1}: {reply.site} is left out: {reason}"
                )
                continue
            self.bytes_up += num_bytes(update.weights) + num_bytes(update.extras)
            self.drift.append(stability(self.payload.weights, update.weights, self.trainable))
            values = {**_loggable_extras(update), **reply.simulation_metrics}
            self.sites[update.site] = SiteRecord(update.num_samples, values)
            yield update

    def _check(self, reply: Reply) -> Update:
        update = reply.update
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
        return update

    def check_quorum(self) -> None:
        """Stop the run if too few sites sent a usable update."""
        names = self.experiment.names
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
