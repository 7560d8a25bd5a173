"""`fedgsca efficiency`: how soon a model is good, for the paper's table or on any data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedgsca.cli import paper_table
from fedgsca.cli.options import (
    ConfigFile,
    Device,
    ExperimentFlags,
    Features,
    Frozen,
    Jobs,
    Json,
    Model,
    Partition,
    Preset,
    Quiet,
    Rounds,
    Sets,
    Sites,
    SkipUnreadable,
    source_slug,
)
from fedgsca.cli.paper_table import (
    Data,
    Merge,
    NoWeights,
    OnlyRender,
    Rows,
    ScaleName,
    ScaleOption,
    Seeds,
    Settings,
    ShardText,
    Weights,
)
from fedgsca.errors import ConfigError
from fedgsca.support.console import print_start
from fedgsca.support.text import plural

Noises = Annotated[
    list[str] | None,
    typer.Option(
        "--noise", help="on any data, under this noise, instead of the paper's table; repeatable"
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="folder; default runs/efficiency-<data>")]
_HELP = "Time to FedAvg's best F1 and to 95 % of the ceiling: the paper's table, or any data."
_DEFAULT_NOISE = "0-S40-P20-C20"
_DEFAULT_SEEDS = "3"
# what the paper's table needs and other data does not have
_PAPER_NEEDS = ("table.weights-required", "table.missing-dataset")


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    panel = "The paper's experiments"
    app.command("efficiency", help=_HELP, rich_help_panel=panel)(efficiency)


def efficiency(
    scale: ScaleOption = ScaleName.paper,
    data: Data = None,
    noise: Noises = None,
    weights: Weights = None,
    no_weights: NoWeights = False,
    methods: Rows = None,
    settings: Settings = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    sites: Sites = None,
    partition: Partition = None,
    model: Model = None,
    frozen: Frozen = False,
    features: Features = None,
    device: Device = None,
    skip_unreadable: SkipUnreadable = False,
    config_file: ConfigFile = None,
    sets: Sets = None,
    preset: Preset = None,
    out: Out = None,
    shard: ShardText = None,
    merge: Merge = None,
    only_render: OnlyRender = False,
    jobs: Jobs = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """`fedgsca efficiency`."""
    own_options = (noise, sites, partition, features, device, frozen, skip_unreadable)
    if not any(own_options):
        try:
            paper_table.make_command("efficiency")(
                scale=scale,
                data=data,
                weights=weights,
                no_weights=no_weights,
                methods=methods,
                settings=settings,
                seeds=seeds,
                rounds=rounds,
                model=model,
                config_file=config_file,
                sets=sets,
                preset=preset,
                out=out,
                shard=shard,
                merge=merge,
                only_render=only_render,
                jobs=jobs,
                quiet=quiet,
                as_json=as_json,
            )
        except ConfigError as error:
            if data and error.code in _PAPER_NEEDS:
                error.fix += "; to measure on any data instead of the paper's, add --noise S40"
            raise
        return
    paper_options = {
        "--scale mini": scale != ScaleName.paper,
        "--weights": weights is not None,
        "--no-weights": no_weights,
        "--settings": settings is not None,
        "--shard": shard is not None,
        "--merge": bool(merge),
        "--only-render": only_render,
    }
    for name, is_given in paper_options.items():
        if is_given:
            raise ConfigError(
                "grid.option-of-the-paper",
                f"{name} belongs to the paper's table, and --noise, --frozen, --sites, --partition,"
                " --features, --device and --skip-unreadable to a measurement on any data",
                fix=f"leave {name} out (weights of a network: --set model.weights=FILE), or leave"
                " out the others",
            )
    flags = ExperimentFlags(
        data=_one_source(data),
        rounds=rounds,
        sites=sites,
        partition=partition,
        model=model,
        frozen=frozen,
        features=features,
        device=device,
        skip_unreadable=skip_unreadable,
        preset=preset,
    )
    measure(
        flags,
        methods=methods or "all",
        noises=noise or [_DEFAULT_NOISE],
        seeds=seeds or _DEFAULT_SEEDS,
        config_file=config_file,
        sets=sets,
        out=out,
        jobs=jobs,
        quiet=quiet,
        as_json=as_json,
    )


def _one_source(sources: list[str] | None) -> str | None:
    if not sources:
        return None
    if len(sources) > 1:
        raise ConfigError(
            "grid.several-sources",
            f"one measurement has one data source, got {len(sources)}",
            fix="run the command once for each --data, each with its own --out",
        )
    return sources[0]


def measure(
    flags: ExperimentFlags,
    *,
    methods: str,
    noises: list[str],
    seeds: str,
    config_file: Path | None,
    sets: list[str] | None,
    out: Path | None,
    jobs: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run a comparison whose rounds are all scored, and show how soon each method is good."""
    from fedgsca.cli.chosen_settings import announce, check_sites, complete_tree
    from fedgsca.cli.compare import run_comparison
    from fedgsca.config import merge
    from fedgsca.grid.comparison import (
        ComparisonPlan,
        parse_methods,
        parse_noises,
        parse_seeds,
        read_plan,
    )
    from fedgsca.grid.time_to_accuracy import timed_methods, timed_tree

    names = timed_methods(parse_methods(methods))
    plan = ComparisonPlan(
        methods=names,
        noises=parse_noises(noises),
        seeds=parse_seeds(seeds),
        tree=timed_tree(flags.make_tree(config_file, sets)),
        is_timed=True,
    )
    source = plan.cells()[0].config.data.source  # reports unknown methods and settings, too
    folder = out or Path("runs") / f"efficiency-{source_slug(source)}"
    print_start(f"{plural(len(plan.cells()), 'run')} on {source}", quiet=quiet or as_json)
    earlier = read_plan(folder)
    if earlier is None or earlier != plan:
        tree = complete_tree(plan.tree, plan.noises, quiet=quiet or as_json)
        plan = replace(plan, tree=merge(tree, plan.tree))
    configs = [cell.config for cell in plan.cells()]
    check_sites(configs, quiet=quiet or as_json)
    if not quiet and not as_json:
        announce(configs, jobs)
    run_comparison(plan, folder, jobs=jobs, quiet=quiet, as_json=as_json, cautions=False)
