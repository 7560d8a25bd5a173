"""`fedgsca table NAME` and other experiments of the paper, rendered beside its numbers."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import (
    ConfigFile,
    ExperimentFlags,
    Jobs,
    Json,
    Model,
    Preset,
    Quiet,
    Rounds,
    Sets,
    source_slug,
)
from fedgsca.errors import ConfigError, WeightsError
from fedgsca.paper.experiments import GRIDS, TABLES

if TYPE_CHECKING:
    from fedgsca.config import Tree
    from fedgsca.paper.request import Request

Command = Callable[..., None]


class ScaleName(StrEnum):
    """The paper's own scale, or a small one for any machine."""

    paper = "paper"
    mini = "mini"


ScaleOption = Annotated[
    ScaleName,
    typer.Option(
        "--scale",
        help="paper: its data, network and rounds; mini: frozen features on any data",
        show_default=True,
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data", help="kvasir:ROOT, odir:ROOT, chaoyang:ROOT; mini: any source. Repeatable"
    ),
]
Weights = Annotated[
    Path | None, typer.Option("--weights", help="LVM-Med ResNet-50 weights (paper scale)")
]
NoWeights = Annotated[
    bool, typer.Option("--no-weights", help="paper scale from random weights; every output says so")
]
Rows = Annotated[
    str | None,
    typer.Option(
        "--methods", help="rows joined by commas, all or paper; default: those of the paper"
    ),
]
Settings = Annotated[
    str | None, typer.Option("--settings", help="only these columns, joined by commas")
]
Seeds = Annotated[
    str | None, typer.Option("--seeds", help="how many or which; default 5 (paper), 3 (mini)")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="folder; default runs/<name>-<scale>-<data>")
]
ShardText = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/N", help="run every n-th cell only, for several machines"),
]
Merge = Annotated[
    list[Path] | None,
    typer.Option("--merge", metavar="DIR", help="take finished cells from this folder. Repeatable"),
]
OnlyRender = Annotated[
    bool, typer.Option("--only-render", help="run nothing, render what is finished")
]
ListAll = Annotated[bool, typer.Option("--list", help="all experiments with grid and cost")]

group = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    panel = "The paper's experiments"
    for name in TABLES:
        group.command(name, help=f"{GRIDS[name].title}.")(make_command(name))
    app.add_typer(
        group, name="table", help="Reproduce a table of the paper.", rich_help_panel=panel
    )
    for name in GRIDS:
        if name not in TABLES and name != "efficiency":  # which does more: cli/efficiency.py
            help_text = f"{GRIDS[name].title}."
            app.command(name, help=help_text, rich_help_panel=panel)(make_command(name))


@group.callback()
def table(context: typer.Context, list_all: ListAll = False, as_json: Json = False) -> None:
    """Reproduce a table of the paper, with the paper's numbers beside ours.

    Runs that are finished are kept; the same command continues after an interruption.
    """
    if context.invoked_subcommand is not None:
        return
    if not list_all:
        raise ConfigError(
            "table.no-name",
            "the name of the table is missing",
            fix=f"use one of: {', '.join(TABLES)}; `fedgsca table --list` shows what they cost",
        )
    from fedgsca.cli.paper_table_list import show_list

    show_list(as_json=as_json)


def make_command(name: str) -> Command:
    """The function behind the command of an experiment."""

    def command(
        scale: ScaleOption = ScaleName.paper,
        data: Data = None,
        weights: Weights = None,
        no_weights: NoWeights = False,
        methods: Rows = None,
        settings: Settings = None,
        seeds: Seeds = None,
        rounds: Rounds = None,
        model: Model = None,
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
        from fedgsca.cli.paper_table_run import TableOptions, run_table
        from fedgsca.grid.comparison import parse_seeds
        from fedgsca.grid.runner import parse_shard
        from fedgsca.paper.request import Request, check_settings, choose, choose_rows
        from fedgsca.paper.scales import SEEDS_OF

        grid = GRIDS[name]
        flags = ExperimentFlags(rounds=rounds, model=model, preset=preset)
        tree = flags.make_tree(config_file, sets)
        check_settings(tree)
        if scale == ScaleName.paper:
            tree = _add_weights(tree, weights, no_weights)
        elif weights or no_weights:
            raise ConfigError(
                "table.weights-at-mini-scale",
                "--weights and --no-weights can be used with --scale paper only",
                fix="use --set model.weights=FILE together with --model",
            )
        request = Request(
            name=name,
            scale=scale.value,
            data=tuple(data or ()),
            rows=choose_rows(grid, methods),
            columns=choose("--settings", settings, (column.key for column in grid.columns)),
            seeds=parse_seeds(seeds or str(SEEDS_OF[scale.value])),
            tree=tree,
            without_weights=no_weights,
        )
        options = TableOptions(
            shard=parse_shard(shard),
            merge=merge or (),
            only_render=only_render,
            jobs=jobs,
            quiet=quiet,
            as_json=as_json,
        )
        run_table(request, out or default_out(request), options)

    return command


def _add_weights(tree: Tree, weights: Path | None, no_weights: bool) -> Tree:
    """The paper starts from LVM-Med; any other start must be explicit."""
    from fedgsca.config import merge

    file = tree.get("model", {}).get("weights") or weights
    if no_weights and file:
        raise ConfigError(
            "table.conflicting-weights",
            "--no-weights and a weights file cannot be combined",
            fix="remove one of them",
        )
    if no_weights:
        return tree
    if file is None:
        raise ConfigError(
            "table.weights-required",
            "the paper's network starts from LVM-Med ResNet-50 weights, and no file is given",
            fix="add --weights lvmmed_resnet.torch, or --no-weights to start from random weights",
        )
    if not Path(file).expanduser().is_file():
        raise WeightsError(
            "weights.file-not-found",
            f"the weights file {file} does not exist",
            fix="check the path given to --weights",
        )
    return merge(tree, {"model": {"weights": str(file)}})


def default_out(request: Request) -> Path:
    """The folder of a table without --out."""
    data = "-".join(dict.fromkeys(source_slug(source) for source in request.data))
    return Path("runs") / "-".join(part for part in (request.name, request.scale, data) if part)
