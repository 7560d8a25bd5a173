"""`fedgsca demo`: a two-minute tour."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import Jobs, Json, Quiet
from fedgsca.support.console import print_line

if TYPE_CHECKING:
    from fedgsca.noise import SiteNoise

Seed = Annotated[
    int, typer.Option("--seed", min=0, help="another split among the hospitals, other wrong labels")
]
Out = Annotated[Path, typer.Option("--out", help="folder")]
Ceiling = Annotated[
    bool,
    typer.Option(
        "--ceiling/--no-ceiling",
        help="also train FedAvg without the wrong labels, and show recovery",
    ),
]


def add(app: typer.Typer) -> None:
    app.command(
        "demo",
        help="Watch FedGSCA and FedAvg learn from the same wrong labels. Needs no data.",
        rich_help_panel="Train",
    )(demo)


def _wrong(noise: SiteNoise) -> str:
    how = {"S": " (any class)", "P": " (the next class)", "C": " (a look-alike)"}
    return "none" if noise.kind == "none" else f"{100 * noise.rate:g} %{how.get(noise.kind, '')}"


def demo(
    seed: Seed = 0,
    out: Out = Path("runs/demo"),
    ceiling: Ceiling = True,
    jobs: Jobs = 1,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    from fedgsca.cli.compare import execute
    from fedgsca.grid.demo_plan import NOISE, demo_plan, write_demo_sheet
    from fedgsca.noise import parse_noise

    plan = demo_plan(seed, ceiling=ceiling)
    loud = not (quiet or json)
    if loud:
        config = plan.cells()[0].config
        noise = parse_noise(NOISE, config.data.sites)
        print_line(
            f"{len(noise)} hospitals train one classifier for tissue images; no image leaves its hospital."
        )
        print_line(
            "Wrong labels: "
            + ", ".join(f"{_wrong(part)} at hospital {k}" for k, part in enumerate(noise, 1))
            + "."
        )
        print_line(
            f"FedAvg believes every label, FedGSCA finds the suspect ones: {config.train.rounds} rounds each.\n"
        )
    outcome = execute(plan, out, jobs=jobs, quiet=quiet, json=json)
    sheet = write_demo_sheet(plan, out)
    if loud:
        f1 = {cell.method: cell.f1 for cell in outcome.comparison.cells}
        print_line(f"images  {sheet}")
        gain = f1["fedgsca"] - f1["fedavg"]
        scores = f"{f1['fedavg']:.1f} with FedAvg, {f1['fedgsca']:.1f} with FedGSCA"
        print_line(
            f"\nMacro F1 {scores}: {abs(gain):.1f} points {'won' if gain >= 0 else 'lost'}.", "bold"
        )
