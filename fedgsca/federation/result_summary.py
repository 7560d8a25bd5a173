"""From the rounds of a finished run to its result."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.federation.final_statistics import (
    FinalPredictions,
    summarise_counts,
    summarise_predictions,
)
from fedgsca.federation.records import (
    BestRound,
    ClassResult,
    FinalStatistics,
    LastRound,
    RoundRecord,
    RunResult,
    Timing,
    TimingRecord,
    Traffic,
    UnseenChoice,
    comparable_rounds,
)
from fedgsca.federation.simulation import Experiment
from fedgsca.methods.base import Logged
from fedgsca.metrics import HEADLINE_ROUNDS, headline, per_class
from fedgsca.support.version import __version__


def summarise_run(
    rounds: Sequence[RoundRecord],
    timing: Sequence[TimingRecord],
    experiment: Experiment,
    log_declaration: Logged,
    predictions: FinalPredictions | None = None,
) -> RunResult:
    """The content of result.json. `log_declaration` names the method's unusual events.

    `predictions` are those of the final model; None: this machine has no test images.
    """
    config, table = experiment.config, experiment.table
    scores = tested_rounds(rounds)
    last = scores[-1]
    best = max(scores, key=lambda score: score.f1)
    last_record = next(record for record in rounds if record.round == last.round)
    return RunResult(
        f1=headline([score.f1 for score in scores]),
        recall=headline([score.recall for score in scores]),
        precision=headline([score.precision for score in scores]),
        best=BestRound(best.round, best.f1),
        last=last,
        per_class=summarise_classes(table.classes, last),
        method=config.method,
        noise=config.noise.spec,
        seed=config.seed,
        data=table.name,
        rounds=config.train.rounds,
        seconds=summarise_timing(timing),
        peak_memory_mb=peak_memory_mb(),
        bytes_per_round=mean_traffic(rounds),
        guard_events=count_events(rounds, log_declaration),
        realised_noise=realised_rates(experiment),
        fingerprint=config.fingerprint(),
        data_fingerprint=table.fingerprint,
        version=__version__,
        machine=describe_machine(),
        unseen=choose_unseen(rounds),
        privacy=last_record.privacy,
        statistics=summarise_final_model(last_record, experiment, predictions),
    )


def summarise_final_model(
    last_record: RoundRecord, experiment: Experiment, predictions: FinalPredictions | None
) -> FinalStatistics | None:
    """Intervals, ranking and calibration; from the sites' counts where there are no images."""
    table = experiment.table
    if predictions is None:
        return summarise_counts(last_record, table.classes)
    return summarise_predictions(predictions, table.classes, last_record.round, table.group_word)


def expected_scores(rounds: Sequence[RoundRecord]) -> dict[int, float]:
    """Round -> macro F1 that the evidence expects of its model.

    Sites score the model that they receive, so the score of a round is in the record of the next.
    """
    scores = {}
    for record in rounds:
        if record.expected_f1 is not None:
            scores[record.round - 1] = record.expected_f1
    return scores


def choose_unseen(rounds: Sequence[RoundRecord]) -> UnseenChoice | None:
    """The best rounds by the expected F1; None without held-out images.

    Means over five rounds, as the headline: a single round can be lucky. Of equal means, the later.
    """
    scores = expected_scores(rounds)
    windows: list[tuple[float, int]] = []
    for end in sorted(scores):
        window = [scores.get(end - i) for i in range(HEADLINE_ROUNDS)]
        values = [score for score in window if score is not None]
        if len(values) == HEADLINE_ROUNDS:
            windows.append((float(np.mean(values)), end))
    if not windows:
        return None
    best, end = max(windows)
    f1 = [record.f1 for record in rounds if end - HEADLINE_ROUNDS < record.round <= end]
    values = [score for score in f1 if score is not None]
    mean_f1 = float(np.mean(values)) if values else None
    return UnseenChoice(round=end, expected_f1=best, f1=mean_f1, last=windows[-1][0])


def tested_rounds(rounds: Sequence[RoundRecord]) -> list[LastRound]:
    """The scores of the rounds that were tested on the same images as the last one; not empty."""
    scores = []
    for record in comparable_rounds(rounds):
        if record.f1 is None or record.recall is None or record.precision is None:
            continue
        confusion = record.confusion or ()
        scores.append(
            LastRound(record.round, record.f1, record.recall, record.precision, confusion)
        )
    if not scores:
        raise RunFolderError(
            "run.never-tested",
            "the model is trained, but it was never tested: neither the coordinator nor any site"
            " has test images",
            fix="give some site a test split, or set federation.test at the coordinator; the last"
            " checkpoint contains the model",
        )
    return scores


def summarise_classes(classes: Sequence[str], last: LastRound) -> dict[str, ClassResult]:
    """Scores of every class in the last round."""
    entries = per_class(np.array(last.confusion))
    return {
        name: ClassResult.from_json(entry) for name, entry in zip(classes, entries, strict=True)
    }


def mean_traffic(rounds: Sequence[RoundRecord]) -> Traffic:
    """The mean over all rounds: what travels in addition in some of them is part of the cost."""
    up = np.mean([record.bytes_up for record in rounds])
    down = np.mean([record.bytes_down for record in rounds])
    return Traffic(up=round(float(up)), down=round(float(down)))


def summarise_timing(timing: Sequence[TimingRecord]) -> Timing:
    """Total seconds, and the median round and its phases."""
    totals = [record.total for record in timing]
    return Timing(
        total=float(sum(totals)),
        per_round=float(np.median(totals)),
        exchange=float(np.median([record.exchange for record in timing])),
        evaluate=float(np.median([record.evaluate for record in timing])),
        save=float(np.median([record.save for record in timing])),
    )


def count_events(rounds: Sequence[RoundRecord], log_declaration: Logged) -> int:
    """How often a site reported one of the method's unusual events, over all rounds."""
    total = 0
    for record in rounds:
        for site in record.sites.values():
            total += sum(int(site.number(name) or 0) for name in log_declaration.events)
    return total


def realised_rates(experiment: Experiment) -> Mapping[str, float | None]:
    """Share of wrong labels of every site on this machine; None where the truth is unknown."""
    rates: dict[str, float | None] = {}
    for name, samples in experiment.sites.items():
        truth = experiment.truth.get(name)
        rates[name] = None if truth is None else float(np.mean(truth != samples.labels))
    return rates


def peak_memory_mb() -> float:
    """The largest amount of memory that this process has used; 0 where this is not known."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1024**2 if sys.platform == "darwin" else 1024  # bytes on macOS, kilobytes on Linux
    return peak / unit


def describe_machine() -> str:
    """The machine of a run, for people who compare times."""
    system = f"{platform.system()} {platform.machine()}"
    return f"{system}, {os.cpu_count()} cores, Python {platform.python_version()}"
