"""`fedgsca tune`: choose the learning rate without a clean label."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    Noise,
    Partition,
    Quiet,
    Rounds,
    Seed,
    Sets,
    Sites,
    SkipUnreadable,
    source_slug,
)
from fedgsca.engine.progress import display
from fedgsca.errors import ConfigError
from fedgsca.support.console import (
    make_table,
    print_json,
    print_line,
    print_note,
    print_start,
    print_table,
    resume_hint,
)
from fedgsca.support.text import plural

if TYPE_CHECKING:
    from fedgsca.grid.rate_search import RateSearch, SearchPlan

Methods = Annotated[
    str, typer.Option("--methods", help="names joined by commas; the first wins a tie")
]
Rates = Annotated[
    str, typer.Option("--lr", help="learning rates joined by commas; the configured one is added")
]
Holdout = Annotated[
    float,
    typer.Option("--holdout", help="share of each site's images that the search does not train on"),
]
Out = Annotated[Path | None, typer.Option("--out", help="folder; default runs/tune-<data>")]


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    text = "Choose learning rate and method without a clean label."
    app.command("tune", help=text, rich_help_panel="Train")(tune)


def tune(
    methods: Methods = "fedgsca,fedavg",
    rates: Rates = "0.005,0.05,0.5",
    holdout: Holdout = 0.2,
    data: Data = None,
    noise: Noise = None,
    rounds: Rounds = None,
    seed: Seed = None,
    sites: Sites = None,
    partition: Partition = None,
    labels: Labels = None,
    model: Model = None,
    frozen: Frozen = False,
    features: Features = None,
    device: Device = None,
    skip_unreadable: SkipUnreadable = False,
    config_file: ConfigFile = None,
    sets: Sets = None,
    out: Out = None,
    jobs: Jobs = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """`fedgsca tune`."""
    from fedgsca.cli.chosen_settings import complete_tree
    from fedgsca.grid.comparison import parse_methods
    from fedgsca.grid.rate_search import SearchPlan, read_search_plan

    flags = ExperimentFlags(
        data=data,
        noise=noise,
        rounds=rounds,
        seed=seed,
        sites=sites,
        partition=partition,
        labels=labels,
        model=model,
        frozen=frozen,
        features=features,
        device=device,
        skip_unreadable=skip_unreadable,
    )
    tree = flags.make_tree(config_file, sets)
    plan = SearchPlan(parse_methods(methods), parse_rates(rates), tree, holdout)
    source = plan.cells()[0].config.data.source
    folder = out or Path("runs") / f"tune-{source_slug(source)}"
    print_start(f"{plural(len(plan.cells()), 'run')} on {source}", quiet=quiet or as_json)
    plan = replace(plan, tree=complete_tree(tree, quiet=quiet))
    earlier = read_search_plan(folder)
    if earlier is not None and earlier != plan and not quiet:
        print_note("the folder holds a search over other candidates; its runs are kept", "yellow")
    run_search(plan, folder, jobs=jobs, quiet=quiet, as_json=as_json)


def parse_rates(text: str) -> tuple[float, ...]:
    """ "0.005,0.05" as numbers above 0."""
    try:
        rates = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < math.inf for rate in rates):
        raise ConfigError(
            "tune.invalid-rates",
            f"--lr {text!r} is not a list of learning rates",
            fix="use numbers above 0, such as --lr 0.005,0.05,0.5",
        )
    return rates


def run_search(plan: SearchPlan, out: Path, *, jobs: int, quiet: bool, as_json: bool) -> None:
    """Start or resume a search; then the table, the choice and the command for the final run."""
    from fedgsca.cli.compare import GridDisplay
    from fedgsca.grid.rate_search import search_rates
    from fedgsca.grid.runner import finished_cells

    cells = plan.cells()
    num_open = len(cells) - len(finished_cells(cells, out))
    with resume_hint(out), display(quiet=quiet, runs=num_open) as progress:
        search = search_rates(plan, out, GridDisplay(progress), jobs=jobs)
    if as_json:
        print_json({**search.to_json(), "path": str(out)})
    elif not quiet:
        show_search(search)


def show_search(search: RateSearch) -> None:
    """The candidates, best first, and what was chosen."""
    order = sorted(search.candidates, key=lambda item: -item.expected_f1)
    rows = []
    for item in order:
        is_chosen = (item.method, item.lr) == (search.method, search.lr)
        mark = "*" if is_chosen else " "
        rows.append(
            [item.method, f"{item.lr:g}", f"{item.expected_f1:.1f}{mark}", f"{item.f1:.1f}"]
        )
    header = ["method", "lr", "expected F1", "test F1 (not used)"]
    print_table(make_table(header, rows))
    print_line(f"chosen  {search.method} with learning rate {search.lr:g}: {search.reason}", "bold")
    print_line(
        f"Train it on all images: `fedgsca run` with the same options, --method {search.method} "
        f"--set train.lr={search.lr:g}"
    )
