"""What a person sees when a run has ended: the sentences and the table of sites of its report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from fedgsca.support.console import print_line
from fedgsca.support.text import NBSP, duration, plural, size_text

if TYPE_CHECKING:
    from fedgsca.config import Config
    from fedgsca.federation.records import RunResult
    from fedgsca.lab.report.run_reader import LoadedRun

MAX_ROWS = 24  # sites that are listed one by one


def show_run(
    out: Path, config: Config, result: RunResult, command_seconds: float | None = None
) -> None:
    """Scores, what happened, the sites with the method's decisions, time and traffic.

    `command_seconds` is how long the command has taken, in seconds; None: it did not train.
    """
    from markupsafe import Markup

    from fedgsca.federation.filters.distance import DISTANT_TEXT
    from fedgsca.lab.report.run_facts import distant_rounds, grade_kappa, result_notes
    from fedgsca.lab.report.run_page import describe_run
    from fedgsca.lab.report.run_reader import read_run

    run = read_run(out, with_losses=False)
    print_line(
        f"\n{result.method} on {result.data}, noise {result.noise}, seed {result.seed},"
        f" {plural(result.rounds, 'round')}",
        "bold",
    )
    _show_scores(result)
    kappa = grade_kappa(run.setup, result.last.confusion)
    if kappa is not None:
        print_line(f"quadratic kappa {kappa:.2f} in the last round: the classes are grades")
    for sentence in describe_run(run)[1:]:  # the first one has the scores
        text = sentence.striptags() if isinstance(sentence, Markup) else sentence
        print_line(text.replace(NBSP, " "))
    _show_previous_run(run)
    _show_sites(run)
    print_line(f"notes   {'; '.join(result_notes(config, run.metrics))}")
    for site in sorted(distant_rounds(run)):
        print_line(f"far     {site}: {DISTANT_TEXT}", "yellow")
    seconds = result.seconds
    print_line(f"time    {_time_text(seconds.total, seconds.per_round, command_seconds)}")
    down = size_text(result.bytes_per_round.down)
    up = size_text(result.bytes_per_round.up)
    print_line(f"sent    {down} to the sites and {up} back, each round")
    print_line(f"folder  {out}; list doubtful labels: fedgsca audit {out}")


def _time_text(rounds: float, per_round: float, command_seconds: float | None) -> str:
    """The time that passed, with the part of it that is not rounds: reading images, features."""
    pace = f"{duration(per_round)} a round"
    if command_seconds is None:
        return f"{duration(rounds)}, {pace}"
    if command_seconds < rounds:  # an interrupted run that was continued
        return f"{duration(command_seconds)} now, {duration(rounds)} for all rounds, {pace}"
    return f"{duration(command_seconds)}: {duration(rounds)} for the rounds, {pace}"


def _show_scores(result: RunResult) -> None:
    from fedgsca.lab.report.elements import bounds_text

    num_last = min(5, result.rounds)
    scores = f"macro F1 {result.f1:.1f}"
    if num_last > 1:
        scores += (
            f"   recall {result.recall:.1f}   precision {result.precision:.1f}"
            f"   (mean of the last {num_last} rounds)"
        )
    print_line(scores)
    best = result.best
    print_line(f"best {best.f1:.1f} after round {best.round + 1}, last {result.last.f1:.1f}")
    statistics = result.statistics
    if statistics is not None:
        parts = [f"last round's F1 {statistics.f1.value:.1f}"]
        if statistics.f1.low is not None:
            parts[0] += f" (95 % interval {bounds_text(statistics.f1)}, by {statistics.unit})"
        if statistics.auroc is not None:
            parts.append(f"AUROC {statistics.auroc.value:.1f}")
        if statistics.average_precision is not None:
            parts.append(f"average precision {statistics.average_precision.value:.1f}")
        if statistics.calibration is not None:
            parts.append(f"calibration error {statistics.calibration.ece:.1f}")
        print_line("   ".join(parts).replace(NBSP, " "))
    if result.unseen is not None:
        print_line(
            f"expected F1 {result.unseen.last:.1f} in the last rounds, from held-out images without"
            f" a true label; best until round {result.unseen.round + 1}"
            f" ({result.unseen.expected_f1:.1f})"
        )


def _show_sites(run: LoadedRun) -> None:
    """One row per site: its labels, and the decisions about them, which simulations can judge."""
    from dataclasses import replace

    from fedgsca.lab.report.run_labels import column_table, label_columns, quality_columns
    from fedgsca.lab.table import print_tables

    table = column_table("", run.setup.sites, {**label_columns(run), **quality_columns(run)})
    if len(table.rows) > MAX_ROWS:
        note = f"{len(table.rows)} sites; the report has one row for each"
        table = replace(table, rows=table.rows[:MAX_ROWS], note=note)
    print_tables([table])


def _show_previous_run(run: LoadedRun) -> None:
    """For a run on corrected labels: the corrections, and their effect if there is a clear one."""
    from fedgsca.lab.report.previous_run import read_difference
    from fedgsca.lab.statistic import describe

    review = run.setup.labels.review if run.setup.labels else None
    previous = review.previous_run if review else None
    if review is None or previous is None or math.isnan(previous.f1):
        return
    num_changed = (review.counts or {}).get("changed", 0)
    reviewers = ", ".join(review.reviewers or ())
    print_line(f"labels  {plural(num_changed, 'label')} corrected by {reviewers}")
    difference = read_difference(run.path)
    if difference is not None:
        print_line(f"effect  {describe(difference, 'this run', difference.reference)}")
