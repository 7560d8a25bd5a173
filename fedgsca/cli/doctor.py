"""`fedgsca doctor`: what is installed, and what is missing for which command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from fedgsca.cli.options import Json
from fedgsca.support.console import print_json, print_line
from fedgsca.support.text import size_text

if TYPE_CHECKING:
    from fedgsca.support.installation import ExtraState, MachineFacts

_MIN_FREE = 2 * 1024**3  # bytes on the disk of the cache: fewer are worth a line
_OK, _MISSING = "green", "yellow"


def doctor(as_json: Json = False) -> None:
    """What is installed, what is missing for which command."""
    from fedgsca.support.installation import describe_machine, inspect_installation

    machine = describe_machine()
    states = inspect_installation()
    if as_json:
        extras = [state.to_json() | {"problems": state.problems} for state in states]
        print_json({"machine": machine.to_json(), "extras": extras})
    else:
        _print_machine(machine)
        for state in states:
            _print_extra(state)
        _print_disk()
    if states[0].problems:
        raise typer.Exit(1)


def _print_machine(machine: MachineFacts) -> None:
    print_line(
        f"fedgsca {machine.version}, Python {machine.python}, {machine.system} {machine.release}"
        f" ({machine.machine}), {machine.cores} cores",
        "bold",
    )
    if not machine.has_unix_sockets:
        print_line(
            "missing  deploy node: a hospital's machine in a federation needs Linux or macOS",
            _MISSING,
        )


def _print_extra(state: ExtraState) -> None:
    if not state.packages:
        print_line(f"unknown  {state.purpose}: fedgsca is not installed as a package", _MISSING)
        return
    name = f" [{state.extra}]" if state.extra else ""
    if not state.problems:
        versions = ", ".join(f"{package.name} {package.version}" for package in state.packages)
        print_line(f"ok       {state.purpose}{name}", _OK)
        print_line(f"         {versions}")
        return
    print_line(f"missing  {state.purpose}{name}: {'; '.join(state.problems)}", _MISSING)
    print_line(f"         Fix: {state.fix}")


def _print_disk() -> None:
    import shutil

    from fedgsca.data.cache import cache_folder

    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    remark = "" if free >= _MIN_FREE else " (little: decoded images are stored there)"
    print_line(f"cache    {cache_folder()}: {size_text(free)} free{remark}")
