"""The round loop: broadcast, exchange, aggregate, evaluate, checkpoint. The same for every method and every engine.

Killed at any point, a run goes on from its last checkpoint and ends in the same bytes: all randomness is addressed, a site's memory
is versioned by round, and metrics lines beyond the checkpoint are cut off before the loop starts again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedgsca.config import Config
from fedgsca.engine import checkpoint
from fedgsca.engine.local import LocalEngine, ProcessEngine, Reply, SiteRunner
from fedgsca.engine.site_evaluation import SiteEvaluator, pooled
from fedgsca.errors import QuorumError, UpdateError
from fedgsca.experiment.run_folder import RunFolder
from fedgsca.experiment.simulation import Experiment, prepare
from fedgsca.methods.base import Method, ServerState, make_method
from fedgsca.metrics import confusion, scores, stability
from fedgsca.models.build import trainable_names
from fedgsca.privacy.accountant import spent
from fedgsca.site import Samples, load_weights, weights_of
from fedgsca.train import evaluate
from fedgsca.wire import Payload, Update, check_extras, check_update, num_bytes


class Engine(Protocol):
    """Carries a payload to every site and brings the replies back in the order of site names."""

    def exchange(self, payload: Payload) -> Iterator[Reply]: ...
    def close(self) -> None: ...


class RunObserver(Protocol):
    """Shows progress to a person."""

    def on_start(self, experiment: Experiment, first: int) -> None: ...
    def on_site_done(self, round: int, reply: Reply) -> None: ...
    def on_round_done(self, line: dict[str, Any], seconds: float) -> None: ...
    def on_message(self, message: str) -> None: ...


class SilentObserver:
    """A observer that shows nothing."""

    def on_start(self, experiment: Experiment, first: int) -> None: ...
    def on_site_done(self, round: int, reply: Reply) -> None: ...
    def on_round_done(self, line: dict[str, Any], seconds: float) -> None: ...
    def on_message(self, message: str) -> None: ...


@dataclass
class UpdateValidator:
    """Stands between the engine and the method: checks every update, counts, measures, and passes the good ones on."""

    method: Method
    payload: Payload
    experiment: Experiment
    trainable: tuple[str, ...]
    observer: RunObserver
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    drift: list[float] = field(default_factory=list)
    bytes_up: int = 0
    site_seconds: dict[str, float] = field(default_factory=dict)

    def accept(self, replies: Iterator[Reply]) -> Iterator[Update]:
        for reply in replies:
            self.observer.on_site_done(self.payload.round, reply)
            self.site_seconds[reply.site] = reply.seconds
            update = reply.update
            try:
                if update is None:
                    raise UpdateError(
                        "todo.rounds-1", reply.error or "no reply", fix="see the site's log"
                    )
                if update.site != reply.site:
                    raise UpdateError(
                        "todo.rounds-2",
                        f"the update is signed {update.site!r}",
                        fix="a site may answer only for itself",
                    )
                check_update(
                    update, self.payload.weights, self.method.uploads, self.experiment.dims
                )
            except UpdateError as error:
                self.refused[reply.site] = error.message
                self.observer.on_message(
                    f"round {self.payload.round + 1}: {reply.site} is left out: {error.message}"
                )
                continue
            self.bytes_up += num_bytes(update.weights) + num_bytes(update.extras)
            self.drift.append(stability(self.payload.weights, update.weights, self.trainable))
            self.sites[update.site] = {
                "num_samples": update.num_samples,
                **_numbers(update),
                **reply.observed,
            }
            yield update

    def check_quorum(self) -> None:
        needed = wanted(self.experiment.config, len(self.experiment.names))
        if len(self.sites) < needed:
            first = next(iter(self.refused.items()), ("no site", "no reply"))
            raise QuorumError(
                "todo.rounds-3",
                f"round {self.payload.round + 1}: {len(self.sites)} of {len(self.experiment.names)} sites sent a usable update, "
                f"{needed} are needed; first: {first[0]}: {first[1]}",
                fix="mend the named sites and run `fedgsca resume`; finished rounds are kept",
            )


def wanted(config: Config, sites: int) -> int:
    """How many usable updates a round needs."""
    return max(1, math.ceil(config.federation.quorum * sites))


def _numbers(update: Update) -> dict[str, Any]:
    """Small extras as plain numbers for the log; NaN (no fit) becomes null."""
    rows: dict[str, Any] = {}
    for name, value in update.extras.items():
        if np.size(value) <= 64:
            plain = np.asarray(value).astype(object)
            plain[np.asarray(~np.isfinite(value))] = None
            rows[name] = plain.tolist()
    return rows


def run(
    config: Config,
    out: Path,
    *,
    jobs: int = 1,
    observer: RunObserver | None = None,
    engine: Engine | None = None,
    experiment: Experiment | None = None,
    stop_after: int | None = None,
) -> dict[str, Any]:
    """Run or continue one experiment in its folder; returns the content of result.json (empty if stopped early on request).

    `experiment` is what this machine sees of it; without one, all sites are here.
    """
    observer = observer or SilentObserver()
    with RunFolder(out, config) as folder:
        finished = folder.result()
        if finished is not None:
            return finished
        begun = time.perf_counter()
        experiment = experiment or prepare(config)
        spent(config, 1)  # a missing accountant is noticed before the first round
        method = make_method(config.method, config.options, config.train.rounds)
        runner = SiteRunner(experiment, method, out)
        folder.write_setup(experiment)
        state = checkpoint.latest(folder.checkpoints, config.fingerprint()) or method.start(
            weights_of(runner.model), config.seed
        )
        folder.cut_metrics(state.round)
        observer.on_start(experiment, state.round)
        owned = engine is None
        if engine is None:
            many = jobs > 1 and len(experiment.sites) > 1
            engine = (
                ProcessEngine(config, list(experiment.sites), out, jobs)
                if many
                else LocalEngine(runner)
            )
        last = config.train.rounds if stop_after is None else min(config.train.rounds, stop_after)
        folder.note_startup(time.perf_counter() - begun)
        try:
            while state.round < last:
                state = _round(state, method, engine, runner, folder, observer)
        finally:
            if owned:
                engine.close()
        return folder.finish(state, experiment) if state.round >= config.train.rounds else {}


def _round(
    state: ServerState,
    method: Method,
    engine: Engine,
    runner: SiteRunner,
    folder: RunFolder,
    observer: RunObserver,
) -> ServerState:
    experiment, config, t = runner.experiment, runner.experiment.config, state.round
    clock = [time.perf_counter()]
    payload = method.broadcast(state, t)
    check_extras("payload", payload.extras, method.downloads, experiment.dims)
    validator = UpdateValidator(
        method, payload, experiment, trainable_names(runner.model), observer
    )
    state = method.aggregate(state, validator.accept(engine.exchange(payload)))
    validator.check_quorum()
    clock.append(time.perf_counter())
    line: dict[str, Any] = {
        "round": t,
        "lr": config.train.lr_at(t),
        "stability": float(np.mean(validator.drift)) if validator.drift else None,
    }
    if _evaluates(config, t):
        if experiment.test is not None:
            line |= evaluate_global(runner, state, experiment.test)
        elif isinstance(engine, SiteEvaluator):
            line |= pooled(
                engine.judge(Payload(t, state.weights)), experiment.dims, observer.on_message
            )
        if experiment.val is not None:
            line["val_f1"] = evaluate_global(runner, state, experiment.val)["f1"]
    clock.append(time.perf_counter())
    down = len(experiment.names) * (num_bytes(payload.weights) + num_bytes(payload.extras))
    line |= {
        "bytes_down": down,
        "bytes_up": validator.bytes_up,
        "sites": validator.sites,
        "refused": validator.refused,
    }
    budget = spent(config, t + 1)
    line |= {"privacy": budget} if budget is not None else {}
    folder.append_metrics(line)
    checkpoint.save(folder.checkpoints, state, config.fingerprint())
    clock.append(time.perf_counter())
    folder.append_timing(t, validator.site_seconds, clock)
    observer.on_round_done(line, clock[-1] - clock[0])
    return state


def _evaluates(config: Config, round: int) -> bool:
    return round % config.federation.eval_every == 0 or round >= config.train.rounds - 5


def evaluate_global(runner: SiteRunner, state: ServerState, samples: Samples) -> dict[str, Any]:
    """Scores of the aggregated model, in percent, and the confusion matrix (rows: true class)."""
    load_weights(runner.model, state.weights)
    seen = evaluate(runner.model, samples, runner.device)
    matrix = confusion(samples.labels, seen.predicted, samples.num_classes)
    found = scores(matrix)
    return {
        "f1": found.f1, "recall": found.recall, "precision": found.precision,
        "loss": float(np.mean(seen.losses)), "confusion": matrix.tolist(),
    }  # fmt: skip
