"""Checks a submission: against its protocol, against itself and, on request, by a new run."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from benchmarks.protocols.conditions import (
    candidate_problems,
    protocol_config,
    shared_config,
)
from benchmarks.protocols.protocol import PROTOCOLS, Protocol, Tree
from benchmarks.protocols.run_protocol import ProtocolRunner, best_setting
from benchmarks.protocols.submission import Submission, TestRun
from fedgsca.config import flatten, unflatten
from fedgsca.errors import ConfigError, FedgscaError
from fedgsca.federation.rounds import run
from fedgsca.methods.base import load_methods
from fedgsca.metrics import HEADLINE_ROUNDS, scores
from fedgsca.support.text import plural
from fedgsca.support.version import __version__

_TOLERANCE = 1e-6  # percent points, of sums in another order
# F1 of a repeated run on another machine may differ by this much, in percent points
CLOSE = 1.0


@dataclass(frozen=True)
class SubmissionCheck:
    """What a check found: problems make a submission invalid, remarks do not."""

    problems: tuple[str, ...]
    remarks: tuple[str, ...]


def check_submission(submission: Submission) -> SubmissionCheck:
    """All checks that need nothing but the file."""
    problems = []
    if submission.digest != submission.content_digest():
        problems.append("the file was changed: its digest does not match its content")
    protocol = PROTOCOLS.get(submission.protocol.name)
    reference = submission.protocol
    if protocol is None or (protocol.version, protocol.digest()) != (
        reference.version,
        reference.digest,
    ):
        problems.append(f"this version does not have the protocol {reference.name} it names")
        return SubmissionCheck(tuple(problems), ())
    problems += _input_problems(submission, protocol)
    problems += _tuning_problems(submission, protocol)
    problems += _score_problems(submission, protocol)
    config_problems, remarks = _config_problems(submission, protocol)
    return SubmissionCheck((*problems, *config_problems), remarks)


def _input_problems(submission: Submission, protocol: Protocol) -> Iterator[str]:
    """Other images, weights or labels."""
    if submission.data_digest != protocol.data_digest:
        yield "the data is not that of the protocol"
    if submission.weights != protocol.weights:
        yield "the backbone's weights are not those of the protocol"
    for test_run in submission.runs:
        if test_run.labels != protocol.labels.get(test_run.seed):
            yield f"seed {test_run.seed}: the label file is not that of the protocol"


def _tuning_problems(submission: Submission, protocol: Protocol) -> Iterator[str]:
    """A broken tuning rule, or another choice than the rule's."""
    validation = submission.validation
    settings = [trial.setting for trial in validation]
    yield from candidate_problems(protocol, submission.method, settings)
    if not all(math.isfinite(trial.val_f1) for trial in validation):
        yield "a validation score is missing"
    elif validation and submission.chosen_setting != validation[best_setting(validation)].setting:
        yield "the chosen setting is not the one with the highest validation score"


def _score_problems(submission: Submission, protocol: Protocol) -> Iterator[str]:
    """Scores that do not follow from the confusion matrices."""
    seeds = tuple(test_run.seed for test_run in submission.runs)
    if seeds != protocol.seeds:
        yield f"the seeds are {list(seeds)} instead of {list(protocol.seeds)}"
        return
    for test_run in submission.runs:
        yield from _run_problems(test_run)
    values = [test_run.f1 for test_run in submission.runs]
    if not math.isclose(submission.f1, fmean(values), abs_tol=_TOLERANCE):
        yield "the mean F1 is not the mean of the seeds"
    if not math.isclose(submission.f1_std, stdev(values), abs_tol=_TOLERANCE):
        yield "the standard deviation is not that of the seeds"
    test_sizes = set()
    for test_run in submission.runs:
        test_sizes |= {int(np.sum(matrix)) for matrix in test_run.confusions}
    if len(test_sizes) > 1:
        yield f"the confusion matrices count {sorted(test_sizes)} test images"


def _run_problems(test_run: TestRun) -> Iterator[str]:
    place = f"seed {test_run.seed}"
    if len(test_run.confusions) != HEADLINE_ROUNDS:
        yield f"{place}: {len(test_run.confusions)} confusion matrices instead of {HEADLINE_ROUNDS}"
        return
    results = [scores(np.array(matrix)) for matrix in test_run.confusions]
    for name in ("f1", "recall", "precision"):
        value = fmean(getattr(result, name) for result in results)
        if not math.isclose(getattr(test_run, name), value, abs_tol=_TOLERANCE):
            yield (
                f"{place}: the {name} is {getattr(test_run, name):.2f}, but the confusion matrices"
                f" give {value:.2f}"
            )


def _config_problems(
    submission: Submission, protocol: Protocol
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Problems and remarks about the configuration of the test runs."""
    method = submission.method
    if method not in load_methods():
        remark = f"{method} is not installed here, so the configuration was not checked"
        return (), (remark,)
    setting = unflatten(submission.chosen_setting)
    try:
        config = protocol_config(protocol, "synthetic", method, setting, protocol.seeds[0])
    except ConfigError as error:
        return (f"the chosen setting is not valid: {error.message}",), ()
    differences = _config_differences(submission, shared_config(config), protocol)
    version = submission.software.get("fedgsca", "")
    if version == __version__:
        return tuple(differences), ()
    # another version may have other options, but not another protocol
    option_lines = tuple(line for line in differences if line.startswith(f"{method}."))
    protocol_lines = tuple(line for line in differences if line not in option_lines)
    remark = f"the submission is of version {version}, this is {__version__}"
    return protocol_lines, (remark, *option_lines)


def _config_differences(submission: Submission, demands: Tree, protocol: Protocol) -> list[str]:
    """Keys with other values than the protocol demands.

    A key that only one side has is one that another version added or removed: it counts if the
    protocol sets it.
    """
    fixed_keys = flatten(protocol.tree).keys() | {"noise.spec", "method"}
    differences = []
    for key in sorted(demands.keys() | submission.config.keys()):
        is_common = key in demands and key in submission.config
        if demands.get(key) != submission.config.get(key) and (is_common or key in fixed_keys):
            differences.append(
                f"{key} is {submission.config.get(key)!r}, the protocol has {demands.get(key)!r}"
            )
    return differences


def repeat_run(submission: Submission, data: str, seed: int) -> SubmissionCheck:
    """Run one seed again and compare: identical on the same machine, close on another one."""
    protocol = PROTOCOLS[submission.protocol.name]
    originals = {test_run.seed: test_run for test_run in submission.runs}
    if seed not in originals:
        raise FedgscaError(
            "benchmark.unknown-seed",
            f"the submission has no seed {seed}",
            fix=f"use one of: {', '.join(map(str, sorted(originals)))}",
        )
    original = originals[seed]
    with tempfile.TemporaryDirectory() as folder:
        runner = ProtocolRunner(protocol, data, Path(folder))
        runner.write_label_files()
        setting = unflatten(submission.chosen_setting)
        planned_run = runner.plan_run(submission.method, setting, seed)
        run(planned_run.config, planned_run.folder)
        repetition = runner.read_test_run(planned_run)
    if repetition.confusions == original.confusions:
        rounds = plural(HEADLINE_ROUNDS, "round")
        return SubmissionCheck((), (f"seed {seed}: identical predictions in the last {rounds}",))
    difference = repetition.f1 - original.f1
    text = f"seed {seed}: F1 {repetition.f1:.2f} here, {original.f1:.2f} in the file"
    if abs(difference) <= CLOSE:
        return SubmissionCheck((), (f"{text}; close, as expected of another machine",))
    return SubmissionCheck((text,), ())
