"""`fedgsca bench`: how fast this machine trains, as a table that fits into an issue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import Json
from fedgsca.support.console import print_json, print_line, print_start
from fedgsca.support.text import DASH

if TYPE_CHECKING:
    from fedgsca.engine.device_speed import DeviceFacts, NetworkSpeed, RoundSpeed

Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps")]
Networks = Annotated[
    str | None,
    typer.Option("--networks", help="networks and image sizes, such as cnn:28,resnet18:64"),
]
BatchSize = Annotated[int, typer.Option("--batch", min=2, help="images per step")]
Threads = Annotated[int, typer.Option("--threads", min=1, help="torch threads")]
Seconds = Annotated[
    float, typer.Option("--seconds", min=0, help="duration of each measurement, about")
]
CompileNetworks = Annotated[
    bool, typer.Option("--compile", help="compile the networks (train.compile)")
]
Rounds = Annotated[
    bool, typer.Option("--rounds/--no-rounds", help="also time whole rounds of two methods")
]


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    text = "Measure how fast this machine trains; the table can be sent to us."
    app.command("bench", help=text, rich_help_panel="Understand")(bench)


def bench(
    device: Device = "auto",
    networks: Networks = None,
    batch: BatchSize = 32,
    threads: Threads = 2,
    seconds: Seconds = 2.0,
    compile_networks: CompileNetworks = False,
    rounds: Rounds = True,
    as_json: Json = False,
) -> None:
    """`fedgsca bench`."""
    print_start(f"measuring {device}", quiet=as_json)
    from fedgsca.config import TrainConfig
    from fedgsca.engine import device_speed
    from fedgsca.models.device import prepare_device

    settings = TrainConfig(
        device=device, batch_size=batch, threads=threads, compile=compile_networks
    )
    cases = device_speed.DEFAULT_CASES
    if networks is not None:
        cases = device_speed.parse_cases(networks)
    facts = device_speed.describe_device(settings, prepare_device(settings))
    if not as_json:
        _print_facts(facts)
    network_rows = []
    for network in device_speed.measure_networks(cases, settings, seconds):
        network_rows.append(network)
        if not as_json:
            _print_network(network)
    round_rows: list[RoundSpeed] = []
    if rounds:
        round_rows = list(device_speed.measure_rounds(settings, (1, 2)))
    if as_json:
        print_json(
            {
                **facts.to_json(),
                "networks": [row.to_json() for row in network_rows],
                "rounds": [row.to_json() for row in round_rows],
            }
        )
    elif round_rows:
        _print_rounds(round_rows)


def _print_facts(facts: DeviceFacts) -> None:
    suffix = ", compiled" if facts.is_compiled else ""
    print_line(
        f"fedgsca {facts.version}, torch {facts.torch}, Python {facts.python}, {facts.device},"
        f" {facts.threads} threads, {facts.precision}{suffix}"
    )
    print_line("\n| network:pixels | batch | training, images/s | evaluation, images/s | MB |")
    print_line("|---|---|---|---|---|")


def _print_network(row: NetworkSpeed) -> None:
    memory = DASH if row.memory is None else f"{row.memory:.0f}"
    print_line(
        f"| {row.network} | {row.batch} | {row.training:.0f} | {row.evaluation:.0f} | {memory} |"
    )


def _print_rounds(rows: list[RoundSpeed]) -> None:
    """Seconds of a round, and how many times as long as FedAvg it takes with as many processes."""
    print_line("\n| cnn, 4 sites of 200 images | processes | s/round | times FedAvg |")
    print_line("|---|---|---|---|")
    baseline = {row.jobs: row.seconds for row in rows if row.method == "fedavg"}
    for row in rows:
        ratio = row.seconds / baseline[row.jobs]
        print_line(f"| {row.method} | {row.jobs} | {row.seconds:.3f} | {ratio:.2f} |")
