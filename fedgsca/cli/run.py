"""`fedgsca run` and `fedgsca resume`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import (
    EngineName,
    Jobs,
    Json,
    NoiseHelpCommand,
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
from fedgsca.support.text import plural, slug

if TYPE_CHECKING:
    from fedgsca.config import Config

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


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    text = "Train one method on one data set, with a report at the end."
    app.command("run", cls=NoiseHelpCommand, help=text)(run)
    text = "Resume a run or comparison after a crash or Ctrl-C; the result is bit-identical."
    app.command("resume", help=text)(resume)


@experiment_options()
def run(
    settings: Settings,
    out: Out = None,
    jobs: Jobs = 1,
    engine: EngineName = "local",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """`fedgsca run`."""
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
    """`fedgsca resume`: whatever the folder contains."""
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
        from fedgsca.cli.run_summary import show_run

        show_run(out, config, result, None if is_finished else time.monotonic() - start)
        print_line(f"report  {report}", "bold")
