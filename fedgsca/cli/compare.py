"""`fedgsca compare`: methods x noises x settings x seeds, every run resumable, one table."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import (
    ConfigFile,
    Data,
    Device,
    ExperimentFlags,
    Features,
    Frozen,
    Jobs,
    Json,
    Labels,
    Model,
    Preset,
    Quiet,
    Rounds,
    Sets,
    SkipUnreadable,
    Track,
    source_slug,
)
from fedgsca.cli.run import check_track
from fedgsca.engine.progress import Display, display
from fedgsca.errors import ConfigError, FedgscaError
from fedgsca.support.console import (
    make_table,
    print_json,
    print_line,
    print_note,
    print_start,
    print_table,
    print_warning,
    resume_hint,
)
from fedgsca.support.text import DASH, plural

if TYPE_CHECKING:
    from fedgsca.engine.base import RunObserver
    from fedgsca.experiment.records import RunResult
    from fedgsca.grid.comparison import ComparisonPlan, ComparisonResult
    from fedgsca.grid.runner import GridCell
    from fedgsca.grid.time_to_accuracy import EfficiencyGroup
    from fedgsca.report.comparison_tables import ComparisonRow

Methods = Annotated[str, typer.Option("--methods", help="names joined by commas, all or paper")]
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
SiteCounts = Annotated[
    str | None,
    typer.Option(
        "--sites",
        help="number of hospitals, default 4; several: 4,10,20",
        rich_help_panel="Experiment",
    ),
]
Partitions = Annotated[
    str | None,
    typer.Option(
        "--partition",
        help="stratified, dirichlet, missing, group or column; several: stratified,dirichlet",
        rich_help_panel="Experiment",
    ),
]
Participation = Annotated[
    str | None,
    typer.Option(
        "--participation",
        help="share of the sites that a round asks, default 1; several: 0.3,1",
        rich_help_panel="Experiment",
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

_SCORES = {"f1": "macro F1", "recall": "recall", "precision": "precision"}


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "compare", help="Compare methods under noise over several seeds.", rich_help_panel="Train"
    )(compare)


def compare(
    methods: Methods = "fedavg,fedgsca",
    noise: Noises = None,
    models: Models = None,
    vary: Vary = None,
    seeds: Seeds = "3",
    data: Data = None,
    rounds: Rounds = None,
    sites: SiteCounts = None,
    partition: Partitions = None,
    participation: Participation = None,
    labels: Labels = None,
    model: Model = None,
    frozen: Frozen = False,
    features: Features = None,
    device: Device = None,
    skip_unreadable: SkipUnreadable = False,
    config_file: ConfigFile = None,
    sets: Sets = None,
    preset: Preset = None,
    ceiling: Ceiling = True,
    clean: Clean = False,
    out: Out = None,
    title: Title = None,
    tuned_file: TunedFile = None,
    jobs: Jobs = 1,
    track: Track = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """`fedgsca compare`."""
    from fedgsca.cli.chosen_settings import announce, check_sites, complete_tree
    from fedgsca.config import merge
    from fedgsca.grid.comparison import (
        ComparisonPlan,
        parse_methods,
        parse_models,
        parse_noises,
        parse_seeds,
        read_plan,
        read_tuned,
        variant_tree,
    )
    from fedgsca.grid.variation import check_variation, parse_variation, without_keys

    flags = ExperimentFlags(
        data=data,
        rounds=rounds,
        labels=labels,
        model=model,
        frozen=frozen,
        features=features,
        device=device,
        skip_unreadable=skip_unreadable,
        preset=preset,
        track=track,
    )
    check_track(track)
    if models is None and model is not None and "," in model:
        # several networks, under the other name
        models = model
        model = None
    lists = {
        "data.sites": sites,
        "data.partition": partition,
        "federation.participation": participation,
    }
    single_values: list[str] = []
    variations = list(vary or ())
    for key, text in lists.items():
        if text is not None and "," in text:
            variations.append(f"{key}={text}")
        elif text is not None:
            single_values.append(f"{key}={text}")
    if models is not None and (model is not None or frozen or features is not None):
        raise ConfigError(
            "grid.two-model-flags",
            "--models says which networks to compare, so --model, --frozen and --features do not"
            " fit",
            fix="write --models NAME,NAME+frozen and leave the other flags out",
        )
    plan = ComparisonPlan(
        methods=parse_methods(methods),
        noises=parse_noises(noise or ["0-S40-P20-C20"]),
        seeds=parse_seeds(seeds),
        tree=flags.make_tree(config_file, [*(sets or ()), *single_values]),
        ceiling=ceiling,
        clean=clean,
        title=title or "",
        method_settings=read_tuned(tuned_file) if tuned_file else {},
        models=parse_models(models) if models is not None else (),
        vary=parse_variation(variations),
    )
    check_variation(plan.vary, plan.tree)
    source = plan.cells()[0].config.data.source
    folder = out or Path("runs") / f"compare-{source_slug(source)}"
    print_start(f"{plural(len(plan.cells()), 'run')} on {source}", quiet=quiet or as_json)
    earlier = read_plan(folder)
    # one that was started with other defaults continues with those
    if earlier is None or _without_track(earlier) != _without_track(plan):
        tree = plan.tree
        # the data need not choose a network or a setting that varies
        tree = merge(tree, variant_tree(plan.variants[0]))
        tree = complete_tree(tree, plan.noises, quiet=quiet)
        variant_keys = list(plan.vary)
        if plan.models:
            variant_keys += ["model.name", "model.frozen", "model.weights"]
        plan = replace(plan, tree=without_keys(tree, variant_keys))
    open_cells = [cell for cell in plan.cells() if not _is_finished(folder, cell)]
    check_sites([cell.config for cell in open_cells], quiet=quiet)
    if not quiet:
        _explain_plan(plan)
        if open_cells:
            announce([cell.config for cell in open_cells], jobs)
    run_comparison(plan, folder, jobs=jobs, track=track, quiet=quiet, as_json=as_json)


def _without_track(plan: ComparisonPlan) -> ComparisonPlan:
    """How a comparison is tracked is not part of it."""
    tree = {key: value for key, value in plan.tree.items() if key != "track"}
    return replace(plan, tree=tree)


def _is_finished(folder: Path, cell: GridCell) -> bool:
    return (folder / "cells" / cell.name / "result.json").exists()


def _explain_plan(plan: ComparisonPlan) -> None:
    from fedgsca.cli.config import explain_preset

    configs = {cell.config.method: cell.config for cell in plan.cells()}
    for config in configs.values():
        explain_preset(config)
    if plan.ceiling and "fedavg" not in plan.methods:
        print_warning("recovery is measured against FedAvg: add fedavg to --methods to see it")


class GridDisplay:
    """Shows the progress of every run of a grid, and the errors of those that fail.

    `remark` is called after every run; its text, if any, is shown.
    """

    def __init__(self, progress: Display, remark: Callable[[], str] = str) -> None:
        self.progress = progress
        self.remark = remark

    def observe(self, cell: GridCell) -> RunObserver:
        """An observer for the rounds of one run."""
        return self.progress.observe(cell.name)

    def on_run_done(self, cell: GridCell, result: RunResult) -> None:
        """Show the score and the remark."""
        self.progress.finish_run(cell.name, f"F1 {result.f1:.1f}")
        text = self.remark()
        if text:
            self.progress.print(text, "dim")

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
    quiet: bool,
    as_json: bool,
    cautions: bool = True,
) -> ComparisonResult:
    """Start or resume a comparison; then tables and report, and an error if runs failed.

    `cautions`: print which differences may be chance. The report always has them.
    """
    from fedgsca.grid.comparison import check_folder, read_plan, run_plan, write_tables
    from fedgsca.grid.runner import finished_cells, raise_failures
    from fedgsca.grid.time_to_accuracy import write_efficiency
    from fedgsca.report.html_page import write_report
    from fedgsca.tracking.start_tracking import find_targets, track_comparison

    cells = {cell.name: cell for cell in plan.cells()}
    check_folder(cells.values(), out)
    finished_runs = finished_cells(cells.values(), out)
    if finished_runs and not quiet:
        _show_finished(list(finished_runs), len(cells))
    num_open = len(cells) - len(finished_runs)
    targets = find_targets(track, plan.cells()[0].config, out)
    with resume_hint(out), display(quiet=quiet, runs=num_open) as progress:
        grid_display = GridDisplay(progress)
        tracking = track_comparison(grid_display, out, plan, targets, print_warning)
        try:
            result = run_plan(plan, out, tracking or grid_display, jobs=jobs)
        except BaseException:  # Ctrl-C, too
            if tracking is not None:
                tracking.finish(None)
            raise
    if result.comparison.cells:
        result = replace(result, comparison=write_tables(out, result.comparison))
        joint_plan = read_plan(out) or plan
        groups = write_efficiency(joint_plan, out) if joint_plan.is_timed else []
        report = write_report(out)
        if tracking is not None:
            tracking.finish(result.comparison)
        if as_json:
            extra = {"failed": result.failures, "path": str(out), "report": str(report)}
            print_json({**result.comparison.to_json(), **extra, **times_json(groups)})
        elif not quiet:
            show_table(result, cautions=cautions)
            show_times(groups)
            if groups:
                print_line(f"times   {out / 'efficiency.md'}, also .csv and .json")
            print_line(f"report  {report}", "bold")
    elif tracking is not None:
        tracking.finish(None)
    raise_failures(result.failures, len(cells), out)
    return result


def times_json(groups: Sequence[EfficiencyGroup]) -> dict[str, Any]:
    """What --json has about the time to accuracy, if it was asked for."""
    from fedgsca.grid.time_to_accuracy import to_json

    return {"efficiency": to_json(groups)} if groups else {}


def show_times(groups: Sequence[EfficiencyGroup]) -> None:
    """Tables of the time to accuracy, one per condition."""
    from fedgsca.grid.time_to_accuracy import HEADER, describe, table_rows

    for group in groups:
        print_line()
        print_table(make_table(list(HEADER), table_rows(group), title=describe(group)))
    if groups:
        print_line(
            "times are multiples of FedAvg's, medians over the seeds; seconds (s) where FedAvg"
            f" never arrives; {DASH}: not reached by half of the seeds",
            "dim",
        )


def _show_finished(names: list[str], num_runs: int) -> None:
    suffix = ""
    if len(names) < num_runs:
        suffix = f": {', '.join(names)}"
    print_note(f"{len(names)} of {num_runs} runs are done{suffix}", "green")


def show_table(result: ComparisonResult, *, cautions: bool = True) -> None:
    """A table per noise: mean ± standard deviation over seeds; the best scores are marked."""
    rows = result.rows
    print_line(f"\n{result.comparison.title}", "bold")
    for noise in dict.fromkeys(row.noise for row in rows):
        cells = [_table_cells(row) for row in rows if row.noise == noise]
        header = ["method", *_SCORES.values(), "recovery", "s/round", "seeds"]
        print_table(make_table(header, cells, title=f"noise {noise}"))
    if result.comparison.clean:
        scores = list(result.comparison.clean.values())
        print_line(f"FedAvg on clean labels: F1 {sum(scores) / len(scores):.1f}")
    _show_intervals(result)
    _show_cautions(result, chance=cautions)
    print_line(
        "* highest under this noise; recovery: share of the distance from FedAvg to the ceiling",
        "dim",
    )


def _show_intervals(result: ComparisonResult) -> None:
    """What the last models differ by, with 95 % intervals over test images and seeds."""
    from fedgsca.report.comparison_tables import difference_text

    labels = {row.method: row.label for row in result.rows}
    for entry in result.comparison.intervals or ():
        if entry.difference is not None:
            reference = labels.get(entry.reference, entry.reference)
            remark = "95 % interval over test images and seeds"
            if entry.difference.low is None:
                remark = "without an interval: too few test images or patients"
            print_line(
                f"{labels.get(entry.method, entry.method)} minus {reference} under {entry.noise},"
                f" last round's F1: {difference_text(entry)}, {remark}",
                "dim",
            )


def _show_cautions(result: ComparisonResult, *, chance: bool) -> None:
    """Differences that may be `chance`, if wanted; unequal seeds; methods that never select."""
    from fedgsca.report.comparison_caution import caution_sentences
    from fedgsca.report.comparison_sentences import idle_sentences, seed_sentences
    from fedgsca.report.loaded_comparison import load_comparison

    comparison = load_comparison(result.path, result.comparison)
    sentences = caution_sentences(comparison) if chance else []
    for noise in comparison.noises:
        sentences += seed_sentences(comparison, noise)
    for sentence in [*sentences, *idle_sentences(comparison)]:
        print_line(sentence, "yellow")


def _table_cells(row: ComparisonRow) -> list[str]:
    from fedgsca.report.comparison_tables import recovery_text, score_text

    scores = []
    for key in _SCORES:
        mark = "*" if key in row.best else " "
        scores.append(score_text(row, key) + mark)
    seconds = row.stats.get("seconds_per_round")
    pace = f"{seconds.mean:.2f}" if seconds else DASH
    return [row.label, *scores, recovery_text(row), pace, str(row.seeds)]
