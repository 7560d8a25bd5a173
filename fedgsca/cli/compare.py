"""`fedgsca compare`: methods x noises x settings x seeds, every run resumable, one table."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import Jobs, Json, Quiet, Settings, experiment_options, source_slug
from fedgsca.cli.run import check_track
from fedgsca.config import SHORT_NAMES
from fedgsca.errors import ConfigError, FedgscaError
from fedgsca.federation.progress import Display, display
from fedgsca.support.console import (
    print_json,
    print_line,
    print_note,
    print_start,
    print_warning,
    resume_hint,
)
from fedgsca.support.text import plural

if TYPE_CHECKING:
    from fedgsca.federation.base import RunObserver
    from fedgsca.federation.records import RunResult
    from fedgsca.lab.comparison import ComparisonResult
    from fedgsca.lab.plan import ComparisonPlan
    from fedgsca.lab.records import Comparison
    from fedgsca.lab.runner import GridCell, Shard

Methods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        help="names joined by commas, all or paper; default: FedAvg, FedGSCA, FedGSCA-E",
    ),
]
Noises = Annotated[
    list[str] | None, typer.Option("--noise", help="repeatable; default 0-S40-P20-C20")
]
Models = Annotated[
    str | None,
    typer.Option(
        "--models",
        help="compare networks, too: NAME, NAME+frozen or NAME=WEIGHTS, joined by commas",
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        help="compare any other setting, too: section.key=value,value; repeatable",
        metavar="KEY=VALUES",
    ),
]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        "--row",
        help="a method with settings of its own under your name, such as 'FedGSCA literal=fedgsca,"
        "preset=paper'; repeatable",
        metavar="NAME=METHOD,KEY=VALUE,...",
    ),
]
Seeds = Annotated[str, typer.Option("--seeds", help="how many (3: seeds 0, 1, 2) or which (0,4,7)")]
Ceiling = Annotated[
    bool,
    typer.Option(
        "--ceiling/--no-ceiling", help="also FedAvg without the wrong labels: needed for recovery"
    ),
]
Clean = Annotated[bool, typer.Option("--clean", help="also FedAvg without noise, for reference")]
Out = Annotated[Path | None, typer.Option("--out", help="folder; default runs/compare-<data>")]
Title = Annotated[str | None, typer.Option("--title", help="heading of the report")]
TunedFile = Annotated[
    Path | None,
    typer.Option("--tuned", help="TOML with settings for each method, [METHOD.SECTION]"),
]

MeasureTimes = Annotated[
    bool,
    typer.Option("--timed", help="also the time to FedAvg's best F1 and to 95 % of the ceiling"),
]
ShardText = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/N", help="run every n-th run only, for several machines"),
]


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "compare", help="Compare methods under noise over several seeds.", rich_help_panel="Train"
    )(compare)


@experiment_options(
    without=("method", "seed", "audit"), lists=("sites", "partition", "participation", "model")
)
def compare(
    settings: Settings,
    methods: Methods = None,
    rows: Rows = None,
    noise: Noises = None,
    models: Models = None,
    vary: Vary = None,
    seeds: Seeds = "3",
    ceiling: Ceiling = True,
    clean: Clean = False,
    out: Out = None,
    title: Title = None,
    tuned_file: TunedFile = None,
    measure_times: MeasureTimes = False,
    shard: ShardText = None,
    jobs: Jobs = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """`fedgsca compare`."""
    from fedgsca.lab.plan import (
        ComparisonPlan,
        check_variation,
        choose_methods,
        parse_models,
        parse_noises,
        parse_rows,
        parse_seeds,
        parse_variation,
        read_tuned,
    )
    from fedgsca.lab.runner import parse_shard
    from fedgsca.lab.time_to_accuracy import timed_tree

    track = settings.get("track")
    check_track(track)
    models = settings.lists.get("model", models)
    if models is not None and any(map(settings.get, ("model", "frozen", "features"))):
        raise ConfigError(
            "grid.two-model-flags",
            "--models says which networks to compare, so --model, --frozen and --features do not"
            " fit",
            fix="write --models NAME,NAME+frozen and leave the other flags out",
        )
    variations = [
        f"{SHORT_NAMES[name]}={text}" for name, text in settings.lists.items() if name != "model"
    ]
    variants = parse_rows(rows or ())
    plan = ComparisonPlan(
        methods=choose_methods(methods, variants),
        noises=parse_noises(noise or ["0-S40-P20-C20"]),
        seeds=parse_seeds(seeds),
        tree=timed_tree(settings.tree) if measure_times else settings.tree,
        ceiling=ceiling,
        clean=clean,
        title=title or "",
        method_settings={
            **(read_tuned(tuned_file) if tuned_file else {}),
            **{name: variant.tree for name, variant in variants.items()},
        },
        models=parse_models(models) if models is not None else (),
        vary=parse_variation([*variations, *(vary or ())]),
        is_timed=measure_times,
        labels={name: variant.label for name, variant in variants.items()},
    )
    check_variation(plan.vary, plan.tree)
    source = plan.cells()[0].config.data.source
    folder = out or Path("runs") / f"compare-{source_slug(source)}"
    start_comparison(
        plan,
        folder,
        jobs=jobs,
        track=track,
        shard=parse_shard(shard),
        quiet=quiet,
        as_json=as_json,
    )


def start_comparison(
    plan: ComparisonPlan,
    out: Path,
    *,
    jobs: int,
    track: str | None = None,
    shard: Shard | None = None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Complete the plan with what the data decides, say what will happen, and run it."""
    from fedgsca.cli.chosen_settings import announce, check_sites, complete_tree
    from fedgsca.config import merge
    from fedgsca.lab.plan import read_plan, variant_tree, without_keys

    source = plan.cells()[0].config.data.source
    print_start(f"{plural(len(plan.cells()), 'run')} on {source}", quiet=quiet or as_json)
    earlier = read_plan(out)
    # one that was started with other defaults continues with those
    if earlier is None or _without_track(earlier) != _without_track(plan):
        # the data need not choose a network or a setting that varies
        tree = merge(plan.tree, variant_tree(plan.variants[0]))
        tree = complete_tree(tree, plan.noises, quiet=quiet)
        variant_keys = list(plan.vary)
        if plan.models:
            variant_keys += ["model.name", "model.frozen", "model.weights"]
        plan = replace(plan, tree=without_keys(tree, variant_keys))
    open_cells = [cell for cell in plan.cells() if not _is_finished(out, cell)]
    check_sites([cell.config for cell in open_cells], quiet=quiet)
    if not quiet:
        _explain_plan(plan, earlier)
        if open_cells:
            announce([cell.config for cell in open_cells])
    run_comparison(plan, out, jobs=jobs, track=track, shard=shard, quiet=quiet, as_json=as_json)


