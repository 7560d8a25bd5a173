"""Runs a grid of experiments. Every cell is a run folder of its own, OUT/cells/<cell>, so a grid can be stopped and continued at any
time, extended, and spread over processes and machines.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from fedgsca.config import Config, differences
from fedgsca.engine.rounds import RunObserver, run
from fedgsca.errors import ConfigError, FedgscaError, RunFolderError
from fedgsca.experiment.run_folder import read_config

Role = Literal["method", "ceiling", "clean"]
Results = dict[str, dict[str, Any]]  # cell -> content of its result.json


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    name: str  # its folder below cells/
    row: str
    column: str
    seed: int
    config: Config
    role: Role = "method"

    @property
    def noise(self) -> str:
        return self.config.noise.spec


class Audience(Protocol):
    """Shows the progress of a grid to a person."""

    def watch(self, cell: Cell) -> RunObserver: ...
    def finished(self, cell: Cell, result: Mapping[str, Any]) -> None: ...
    def failed(self, cell: Cell, error: Exception) -> None: ...


def folder_of(cell: Cell, out: Path) -> Path:
    return out / "cells" / cell.name


def finished_cells(cells: Iterable[Cell], out: Path) -> Results:
    """Results of the cells that need not run again."""
    paths = {cell.name: folder_of(cell, out) / "result.json" for cell in cells}
    return {name: _read(path) for name, path in paths.items() if path.is_file()}


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            "todo.runner-1",
            f"{path} is damaged: {error}",
            fix=f"delete the folder {path.parent}; this one run is then made again",
        ) from None


def check_folder(cells: Iterable[Cell], out: Path, *, marker: str, what: str) -> None:
    """Before anything runs: the folder is new or of this kind, and the cells it has are those that are asked for."""
    if out.exists() and not out.is_dir():
        raise RunFolderError("todo.runner-2", f"{out} is a file", fix="choose a folder with --out")
    foreign = out.is_dir() and any(
        entry.name != ".lock" and entry.suffix != ".tmp" for entry in out.iterdir()
    )
    if foreign and not (out / marker).exists():
        raise RunFolderError(
            "todo.runner-3",
            f"{out} is not empty and not a {what}",
            fix="choose a new folder with --out",
        )
    for cell in cells:
        changed = changes(cell, folder_of(cell, out))
        if changed:
            raise RunFolderError(
                "todo.runner-4",
                f"{out} holds another {what}; in cell {cell.name}:\n  "
                + "\n  ".join(told(changed)),
                fix=f"choose another --out, or continue that {what} with `fedgsca resume {out}`",
            )


def changes(cell: Cell, folder: Path) -> list[tuple[str, Any, Any]]:
    """Keys in which the run in this folder differs from the cell; none if there is no run yet.

    Of a finished run the place of its files does not matter: it may have been made on another machine.
    """
    if not (folder / "config.toml").exists():
        return []
    found = differences(cell.config, read_config(folder))
    places = ("data.source", "model.weights") if (folder / "result.json").exists() else ()
    return [change for change in found if change[0] not in places]


def told(changed: Sequence[tuple[str, Any, Any]]) -> list[str]:
    return [f"{key}: {theirs!r} there, {mine!r} here" for key, mine, theirs in changed[:6]]


def run_cells(
    cells: Iterable[Cell],
    out: Path,
    audience: Audience,
    results: Results,
    *,
    jobs: int = 1,
    keep: Callable[[Cell], None],
) -> dict[str, str]:
    """Run what `results` does not have yet and add it there; `keep` is called after each. Returns the cells that failed: why.

    A cell that fails is named and the others go on.
    """
    failed: dict[str, str] = {}
    for cell in cells:
        if cell.name in results or cell.name in failed:
            continue  # done before; or a run that is two cells, as the clean reference of a comparison and its noise 0
        try:
            results[cell.name] = run(
                cell.config, folder_of(cell, out), jobs=jobs, observer=audience.watch(cell)
            )
        except (
            Exception
        ) as error:  # also our own bugs: hours of other cells must not depend on this one
            failed[cell.name] = (
                error.message
                if isinstance(error, FedgscaError)
                else f"{type(error).__name__}: {error}"
            )
            audience.failed(cell, error)
            continue
        audience.finished(cell, results[cell.name])
        keep(cell)
    return failed


def drop_checkpoints(cell: Cell, out: Path) -> None:
    """A finished run needs none, and a grid of large networks would fill the disk with them."""
    shutil.rmtree(folder_of(cell, out) / "checkpoint", ignore_errors=True)


@dataclass(frozen=True)
class Shard:
    """The i-th of n parts of a grid, i from 1."""

    index: int = 1
    count: int = 1

    def part(self, cells: Sequence[Cell]) -> list[Cell]:
        """Every n-th cell, dealt out row by row: methods differ in cost, so each part gets its share of every row.

        The part keeps the order in which the cells were given.
        """
        names = list(
            dict.fromkeys(cell.name for cell in sorted(cells, key=lambda cell: cell.row))
        )  # stable: order within rows stays
        mine = set(names[self.index - 1 :: self.count])
        return [cell for cell in cells if cell.name in mine]

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str | None) -> Shard:
    """ "2/3" is the second of three parts; None is everything."""
    if text is None:
        return Shard()
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count):
        return Shard(int(index), int(count))
    raise ConfigError(
        "todo.runner-5",
        f"--shard {text!r} is not of the form i/n",
        fix="for two machines: --shard 1/2 on one, --shard 2/2 on the other",
    )
