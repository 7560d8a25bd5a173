"""How long a person waits: seconds from a command to its first line and to its end.

    python -m benchmarks.waiting [--repeats 3] [--out FILE.json]

A small run, its audit and an example folder are made first. Then every command is started as from
a shell, in turn, as often as `--repeats` says. The columns are medians: seconds until the first
character on stdout or stderr, seconds until the end, the CPU seconds (user and system) of the
process at both moments, and which of the heavy packages it had imported at its end. On a busy
machine, read the CPU seconds: on a free one they are nearly the time that passes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HEAVY = ("torch", "monai", "matplotlib", "scipy", "sklearn", "flwr", "pydantic", "numpy")

# What the console script does, and a list of the heavy packages at the end. os._exit, which some
# commands use, would lose it: they have an empty list.
PROGRAM = """
import atexit, json, os, sys
def list_heavy():
    with open(os.environ["WAITING_FILE"], "w") as handle:
        json.dump([name for name in {heavy!r} if name in sys.modules], handle)
atexit.register(list_heavy)
from fedgsca.cli import main
main()
"""

PREPARATION = (
    "data example images",
    "run --data synthetic --set data.train=160 --set data.test=60 --rounds 6 --noise S40"
    " --set data.image_size=28 --set train.threads=1 --out run --quiet",
    "audit run --quiet",
)

COMMANDS = (
    "--version",
    "--help",
    "run --help",
    "methods",
    "methods fedgsca",
    "config",
    "config --diff paper",
    "wire fedgsca",
    "noise 0-S40-P20-C20",
    "privacy --help",
    "data list",
    "data check images",
    "data cache",
    "benchmark list",
    "report run",
    "audit run",
    "audit run --site site-1",
    "review run/audit/site-1 --summary",
    "apply run/audit/site-1",
    "exchange export run/audit/site-1 --format cleanlab -o suspects.csv",
    "resume run",
    "run --data nowhere.npz",
    "run --method fedsgca",
    "run --data synthetic --set data.train=160 --set data.test=60 --rounds 2 --noise S40"
    " --set data.image_size=28 --set train.threads=1 --out another",
    "predict run images",
    "deploy status run",
)


@dataclass(frozen=True)
class Wait:
    """One start of a command."""

    first_line: float
    end: float
    # None where the system does not say
    first_line_cpu: float | None
    cpu: float
    heavy: tuple[str, ...]
    code: int


@dataclass(frozen=True)
class Row:
    """A command with the medians of its starts."""

    command: str
    first_line: float
    end: float
    # None where the system does not say
    first_line_cpu: float | None
    cpu: float
    heavy: tuple[str, ...]
    code: int


def start(arguments: Sequence[str], folder: Path) -> Wait:
    """Start the command in `folder` and watch its output."""
    listing = folder / "heavy.json"
    listing.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "WAITING_FILE": str(listing),
        "FEDGSCA_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
    }
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(heavy=HEAVY), *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    first_line = time.monotonic() - begin
    first_line_cpu = _cpu_seconds(process.pid)
    while first and process.stdout.read(65536):
        pass
    process.stdout.close()
    # wait4 instead of wait: it has the CPU seconds of this process and of no other
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    heavy = tuple(json.loads(listing.read_text())) if listing.exists() else ()
    end = time.monotonic() - begin
    cpu = usage.ru_utime + usage.ru_stime
    return Wait(first_line, end, first_line_cpu, cpu, heavy, process.returncode)


def _cpu_seconds(process_id: int) -> float | None:
    """What the process has used so far; only Linux says it."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return None
    # the fields after the name of the program, which may contain spaces: 12 and 13 are the times
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(command: str, folder: Path, repeats: int) -> Row:
    """The medians of some starts of one command."""
    waits = [start(command.split(), folder) for _ in range(repeats)]
    return Row(
        command=command,
        first_line=statistics.median(wait.first_line for wait in waits),
        end=statistics.median(wait.end for wait in waits),
        first_line_cpu=_median_of_known([wait.first_line_cpu for wait in waits]),
        cpu=statistics.median(wait.cpu for wait in waits),
        heavy=waits[-1].heavy,
        code=waits[-1].code,
    )


def _median_of_known(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def format_row(row: Row) -> str:
    """A line of the table; the lines are Markdown."""
    command = row.command if len(row.command) <= 60 else row.command[:57] + "..."
    heavy = ", ".join(name for name in row.heavy if name not in ("pydantic", "numpy"))
    first_cpu = "–" if row.first_line_cpu is None else f"{row.first_line_cpu:.2f}"
    return (
        f"| `{command}` | {row.first_line:.2f} | {row.end:.2f} | {first_cpu} | {row.cpu:.2f} |"
        f" {heavy or '–'} | {row.code} |"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=3, help="starts of every command")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    parser.add_argument("--only", default="", help="only commands that contain this text")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="fedgsca-waiting-") as name:
        folder = Path(name)
        for command in PREPARATION:
            wait = start(command.split(), folder)
            if wait.code != 0:
                print(f"preparation failed with exit code {wait.code}: fedgsca {command}")
                return 1
        print(
            "| fedgsca ... | first line, s | end, s | CPU at first line, s | CPU at end, s |"
            " heavy packages | exit code |"
        )
        print("|---|---|---|---|---|---|---|", flush=True)
        rows = []
        for command in COMMANDS:
            if arguments.only in command:
                rows.append(measure(command, folder, arguments.repeats))
                print(format_row(rows[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
