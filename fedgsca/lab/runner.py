"""Runs a grid of experiments.

Every cell of the grid is a run folder of its own, OUT/cells/<cell>. A grid can therefore be
interrupted and resumed at any time, extended, and spread over processes and machines.
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedgsca.config import Config, Difference, differences
from fedgsca.errors import ConfigError, FedgscaError, RunFolderError
from fedgsca.federation.base import RunObserver
from fedgsca.federation.progress import Display
from fedgsca.federation.records import RunResult
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_config
from fedgsca.lab.records import NO_VARIANT, ComparisonVariant

Role = Literal["method", "ceiling", "clean"]
# name of a cell -> its result
Results = dict[str, RunResult]
MAX_CHANGES = 6


@dataclass(frozen=True)
class GridCell:
    """One run of a grid."""

    # its folder below cells/
    name: str
    # the method, or a variant of one
    row: str
    noise: str
    seed: int
    config: Config
    role: Role = "method"
    # the network as it was typed and the settings, in a comparison that varies them
    variant: ComparisonVariant = NO_VARIANT


class GridObserver:
    """Receives the events of a grid. This one ignores them."""

    def observe(self, cell: GridCell) -> RunObserver:
        """The observer of a run that starts now."""
        return RunObserver()

    def on_run_done(self, cell: GridCell, result: RunResult) -> None:
        """Called after a run has finished."""

    def on_run_failed(self, cell: GridCell, error: Exception) -> None:
        """Called after a run has failed; the others continue."""


class GridDisplay(GridObserver):
    """Shows the progress of every run of a grid, and the errors of those that fail."""

    def __init__(self, progress: Display) -> None:
        self.progress = progress

    def observe(self, cell: GridCell) -> RunObserver:
        """An observer for the rounds of one run."""
        return self.progress.observe(cell.name)

    def on_run_done(self, cell: GridCell, result: RunResult) -> None:
        """Show the score."""
        self.progress.finish_run(cell.name, f"F1 {result.f1:.1f}")

    def on_run_failed(self, cell: GridCell, error: Exception) -> None:
        """Show the error; the other runs continue."""
        self.progress.finish_run(cell.name, "failed")
        if isinstance(error, FedgscaError):
            text = f"{cell.name} failed [{error.code}]: {error.message}\nFix: {error.fix}"
        else:
            trace = "".join(traceback.format_exception(error))
            text = f"{cell.name} failed; this is a bug, please report it:\n{trace}"
        self.progress.print(text, "red")


def folder_of(cell: GridCell, out: Path) -> Path:
    """The run folder of a cell."""
    return out / "cells" / cell.name


def finished_cells(cells: Iterable[GridCell], out: Path) -> Results:
    """Results of the cells that need not run again."""
    results: Results = {}
    for cell in cells:
        path = folder_of(cell, out) / "result.json"
        if path.is_file():
            results[cell.name] = _read_result(path)
    return results


def _read_result(path: Path) -> RunResult:
    try:
        result = RunResult.from_json(json.loads(path.read_bytes()))
        if math.isnan(result.f1):
            raise ValueError("it has no F1")
        return result
    except (OSError, ValueError) as error:
        raise damaged_run(path.parent, f"{path} is damaged: {error}") from None


def damaged_run(folder: Path, problem: str) -> RunFolderError:
    """The error for a finished run that cannot be read."""
    return RunFolderError(
        "grid.damaged-run",
        problem,
        fix=f"delete the folder {folder} and run the command again; only this run is repeated",
    )


def check_folder(cells: Iterable[GridCell], out: Path) -> None:
    """Check before anything runs that the folder is new, or holds this comparison."""
    if out.exists() and not out.is_dir():
        raise RunFolderError(
            "grid.out-is-a-file",
            f"{out} is a file, not a folder",
            fix="choose a folder with --out",
        )
    # a lock and abandoned temporary files do not count
    paths = [path for path in out.glob("*") if path.name != ".lock" and path.suffix != ".tmp"]
    if paths and not (out / "plan.json").exists():
        raise RunFolderError(
            "grid.folder-not-empty",
            f"{out} is neither empty nor the folder of a previous comparison",
            fix="choose a new folder with --out",
        )
    for cell in cells:
        changes = _config_changes(cell, folder_of(cell, out))
        if changes:
            raise RunFolderError(
                "grid.other-settings",
                f"{out} holds another comparison; cell {cell.name} differs:\n  "
                + "\n  ".join(describe_changes(changes)),
                fix=f"choose another --out, or continue that one with `fedgsca resume {out}`",
            )


def _config_changes(cell: GridCell, folder: Path) -> list[Difference]:
    """Settings in which the run in this folder differs from the cell; none if there is no run.

    The location of the files of a finished run does not count: it may be from another machine.
    """
    if not (folder / "config.toml").exists():
        return []
    changes = differences(cell.config, read_config(folder))
    places = ("data.source", "model.weights") if (folder / "result.json").exists() else ()
    return [change for change in changes if change.key not in places]


def describe_changes(changes: Sequence[Difference]) -> list[str]:
    """The first changes as lines of text; the other value is that of the folder."""
    lines = []
    for change in changes[:MAX_CHANGES]:
        lines.append(f"{change.key}: {change.reference_value!r} there, {change.value!r} here")
    return lines


def run_cells(
    cells: Iterable[GridCell],
    out: Path,
    observer: GridObserver,
    results: Results,
    *,
    jobs: int = 1,
    on_result: Callable[[GridCell], None],
) -> dict[str, str]:
    """Run the cells that `results` does not have yet and add their results to it.

    `on_result` is called after each of them. A cell that fails does not stop the others.
    Returns the cells that failed, with the reason.
    """
    failures: dict[str, str] = {}
    for cell in cells:
        # finished before; or a run with two roles, such as the clean reference and noise 0
        if cell.name in results or cell.name in failures:
            continue
        try:
            run_observer = observer.observe(cell)
            result = run(cell.config, folder_of(cell, out), jobs=jobs, observer=run_observer)
            assert result is not None  # only a run that is told to stop early has no result
        except Exception as error:  # also our own bugs: hours of other runs must not be lost
            failures[cell.name] = f"{type(error).__name__}: {error}"
            if isinstance(error, FedgscaError):
                failures[cell.name] = error.message
            observer.on_run_failed(cell, error)
            continue
        results[cell.name] = result
        observer.on_run_done(cell, result)
        on_result(cell)
    return failures


def raise_failures(failures: Mapping[str, str], num_runs: int, out: Path) -> None:
    """Raise an error if any run of a grid failed."""
    for name, reason in failures.items():
        raise FedgscaError(
            "grid.failed-runs",
            f"{len(failures)} of {num_runs} runs failed, first {name}: {reason}",
            fix=f"fix the cause, then run `fedgsca resume {out}`; finished runs are kept. If a"
            " setting is the cause, start again with other values and another --out",
        )


@dataclass(frozen=True)
class Shard:
    """The i-th of n parts of a grid, i from 1."""

    index: int = 1
    count: int = 1

    def part(self, cells: Sequence[GridCell]) -> list[GridCell]:
        """Every n-th cell, in the order in which the cells are given.

        Cells are dealt out row by row: methods differ in cost, so every part gets some of each.
        """
        # the sort is stable: it keeps the order within a row
        by_row = sorted(cells, key=lambda cell: cell.row)
        names = list(dict.fromkeys(cell.name for cell in by_row))
        own_names = set(names[self.index - 1 :: self.count])
        return [cell for cell in cells if cell.name in own_names]

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


ALL_CELLS = Shard()


def parse_shard(text: str | None) -> Shard:
    """ "2/3" is the second of three parts; None is everything."""
    if text is None:
        return ALL_CELLS
    index, _, count = text.partition("/")
    if index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count):
        return Shard(int(index), int(count))
    raise ConfigError(
        "grid.invalid-shard",
        f"--shard {text!r} is not of the form i/n",
        fix="for two machines, use --shard 1/2 on one and --shard 2/2 on the other",
    )
