"""`fedgsca compare`: methods x noises x settings x seeds, every run resumable, one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.chosen_settings import announce, check_sites, complete_tree
from fedgsca.cli.options import Jobs, Json, Quiet, Settings, experiment_options, source_slug
from fedgsca.cli.run import check_track
from fedgsca.config import SHORT_NAMES
from fedgsca.errors import ConfigError
from fedgsca.federation.progress import display
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
    from fedgsca.lab.plan import ComparisonPlan
    from fedgsca.lab.records import Comparison
    from fedgsca.lab.runner import Shard

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
    """Compare methods under noise over several seeds."""
    from fedgsca.lab.plan import (
        ComparisonPlan,
        choose_methods,
        parse_noises,
        parse_rows,
        parse_seeds,
        read_tuned,
    )
    from fedgsca.lab.runner import parse_shard
    from fedgsca.lab.time_to_accuracy import timed_tree

    track = settings.get("track")
    check_track(track)
    variants = parse_rows(rows or ())
    method_settings = read_tuned(tuned_file) if tuned_file else {}
    plan = ComparisonPlan(
        methods=choose_methods(methods, variants),
        noises=parse_noises(noise or ["0-S40-P20-C20"]),
        seeds=parse_seeds(seeds),
        tree=timed_tree(settings.tree) if measure_times else settings.tree,
        ceiling=ceiling,
        clean=clean,
        title=title or "",
        method_settings=method_settings | {name: row.tree for name, row in variants.items()},
        models=_choose_models(settings, models),
        vary=_choose_variation(settings, vary or ()),
        is_timed=measure_times,
        labels={name: row.label for name, row in variants.items()},
    )
    source = plan.cells()[0].config.data.source
    folder = out or Path("runs") / f"compare-{source_slug(source)}"
    output = Output(jobs, track, quiet=quiet, as_json=as_json)
    start_comparison(plan, folder, output, parse_shard(shard))


def _choose_models(settings: Settings, models: str | None) -> tuple[str, ...]:
    """The networks of --models, or of --model with a list."""
    from fedgsca.lab.plan import parse_models

    models = settings.lists.get("model", models)
    if models is not None and any(map(settings.get, ("model", "frozen", "features"))):
        raise ConfigError(
            "grid.two-model-flags",
            "--models says which networks to compare, so --model, --frozen and --features do not"
            " fit",
            fix="write --models NAME,NAME+frozen and leave the other flags out",
        )
    return () if models is None else parse_models(models)


def _choose_variation(settings: Settings, items: Sequence[str]) -> Mapping[str, tuple[Any, ...]]:
    """The settings of --vary, and those of options with a list."""
    from fedgsca.lab.plan import check_variation, parse_variation

    lists = [f"{SHORT_NAMES[key]}={text}" for key, text in settings.lists.items() if key != "model"]
    variation = parse_variation([*lists, *items])
    check_variation(variation, settings.tree)
    return variation


@dataclass(frozen=True)
class Output:
    """How a comparison is run and shown."""

    jobs: int = 1
    track: str | None = None
    quiet: bool = False
    as_json: bool = False


def start_comparison(plan: ComparisonPlan, out: Path, output: Output, shard: Shard) -> None:
    """Complete the plan with what the data decides, say what will happen, and run it."""
    from fedgsca.cli.config import explain_preset
    from fedgsca.config import merge
    from fedgsca.lab.plan import read_plan, variant_tree, without_keys
    from fedgsca.lab.runner import finished_cells

    quiet = output.quiet
    source = plan.cells()[0].config.data.source
    print_start(f"{plural(len(plan.cells()), 'run')} on {source}", quiet=quiet or output.as_json)
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
    cells = plan.cells()
    finished_names = finished_cells(cells, out)
    open_configs = [cell.config for cell in cells if cell.name not in finished_names]
    check_sites(open_configs, quiet=quiet)
    if not quiet:
        for config in {cell.config.method: cell.config for cell in cells}.values():
            explain_preset(config)
        methods = plan.methods if earlier is None else (*earlier.methods, *plan.methods)
        if plan.ceiling and "fedavg" not in methods:
            print_warning("recovery is measured against FedAvg: add fedavg to --methods to see it")
        if open_configs:
            announce(open_configs)
    run_comparison(plan, out, output, shard)


def _without_track(plan: ComparisonPlan) -> ComparisonPlan:
    """How a comparison is tracked is not part of it."""
    tree = {key: value for key, value in plan.tree.items() if key != "track"}
    return replace(plan, tree=tree)


def run_comparison(
    plan: ComparisonPlan, out: Path, output: Output, shard: Shard | None = None
) -> None:
    """Start or resume a comparison; then tables and report, and an error if runs failed."""
    from fedgsca.lab.comparison import run_plan, write_tables
    from fedgsca.lab.report.html_page import write_report
    from fedgsca.lab.runner import (
        ALL_CELLS,
        GridDisplay,
        check_folder,
        finished_cells,
        raise_failures,
    )
    from fedgsca.lab.tracking import TrackingGridObserver, find_targets

    cells = {cell.name: cell for cell in plan.cells()}
    check_folder(cells.values(), out)
    finished_runs = finished_cells(cells.values(), out)
    if finished_runs and not output.quiet:
        print_note(f"{len(finished_runs)} of {len(cells)} runs are done", "green")
    num_open = len(cells) - len(finished_runs)
    targets = find_targets(output.track, plan.cells()[0].config, out)
    comparison = tracking = None
    try:
        with resume_hint(out), display(quiet=output.quiet, runs=num_open) as progress:
            observer = GridDisplay(progress)
            if targets:
                tracking = TrackingGridObserver(observer, out, plan, targets, print_warning)
            shard = shard or ALL_CELLS
            result = run_plan(plan, out, tracking or observer, jobs=output.jobs, shard=shard)
        if result.comparison.cells:
            comparison = write_tables(out, result.comparison)
            report = write_report(out, with_figures=True)
    finally:  # Ctrl-C, too
        if tracking is not None:
            tracking.finish(comparison)
    if comparison is not None and output.as_json:
        extra = {"failed": result.failures, "path": str(out), "report": str(report)}
        print_json({**comparison.to_json(), **extra})
    elif comparison is not None and not output.quiet:
        show_comparison(comparison)
        print_line(f"report  {report}", "bold")
    raise_failures(result.failures, len(cells), out)


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
