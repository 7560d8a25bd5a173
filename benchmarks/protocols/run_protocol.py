"""Runs a protocol for one method: validation runs, the choice, test runs, the submission file.

OUT/labels-s<seed>.csv               file, site, true and given label of every training image
OUT/cells/<method>-.../              one run each; an interrupted protocol is resumed
OUT/<protocol>-v<n>-<method>.json    the submission
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.protocols.conditions import (
    check_candidates,
    check_inputs,
    digest_data,
    label_file,
    protocol_config,
    shared_config,
    software_versions,
)
from benchmarks.protocols.protocol import Protocol, Tree
from benchmarks.protocols.submission import (
    FORMAT,
    ProtocolReference,
    Submission,
    TestRun,
    ValidationRun,
    write_submission,
)
from fedgsca.config import Config, flatten
from fedgsca.errors import RunFolderError
from fedgsca.federation.base import RunObserver
from fedgsca.federation.records import RoundRecord
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds, read_setup
from fedgsca.federation.samples import weights_digest
from fedgsca.federation.simulation import divide
from fedgsca.methods.base import load_methods
from fedgsca.metrics import HEADLINE_ROUNDS
from fedgsca.support.files import write_atomic


@dataclass(frozen=True)
class BenchmarkRun:
    """One run of a protocol."""

    name: str
    config: Config
    folder: Path


# the observer of a run that starts now
ObserverFactory = Callable[[BenchmarkRun], RunObserver]


def silent_observer(benchmark_run: BenchmarkRun) -> RunObserver:
    """Shows nothing."""
    return RunObserver()


class ProtocolRunner:
    """A protocol on this machine's copy of its data."""

    def __init__(self, protocol: Protocol, data: str, out: Path) -> None:
        self.protocol = protocol
        self.data = data
        self.out = out

    def write_label_files(self) -> None:
        """Write the label files; stop unless data, weights and labels are the protocol's."""
        first_method = next(iter(load_methods()))
        digest = ""
        for seed in (*self.protocol.seeds, self.protocol.tuning_seed):
            config = protocol_config(self.protocol, self.data, first_method, {}, seed)
            division = divide(config)
            content = label_file(division)
            digest = digest or digest_data(self.data, division.table)
            check_inputs(
                self.protocol,
                seed,
                data_digest=digest,
                weights=weights_digest(config) or "",
                labels=hashlib.sha256(content).hexdigest(),
            )
            write_atomic(self.out / f"labels-s{seed}.csv", content)

    def plan_run(self, method: str, setting: Tree, seed: int) -> BenchmarkRun:
        """One run. Its folder is named after the configuration: another setting is another run."""
        config = protocol_config(self.protocol, self.data, method, setting, seed)
        name = f"{method}-s{seed}-{config.fingerprint()[:12]}"
        return BenchmarkRun(name, config, self.out / "cells" / name)

    def submit(
        self,
        method: str,
        candidates: Sequence[Tree],
        observer_of: ObserverFactory = silent_observer,
        note: str = "",
    ) -> Path:
        """Run everything that is missing for a method and write its submission file."""
        check_candidates(self.protocol, method, candidates)
        validation = []
        for setting in candidates:
            trial = self.plan_run(method, setting, self.protocol.tuning_seed)
            run(trial.config, trial.folder, observer=observer_of(trial))
            score = validation_score(read_rounds(trial.folder))
            validation.append(ValidationRun(flatten(setting), score))
        best = best_setting(validation)
        test_runs = []
        for seed in self.protocol.seeds:
            test = self.plan_run(method, candidates[best], seed)
            run(test.config, test.folder, observer=observer_of(test))
            test_runs.append(self.read_test_run(test))
        submission = self._compose(method, candidates[best], validation, test_runs, note)
        path = self.out / f"{self.protocol.name}-v{self.protocol.version}-{method}.json"
        write_submission(submission, path)
        return path

    def read_test_run(self, benchmark_run: BenchmarkRun) -> TestRun:
        """The record of a finished test run."""
        from fedgsca.federation.run_folder import read_result

        folder = benchmark_run.folder
        result = read_result(folder)
        if result is None:
            raise RunFolderError(
                "benchmark.unfinished-run",
                f"the run {folder} has no result",
                fix="run the command again; finished runs are kept",
            )
        seed = benchmark_run.config.seed
        content = (self.out / f"labels-s{seed}.csv").read_bytes()
        return TestRun(
            seed=seed,
            f1=result.f1,
            recall=result.recall,
            precision=result.precision,
            confusions=last_confusions(read_rounds(folder)),
            labels=hashlib.sha256(content).hexdigest(),
            signature=read_setup(folder).signature,
            seconds_per_round=round(result.seconds.per_round, 3),
            bytes_up=result.bytes_per_round.up,
        )

    def _compose(
        self,
        method: str,
        setting: Tree,
        validation: Sequence[ValidationRun],
        test_runs: Sequence[TestRun],
        note: str,
    ) -> Submission:
        protocol = self.protocol
        method_class = load_methods()[method]
        config = protocol_config(protocol, self.data, method, setting, protocol.seeds[0])
        scores = [test_run.f1 for test_run in test_runs]
        return Submission(
            format=FORMAT,
            protocol=ProtocolReference(protocol.name, protocol.version, protocol.digest()),
            method=method,
            title=method_class.card.title,
            paper=method_class.card.paper,
            data_digest=protocol.data_digest,
            weights=protocol.weights,
            validation=tuple(validation),
            chosen_setting=flatten(setting),
            config=shared_config(config),
            runs=tuple(test_runs),
            f1=fmean(scores),
            f1_std=stdev(scores),
            software=software_versions(),
            note=note,
        )


def validation_score(rounds: Sequence[RoundRecord]) -> float:
    """F1 on the validation images, mean of the last five rounds in which it was measured."""
    scores = [record.val_f1 for record in rounds if record.val_f1 is not None]
    return fmean(scores[-HEADLINE_ROUNDS:])


def best_setting(validation: Sequence[ValidationRun]) -> int:
    """The position of the highest validation score; the first of equals."""
    return max(range(len(validation)), key=lambda index: validation[index].val_f1)


def last_confusions(
    rounds: Sequence[RoundRecord],
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The confusion matrices of the last five rounds that were tested."""
    matrices = [record.confusion for record in rounds if record.confusion]
    return tuple(matrices[-HEADLINE_ROUNDS:])