def _without_track(plan: ComparisonPlan) -> ComparisonPlan:
    """How a comparison is tracked is not part of it."""
    tree = {key: value for key, value in plan.tree.items() if key != "track"}
    return replace(plan, tree=tree)


def _is_finished(folder: Path, cell: GridCell) -> bool:
    return (folder / "cells" / cell.name / "result.json").exists()


def _explain_plan(plan: ComparisonPlan, earlier: ComparisonPlan | None) -> None:
    from fedgsca.cli.config import explain_preset

    configs = {cell.config.method: cell.config for cell in plan.cells()}
    for config in configs.values():
        explain_preset(config)
    methods = plan.methods if earlier is None else (*earlier.methods, *plan.methods)
    if plan.ceiling and "fedavg" not in methods:
        print_warning("recovery is measured against FedAvg: add fedavg to --methods to see it")


class GridDisplay:
    """Shows the progress of every run of a grid, and the errors of those that fail."""

    def __init__(self, progress: Display) -> None:
        self.progress = progress

    def observe(self, cell: GridCell) -> RunObserver:
        """An observer for the rounds of one run."""
        return self.progress.observe(cell.name)

    def on_run_done(self, cell: GridCell, result: RunResult) -> None:
        """Show the score."""
        self.progress.finish_run(cell.name, f"F1 {result.f1:.1f}")

    def on_run_failed(self, cell: GridCell, error: Exception) -> None:
        """Show the error; the other runs continue."""
        self.progress.finish_run(cell.name, "failed")
        if isinstance(error, FedgscaError):
            text = f"{cell.name} failed [{error.code}]: {error.message}\nFix: {error.fix}"
        else:
            trace = "".join(traceback.format_exception(error))
            text = f"{cell.name} failed; this is a bug, please report it:\n{trace}"
        self.progress.print(text, "red")


def run_comparison(
    plan: ComparisonPlan,
    out: Path,
    *,
    jobs: int,
    track: str | None = None,
    shard: Shard | None = None,
    quiet: bool,
    as_json: bool,
) -> ComparisonResult:
    """Start or resume a comparison; then tables and report, and an error if runs failed."""
    from fedgsca.lab.comparison import check_folder, run_plan, write_tables
    from fedgsca.lab.report.html_page import write_report
    from fedgsca.lab.runner import ALL_CELLS, finished_cells, raise_failures
    from fedgsca.lab.tracking.observers import find_targets, track_comparison

    cells = {cell.name: cell for cell in plan.cells()}
    check_folder(cells.values(), out)
    finished_runs = finished_cells(cells.values(), out)
    if finished_runs and not quiet:
        print_note(f"{len(finished_runs)} of {len(cells)} runs are done", "green")
    num_open = len(cells) - len(finished_runs)
    targets = find_targets(track, plan.cells()[0].config, out)
    with resume_hint(out), display(quiet=quiet, runs=num_open) as progress:
        grid_display = GridDisplay(progress)
        tracking = track_comparison(grid_display, out, plan, targets, print_warning)
        observer = tracking or grid_display
        try:
            result = run_plan(plan, out, observer, jobs=jobs, shard=shard or ALL_CELLS)
        except BaseException:  # Ctrl-C, too
            if tracking is not None:
                tracking.finish(None)
            raise
    if result.comparison.cells:
        result = replace(result, comparison=write_tables(out, result.comparison))
        report = write_report(out, with_figures=True)
        if tracking is not None:
            tracking.finish(result.comparison)
        if as_json:
            extra = {"failed": result.failures, "path": str(out), "report": str(report)}
            print_json({**result.comparison.to_json(), **extra})
        elif not quiet:
            show_comparison(result.comparison)
            print_line(f"report  {report}", "bold")
    elif tracking is not None:
        tracking.finish(None)
    raise_failures(result.failures, len(cells), out)
    return result


def show_comparison(comparison: Comparison) -> None:
    """The tables, what their numbers mean, and one sentence about each pair."""
    from fedgsca.lab.report.comparison_columns import (
        difference_sentences,
        expected_choice,
        explain_numbers,
        make_tables,
    )
    from fedgsca.lab.table import print_tables

    print_line(f"\n{comparison.title}", "bold")
    print_tables(make_tables(comparison, is_brief=True))
    for sentence in [*difference_sentences(comparison), expected_choice(comparison)]:
        if sentence:
            print_line(sentence)
    print_line(" ".join(explain_numbers(comparison)), "dim")
