"""`fedgsca run` and `fedgsca resume`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import (
    Carrier,
    ConfigFile,
    Data,
    Frozen,
    Jobs,
    Json,
    Labels,
    Method,
    Model,
    Noise,
    Partition,
    Preset,
    Quiet,
    Rounds,
    Seed,
    Sets,
    Sites,
    SkipUnreadable,
    make_config,
    short,
    slug,
)
from fedgsca.engine.progress import display
from fedgsca.errors import RunFolderError
from fedgsca.support.console import print_json, print_line, print_note, resume_hint

if TYPE_CHECKING:
    from fedgsca.config import Config
    from fedgsca.experiment.records import RunResult

Out = Annotated[
    Path | None,
    typer.Option("--out", help="run folder; default runs/<data>-<method>-<noise>-s<seed>"),
]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run or a comparison")]


def add(app: typer.Typer) -> None:
    app.command(
        "run",
        help="Train one method on one data set, with a report at the end.",
        rich_help_panel="Train",
    )(run)
    app.command(
        "resume",
        help="Continue a stopped run or comparison; it ends in the same bytes.",
        rich_help_panel="Train",
    )(resume)


def run(
    data: Data = None,
    method: Method = None,
    noise: Noise = None,
    rounds: Rounds = None,
    seed: Seed = None,
    sites: Sites = None,
    partition: Partition = None,
    labels: Labels = None,
    model: Model = None,
    frozen: Frozen = False,
    skip_unreadable: SkipUnreadable = False,
    config: ConfigFile = None,
    sets: Sets = None,
    preset: Preset = None,
    out: Out = None,
    jobs: Jobs = 1,
    engine: Carrier = "local",
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    made = make_config(
        config, sets, data=data, method=method, noise=noise, rounds=rounds, seed=seed, sites=sites, partition=partition,
        labels=labels, model=model, frozen=frozen, skip_unreadable=skip_unreadable, preset=preset,
    )  # fmt: skip
    if not quiet:
        from fedgsca.cli.show_config import explain_preset

        explain_preset(made)
    train(made, out or default_out(made), jobs=jobs, engine=engine, quiet=quiet, json=json)


def resume(
    run: Folder, jobs: Jobs = 1, engine: Carrier = "local", quiet: Quiet = False, json: Json = False
) -> None:
    from fedgsca.experiment.run_folder import read_config
    from fedgsca.grid.comparison import read_plan
    from fedgsca.paper.request import read_request

    if not run.is_dir():
        raise RunFolderError(
            "todo.run-1",
            f"{run} is not a folder",
            fix="give the folder that `fedgsca run --out` made",
        )
    request = read_request(run)
    if request is not None:
        from fedgsca.cli.paper_table_run import execute as execute_table
        from fedgsca.grid.runner import Shard

        execute_table(
            request, run, Shard(), [], only_render=False, jobs=jobs, quiet=quiet, json=json
        )
        return
    plan = read_plan(run)
    if plan is not None:
        from fedgsca.cli.compare import execute

        execute(plan, run, jobs=jobs, quiet=quiet, json=json)
        return
    train(read_config(run), run, jobs=jobs, engine=engine, quiet=quiet, json=json)


def default_out(config: Config) -> Path:
    return (
        Path("runs")
        / f"{short(config.data.source)}-{config.method}-{slug(config.noise.spec)}-s{config.seed}"
    )


def train(
    config: Config, out: Path, *, jobs: int, engine: str = "local", quiet: bool, json: bool
) -> None:
    """Run to the end, or say that there is nothing left to do; then the report and the summary."""
    from fedgsca.engine.base import find_engine

    finished = (out / "result.json").exists()
    label = f"{config.method} on {short(config.data.source)}"
    with resume_hint(out), display(quiet=quiet) as progress:
        kind = find_engine("local" if finished else engine)
        result = kind.run(config, out, jobs=jobs, observer=progress.observe(label))
    assert result is not None  # it is only None if a number of rounds was asked for
    if finished and not quiet:
        print_note(f"{out} is finished: nothing left to run", "green")
    report = out / "report.html"
    if not (finished and report.exists()):
        from fedgsca.report.html_page import write_report

        write_report(out)
    _conclude(out, result, report, quiet=quiet, json=json)


def _conclude(out: Path, result: RunResult, report: Path, *, quiet: bool, json: bool) -> None:
    if json:
        print_json({**result.to_json(), "path": str(out), "report": str(report)})
    elif not quiet:
        from fedgsca.cli.run_summary import show_run

        show_run(out, result)
        print_line(f"report  {report}", "bold")
