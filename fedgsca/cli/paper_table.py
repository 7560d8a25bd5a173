"""`fedgsca table NAME`: an experiment of the paper, as a comparison with its printed numbers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedgsca.cli.compare import Ceiling, Noises, ShardText
from fedgsca.cli.options import Jobs, Json, Quiet, Settings, experiment_options, source_slug
from fedgsca.errors import ConfigError
from fedgsca.support.console import print_json
from fedgsca.support.text import did_you_mean


class ScaleName(StrEnum):
    """The paper's own scale, or a small one for any machine."""

    paper = "paper"
    mini = "mini"


Name = Annotated[str | None, typer.Argument(help="the experiment; without it, all are listed")]
ScaleOption = Annotated[
    ScaleName,
    typer.Option("--scale", help="paper: its data, network and rounds; mini: on any data"),
]
Data = Annotated[
    str | None, typer.Option("--data", help="kvasir:ROOT, odir:ROOT, chaoyang:ROOT; mini: any")
]
Rows = Annotated[
    str | None,
    typer.Option(
        "--methods", help="rows joined by commas, all or paper; default: the paper's and FedGSCA-E"
    ),
]
Seeds = Annotated[
    str | None, typer.Option("--seeds", help="how many or which; default 5 (paper), 3 (mini)")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="folder; default runs/<name>-<scale>-<data>")
]


@experiment_options("rounds", "model", "preset")
def table(
    settings: Settings,
    name: Name = None,
    scale: ScaleOption = ScaleName.paper,
    data: Data = None,
    noise: Noises = None,
    methods: Rows = None,
    seeds: Seeds = None,
    ceiling: Ceiling = True,
    out: Out = None,
    shard: ShardText = None,
    jobs: Jobs = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure of the paper, its numbers beside ours."""
    from fedgsca.cli.compare import Output, start_comparison
    from fedgsca.lab.paper import EXPERIMENTS, make_plan
    from fedgsca.lab.plan import parse_methods, parse_seeds
    from fedgsca.lab.runner import parse_shard

    if name is None:
        list_experiments(as_json=as_json)
        return
    if name not in EXPERIMENTS:
        raise ConfigError(
            "table.unknown-name",
            f"the paper has no experiment {name!r}",
            fix=f"{did_you_mean(name, EXPERIMENTS)}use one of: {', '.join(EXPERIMENTS)}",
        )
    plan = make_plan(
        EXPERIMENTS[name],
        scale.value,
        data,
        rows=parse_methods(methods) if methods else (),
        noises=tuple(noise or ()),
        seeds=parse_seeds(seeds) if seeds else (),
        tree=settings.tree,
        ceiling=ceiling,
    )
    parts = (name, scale.value, source_slug(data or ""))
    folder = out or Path("runs") / "-".join(part for part in parts if part)
    output = Output(jobs, quiet=quiet, as_json=as_json)
    start_comparison(plan, folder, output, parse_shard(shard))


def list_experiments(*, as_json: bool) -> None:
    """All experiments with their numbers of runs."""
    from fedgsca.lab.paper import DATASETS, EXPERIMENTS, SEEDS_OF, read_numbers
    from fedgsca.lab.table import Table, print_tables

    places = read_numbers()["experiments"]
    rows = []
    records = []
    for name, experiment in EXPERIMENTS.items():
        place = places.get(name, {}).get("where", "figure")
        size = len(experiment.rows) * len(experiment.noises)
        runs = {scale: seeds * size for scale, seeds in SEEDS_OF.items()}
        title = f"{DATASETS[experiment.dataset].title}, {experiment.title}"
        rows.append([name, place, title, str(runs["paper"]), str(runs["mini"])])
        records.append({"name": name, "paper": place, "title": title, "runs": runs})
    if as_json:
        print_json({"experiments": records})
        return
    note = (
        "Runs without the ceiling: 5 seeds at paper scale, 3 at mini scale. On the paper's machine"
        " (two RTX 3090) a FedAvg run of Kvasir-Capsule takes 3.7 hours."
    )
    head = ["experiment", "paper", "", "runs", "mini runs"]
    print_tables([Table("fedgsca table NAME", head, rows, words=(1, 2), note=note)])
