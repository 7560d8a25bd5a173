"""`fedgsca deploy`: kits for a consortium, the check at a hospital, the state of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedgsca.cli.options import Json
from fedgsca.errors import ConfigError
from fedgsca.support.console import console, make_table, print_json, print_line, print_table
from fedgsca.support.text import duration, number

Plan = Annotated[Path, typer.Argument(metavar="FILE", help="consortium.toml")]
Out = Annotated[
    Path | None, typer.Option("--out", help="new folder for the kits; default: `kits` beside FILE")
]
Example = Annotated[
    bool, typer.Option("--example", help="write FILE as an example with comments, and nothing else")
]
Add = Annotated[
    str | None,
    typer.Option("--add-hospital", metavar="NAME", help="make the kit of one more hospital"),
]
Renew = Annotated[
    bool, typer.Option("--renew-server", help="make a new server certificate for the kits in --out")
]
Kit = Annotated[
    Path,
    typer.Argument(
        metavar="KIT", help="folder of a kit, a hospital's or the coordinator's; default: here"
    ),
]
Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="the coordinator's run folder; default: run")
]
Experiment = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="experiment.toml of the coordinator's kit")
]
NewRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="run folder, new or of the same experiment")
]

group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


def add(app: typer.Typer) -> None:
    app.add_typer(
        group,
        name="deploy",
        help="Train across real hospitals: kits, checks, state.",
        rich_help_panel="Train",
    )


@group.command("init")
def init(
    plan: Plan,
    out: Out = None,
    example: Example = False,
    add_hospital: Add = None,
    renew_server: Renew = False,
    json: Json = False,
) -> None:
    """Make certificates, keys and one kit for each party from consortium.toml. Existing keys are never overwritten."""
    from fedgsca.deploy import kits
    from fedgsca.deploy.consortium import read_plan

    if example:
        if add_hospital or out or renew_server:
            raise ConfigError(
                "todo.deploy-1",
                "--example goes with no other option",
                fix="fedgsca deploy init --example consortium.toml",
            )
        kits.write_example(plan)
        print_line(f"example  {plan}", "bold")
        return
    consortium, config = read_plan(plan)
    folder = out or plan.parent / "kits"
    if renew_server:
        if add_hospital:
            raise ConfigError(
                "todo.deploy-2",
                "--renew-server and --add-hospital are two steps",
                fix="do one after the other",
            )
        path = kits.renew_server(consortium, folder)
        if json:
            print_json({"certificate": str(path)})
        else:
            print_line(
                f"certificate  {path}  (and server.key; copy both to the coordinator's machine and restart the SuperLink)"
            )
        return
    made = (
        [kits.add_hospital(consortium, config, folder, add_hospital)]
        if add_hospital
        else kits.make_kits(consortium, config, folder)
    )
    if json:
        print_json(
            {
                "kits": [str(path) for path in made],
                "coordinator": str(folder / "coordinator"),
                "fingerprint": config.fingerprint(),
            }
        )
        return
    for path in made:
        print_line(f"hospital     {path}  (a secret key is in it)")
    print_line(f"coordinator  {folder / 'coordinator'}  (go on with its README.md)")
    if add_hospital:
        print_line(
            f'The experiment has changed. The other hospitals agree by fingerprint = "{config.fingerprint()}" in site.toml.'
        )
    else:
        print_line(
            f"authority    {folder / 'authority'}  (carry it away; no machine needs it for the training)"
        )


@group.command("check")
def check(kit: Kit = Path(), json: Json = False) -> None:
    """Before the start, at a hospital or the coordinator: network, certificate, keys, versions, disk, data. Exit code 1 on failure."""
    from fedgsca.deploy.check_kit import check_kit

    found = []
    for finding in check_kit(kit):
        found.append(finding)
        if not json:
            style = {"ok": "green", "FAIL": "bold red", "unknown": "yellow"}[finding.state]
            console().print(
                f"{finding.state:8}{finding.what}: {finding.text}", style=style, soft_wrap=True
            )
            if finding.fix:
                print_line(f"        Fix: {finding.fix}")
    failures = sum(finding.state == "FAIL" for finding in found)
    if json:
        print_json({"ok": not failures, "findings": [asdict(finding) for finding in found]})
    else:
        print_line(f"{failures} of {len(found)} checks failed" if failures else "ready to start", "bold")
    if failures:
        raise typer.Exit(1)


@group.command("app")
def app(config: Experiment, run: NewRun) -> None:
    """At the coordinator: make the run folder and the small app in it that `flwr run` starts."""
    from fedgsca.config import load_config
    from fedgsca.deploy.flower_app import write_app
    from fedgsca.experiment.deployment import prepare_coordinator

    made = load_config(config)
    prepare_coordinator(made)  # what is wrong with the settings is told here, not in Flower's log
    print_line(f"app  {write_app(made, run)}", "bold")


@group.command("status")
def status(run: Run = Path("run"), json: Json = False) -> None:
    """At the coordinator: which sites are there, who is awaited and since when, rounds done, last F1."""
    from fedgsca.deploy.status_view import view

    seen = view(run)
    if json:
        print_json({**asdict(seen), "awaited": seen.awaited})
        return
    ago = "" if seen.silent is None else f"; last sign of life {duration(seen.silent)} ago"
    print_line(f"{seen.state}{ago}", "bold")
    print_line(f"round {seen.round} of {seen.rounds} done, last F1 {number(seen.f1)}")
    rows = [
        [row.site, row.state, row.since, "–" if row.seconds is None else duration(row.seconds)]
        for row in seen.sites
    ]
    print_table(make_table(["site", "state", "since", "for"], rows, text_columns=3))
    for message in seen.messages[-5:]:
        print_line(message, "dim")
