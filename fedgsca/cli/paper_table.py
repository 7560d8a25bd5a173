"""`fedgsca table NAME` and its sisters: the paper's experiments, run as far as they are missing, rendered beside its numbers."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import (
    ConfigFile,
    Jobs,
    Json,
    Model,
    Preset,
    Quiet,
    Rounds,
    Sets,
    make_tree,
    short,
)
from fedgsca.errors import ConfigError, WeightsError
from fedgsca.paper.experiments import GRIDS, TABLES

if TYPE_CHECKING:
    from fedgsca.config import Tree
    from fedgsca.paper.request import Request

Command = Callable[..., None]


class ScaleName(StrEnum):
    paper = "paper"
    mini = "mini"


Scaled = Annotated[
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
Rows = Annotated[str | None, typer.Option("--methods", help="only these rows, joined by commas")]
Settings = Annotated[
    str | None, typer.Option("--settings", help="only these columns, joined by commas")
]
Seeds = Annotated[
    str | None, typer.Option("--seeds", help="how many or which; default 5 (paper), 3 (mini)")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="folder; default runs/<name>-<scale>-<data>")
]
Part = Annotated[
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
List = Annotated[bool, typer.Option("--list", help="all experiments with grid and cost")]

group = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")


def add(app: typer.Typer) -> None:
    panel = "The paper's experiments"
    for name in TABLES:
        group.command(name, help=f"{GRIDS[name].title}.")(_command(name))
    app.add_typer(
        group, name="table", help="Reproduce a table of the paper.", rich_help_panel=panel
    )
    for name in GRIDS:
        if name not in TABLES:
            app.command(name, help=f"{GRIDS[name].title}.", rich_help_panel=panel)(_command(name))


@group.callback()
def table(context: typer.Context, list_all: List = False, json: Json = False) -> None:
    """Reproduce a table of the paper: run what is missing, resume after a kill, print the paper's numbers beside ours."""
    if context.invoked_subcommand is not None:
        return
    if not list_all:
        raise ConfigError(
            "todo.paper-table-1",
            "which table?",
            fix=f"one of {', '.join(TABLES)}; `fedgsca table --list` shows what they cost",
        )
    from fedgsca.cli.paper_table_list import show_list

    show_list(json=json)


def _command(name: str) -> Command:
    def command(
        scale: Scaled = ScaleName.paper,
        data: Data = None,
        weights: Weights = None,
        no_weights: NoWeights = False,
        methods: Rows = None,
        settings: Settings = None,
        seeds: Seeds = None,
        rounds: Rounds = None,
        model: Model = None,
        config: ConfigFile = None,
        sets: Sets = None,
        preset: Preset = None,
        out: Out = None,
        shard: Part = None,
        merge: Merge = None,
        only_render: OnlyRender = False,
        jobs: Jobs = 1,
        quiet: Quiet = False,
        json: Json = False,
    ) -> None:
        from fedgsca.cli.paper_table_run import execute
        from fedgsca.grid.comparison import parse_seeds
        from fedgsca.grid.runner import parse_shard
        from fedgsca.paper.request import Request, check_settings, choose
        from fedgsca.paper.scales import SEEDS_OF

        grid = GRIDS[name]
        tree = make_tree(config, sets, rounds=rounds, model=model, preset=preset)
        check_settings(tree)
        if scale == ScaleName.paper:
            tree = _with_weights(tree, weights, no_weights)
        elif weights or no_weights:
            raise ConfigError(
                "todo.paper-table-2",
                "--weights and --no-weights belong to --scale paper",
                fix="--set model.weights=FILE, with --model",
            )
        request = Request(
            name, scale.value, tuple(data or ()), choose("--methods", methods, (line.key for line in grid.rows)),
            choose("--settings", settings, (column.key for column in grid.columns)), parse_seeds(seeds or str(SEEDS_OF[scale.value])),
            tree, no_weights,
        )  # fmt: skip
        where = out or default_out(request)
        execute(
            request,
            where,
            parse_shard(shard),
            merge or [],
            only_render=only_render,
            jobs=jobs,
            quiet=quiet,
            json=json,
        )

    return command


def _with_weights(tree: Tree, weights: Path | None, no_weights: bool) -> Tree:
    """The paper starts from LVM-Med; to start from anything else must be said."""
    from fedgsca.config import merge

    named = tree.get("model", {}).get("weights") or weights
    if no_weights and named:
        raise ConfigError(
            "todo.paper-table-3",
            "--no-weights and a weights file are both given",
            fix="leave one of them out",
        )
    if named is None and not no_weights:
        raise ConfigError(
            "todo.paper-table-4",
            "the paper's network starts from LVM-Med ResNet-50 weights",
            fix="--weights lvmmed_resnet.torch, or --no-weights to do without",
        )
    if named is not None and not Path(named).expanduser().is_file():
        raise WeightsError(
            "todo.paper-table-5",
            f"weights file {named} does not exist",
            fix="check the path given to --weights",
        )
    return merge(tree, {"model": {"weights": str(named)}}) if named else tree


def default_out(request: Request) -> Path:
    data = "-".join(dict.fromkeys(short(source) for source in request.data))
    return Path("runs") / "-".join(part for part in (request.name, request.scale, data) if part)
