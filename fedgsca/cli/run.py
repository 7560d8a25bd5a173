"""`fedgsca run` and `fedgsca resume`."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import (
    EngineName,
    Jobs,
    Json,
    Quiet,
    Settings,
    Track,
    experiment_options,
    source_slug,
)
from fedgsca.errors import RunFolderError
from fedgsca.federation.progress import display
from fedgsca.support.console import (
    print_json,
    print_line,
    print_note,
    print_start,
    print_warning,
    resume_hint,
)
from fedgsca.support.text import NBSP, duration, plural, size_text, slug

if TYPE_CHECKING:
    from fedgsca.config import Config
    from fedgsca.federation.records import RunResult
    from fedgsca.lab.report.run_reader import LoadedRun

Out = Annotated[
    Path | None,
    typer.Option("--out", help="run folder; default runs/<data>-<method>-<noise>-s<seed>"),
]
MoreRounds = Annotated[
    int | None,
    typer.Option("--rounds", min=1, help="train a copy of a finished run up to this round"),
]
LongerOut = Annotated[
    Path | None, typer.Option("--out", help="with --rounds: folder of the copy; default RUN-<N>")
]
FromRound = Annotated[
    int | None,
    typer.Option(
        "--from",
        metavar="ROUND",
        help="go back and run this round and all later ones again; the last four rounds are kept",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run or a comparison")]


@experiment_options()
def run(
    settings: Settings,
    out: Out = None,
    jobs: Jobs = 1,
    engine: EngineName = "local",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train one method on one data set, with a report at the end."""
    from fedgsca.cli.chosen_settings import announce, complete_config
    from fedgsca.cli.config import explain_preset
    from fedgsca.federation.base import find_engine
    from fedgsca.federation.data_source import load_once

    find_engine(engine)  # a typo is reported before any data is read
    check_track(settings.get("track"))
    start = time.monotonic()
    config = settings.load()
    folder = out or default_out(config)
    print_start(_describe(config), quiet=quiet or as_json)
    with load_once():
        config = complete_config(config, quiet=quiet)
        if not quiet:
            explain_preset(config)
            if not (folder / "result.json").exists():
                announce([config])
        run_and_report(
            config,
            folder,
            jobs=jobs,
            engine=engine,
            track=settings.get("track"),
            quiet=quiet,
            as_json=as_json,
            start=start,
        )


def resume(
    folder: Folder,
    rounds: MoreRounds = None,
    out: LongerOut = None,
    jobs: Jobs = 1,
    engine: EngineName = "local",
    from_round: FromRound = None,
    track: Track = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Resume a run or comparison after a crash or Ctrl-C; the result is bit-identical."""
    from fedgsca.federation.run_folder import read_config
    from fedgsca.lab.plan import read_plan

    if not folder.is_dir():
        raise RunFolderError(
            "run.folder-not-found",
            f"there is no folder {folder}",
            fix="give a folder written by `fedgsca run --out`",
        )
    if rounds is not None:
        from fedgsca.lab.existing_runs import copy_for_more_rounds

        copy = copy_for_more_rounds(folder, rounds, out)
        if not quiet:
            print_note(f"{folder} stays as it is; its copy {copy} is trained to round {rounds}")
        folder = copy
    plan = read_plan(folder)
    if plan is not None:
        from fedgsca.cli.compare import Output, run_comparison

        run_comparison(plan, folder, Output(jobs, track, quiet=quiet, as_json=as_json))
        return
    config = read_config(folder)
    if not (folder / "result.json").exists():
        print_start(_describe(config), quiet=quiet or as_json)
    if from_round is not None:
        from fedgsca.federation.run_folder import rewind

        rewind(folder, from_round)
    run_and_report(
        config, folder, jobs=jobs, engine=engine, track=track, quiet=quiet, as_json=as_json
    )


def check_track(track: str | None) -> None:
    """Report a typo or a missing package before any data is read."""
    if track:
        from fedgsca.lab.trackers import parse_targets

        parse_targets(track)


def _describe(config: Config) -> str:
    """What a run does, in a few words."""
    source = source_slug(config.data.source)
    return f"{config.method} on {source}, {plural(config.train.rounds, 'round')}"


def default_out(config: Config) -> Path:
    """The folder of a run without --out."""
    data = source_slug(config.data.source)
    return Path("runs") / f"{data}-{config.method}-{slug(config.noise.spec)}-s{config.seed}"


def run_and_report(
    config: Config,
    out: Path,
    *,
    jobs: int,
    engine: str = "local",
    track: str | None = None,
    quiet: bool,
    as_json: bool,
    start: float | None = None,
) -> None:
    """Run to the end, or say that nothing is left to run; then the report and the summary.

    `start` is when the command started, on the monotonic clock. `track` is the option; without
    it, the configuration and the earlier sessions of the run decide.
    """
    from fedgsca.federation.base import ObserverGroup, find_engine
    from fedgsca.federation.run_folder import read_setup
    from fedgsca.lab.tracking import find_targets, track_run

    start = time.monotonic() if start is None else start
    is_finished = (out / "result.json").exists()
    label = f"{config.method} on {source_slug(config.data.source)}"
    # a finished run is recorded again only on request
    targets = find_targets(track, config, out) if track or not is_finished else ()
    with resume_hint(out), display(quiet=quiet) as progress:
        kind = find_engine("local" if is_finished else engine)
        observer = progress.observe(label)
        tracking = track_run(observer.on_message, out, config, targets)
        try:
            result = kind.run(config, out, jobs=jobs, observer=ObserverGroup(observer, tracking))
        except BaseException:  # Ctrl-C, too
            if tracking is not None:
                tracking.finish(None)
            raise
        if tracking is not None and is_finished:
            tracking.begin(read_setup(out).data.fingerprint)
    assert result is not None  # it is None only for a limited number of rounds
    if is_finished and not quiet:
        print_note(f"{out} is finished: nothing left to run", "green")
    report = out / "report.html"
    if not (is_finished and report.exists()):
        from fedgsca.lab.report.html_page import write_report
        from fedgsca.lab.report.previous_run import compare_with_previous

        compare_with_previous(out)
        write_report(out)
    if tracking is not None:
        tracking.finish(result, print_warning)
    if as_json:
        print_json({**result.to_json(), "path": str(out), "report": str(report)})
    elif not quiet:
        show_run(out, config, result, None if is_finished else time.monotonic() - start)
        print_line(f"report  {report}", "bold")


# ---- what a person sees when a run has ended: the sentences and the table of its report ----

MAX_ROWS = 24  # sites that are listed one by one


def show_run(
    out: Path, config: Config, result: RunResult, command_seconds: float | None = None
) -> None:
    """Scores, what happened, the sites with the method's decisions, time and traffic.

    `command_seconds` is how long the command has taken, in seconds; None: it did not train.
    """
    from markupsafe import Markup

    from fedgsca.federation.run_folder import read_setup
    from fedgsca.lab.report.run_facts import grade_kappa, result_notes
    from fedgsca.lab.report.run_page import describe_run
    from fedgsca.lab.report.run_reader import read_run

    # a page lacks what a damaged file contained; here it is an error
    run = replace(read_run(out, with_losses=False), setup=read_setup(out))
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
    from fedgsca.lab.report.run_labels import column_table, label_columns, quality_columns
    from fedgsca.lab.table import print_tables

    columns = {**label_columns(run), **quality_columns(run)}
    for name in ("Estimated wrong", "Taken as noisy"):  # the page has room for them
        columns.pop(name, None)
    table = column_table("", run.setup.sites, columns)
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
