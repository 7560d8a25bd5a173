"""From finished cells to a table: everything is read from files, whoever wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any

from fedgsca.errors import RunFolderError
from fedgsca.experiment.run_folder import read_lines
from fedgsca.grid.runner import Cell, changes, finished_cells, folder_of, told
from fedgsca.paper.footnotes import notes_of, title_of
from fedgsca.paper.paired_test import paired_p
from fedgsca.paper.printed_numbers import printed
from fedgsca.paper.request import Request
from fedgsca.paper.table_result import Row, Score, Scores, TableResult
from fedgsca.report.comparison_tables import summary
from fedgsca.support.files import write_atomic

BASELINE = "fedavg"
_SMALL = (
    "config.toml",
    "setup.json",
    "metrics.jsonl",
    "timing.jsonl",
    "result.json",
)  # the last one makes the cell finished


@dataclass(frozen=True)
class Run:
    """A finished cell."""

    result: Mapping[str, Any]
    f1: tuple[float, ...]  # per round
    stability: tuple[float, ...]
    seconds: tuple[float, ...]  # since the beginning, after every round
    classes: tuple[str, ...]
    warnings: tuple[str, ...]


def read_run(folder: Path, result: Mapping[str, Any]) -> Run:
    """Time is the exchange with the sites; the median round stands for each, because single rounds on a busy machine do not."""
    lines, timing = read_lines(folder / "metrics.jsonl"), read_lines(folder / "timing.jsonl")
    try:
        setup = json.loads((folder / "setup.json").read_bytes())
        per_round = median(line["exchange"] for line in timing)
        f1 = tuple(float(line["f1"]) for line in lines if "f1" in line)
        stability = tuple(float(line["stability"] or 0.0) for line in lines)
        return Run(
            result,
            f1,
            stability,
            tuple(accumulate([per_round] * len(lines))),
            tuple(setup["data"]["classes"]),
            tuple(setup["warnings"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            "todo.collect-scores-1",
            f"{folder} is damaged: {error}",
            fix=f"delete {folder}; this one run is then made again",
        ) from None


def _late(values: Sequence[float]) -> float:
    return fmean(values[-max(1, len(values) // 5) :])


def _minutes_to(peak: float | None, run: Run) -> float | None:
    """None if the run never gets there, or if there is no peak to reach."""
    found = [
        seconds
        for seconds, f1 in zip(run.seconds, run.f1, strict=True)
        if peak is not None and f1 >= peak
    ]
    return found[0] / 60 if found else None


METRICS: dict[
    str, Callable[[Run, Run | None], float | None]
] = {  # (this run, FedAvg's with the same column and seed)
    "f1": lambda run, base: float(run.result["f1"]),
    "recall": lambda run, base: float(run.result["recall"]),
    "precision": lambda run, base: float(run.result["precision"]),
    "peak_f1": lambda run, base: max(run.f1),
    "seconds_per_round": lambda run, base: run.seconds[0],
    "minutes_to_peak": lambda run, base: _minutes_to(max(base.f1) if base else None, run),
    "stability": lambda run, base: fmean(run.stability),
    "stability_late": lambda run, base: _late(run.stability),
}


def collect(request: Request, out: Path) -> TableResult:
    """The table as far as its cells are finished."""
    cells = request.cells()
    results = finished_cells(cells, out)
    check_data(cells, results)
    runs = {
        (c.row, c.column, c.seed): read_run(folder_of(c, out), results[c.name])
        for c in cells
        if c.name in results
    }
    ours = {line.key: _scores(request, line.variant.key, runs) for line in request.lines}
    reference = ours.get(request.grid.reference, {})
    paper = printed(request.name)
    rows = tuple(
        Row(
            line.key, line.label, _chosen(request, paper.rows.get(line.key, {})), ours[line.key],
            _p_values(ours[line.key], reference) if line.key != request.grid.reference else _nothing(ours[line.key]),
        )
        for line in request.lines
    )  # fmt: skip
    data = " and ".join(
        dict.fromkeys(str(run.result["data"]) for run in runs.values())
    ) or " and ".join(request.data)
    return TableResult(
        name=request.name, title=title_of(request), paper_caption=f"{paper.where}: {paper.caption}",
        dataset=" and ".join(request.grid.dataset_titles), data=data, scale=request.scale,
        columns=tuple(column.key for column in request.settings), metrics=request.grid.metrics, rows=rows,
        reference=request.grid.reference, seeds=tuple(sorted(request.seeds)),
        notes=notes_of(request, cells, [warning for run in runs.values() for warning in run.warnings], rows, data),
        done=sum(cell.name in results for cell in cells), total=len(cells), series=_series(request, runs),
    )  # fmt: skip


Runs = Mapping[tuple[str, str, int], Run]  # (variant, column, seed)


def _scores(request: Request, variant: str, runs: Runs) -> Scores:
    found: dict[str, dict[str, Score]] = {}
    for column in request.columns:
        here = {
            seed: runs[variant, column, seed]
            for seed in sorted(request.seeds)
            if (variant, column, seed) in runs
        }
        for metric in request.grid.metrics:
            measured = {
                str(seed): METRICS[metric](run, runs.get((BASELINE, column, seed)))
                for seed, run in here.items()
            }
            values = {seed: value for seed, value in measured.items() if value is not None}
            if values:
                stat = summary(list(values.values()))
                found.setdefault(column, {})[metric] = Score(stat.mean, stat.std, values)
    return found


def _chosen(request: Request, scores: Scores) -> Scores:
    return {column: metrics for column, metrics in scores.items() if column in request.columns}


def _p_values(mine: Scores, reference: Scores) -> dict[str, dict[str, float | None]]:
    return {
        column: {
            metric: paired_p(score.values, reference[column][metric].values)
            if metric in reference.get(column, {})
            else None
            for metric, score in metrics.items()
        }
        for column, metrics in mine.items()
    }


def _nothing(mine: Scores) -> dict[str, dict[str, float | None]]:
    return {column: dict.fromkeys(metrics) for column, metrics in mine.items()}


def _series(request: Request, runs: Runs) -> dict[str, Any]:
    """For figures: [column][row][seed] -> a value per round, and mean confusion matrices of the last round."""
    series: dict[str, Any] = {"confusion": {}, "f1": {}, "stability": {}, "seconds": {}}
    for column in (column.key for column in request.settings):
        for line in request.lines:
            here = {
                str(s): runs[line.variant.key, column, s]
                for s in sorted(request.seeds)
                if (line.variant.key, column, s) in runs
            }
            for name in ("f1", "stability", "seconds") if here else ():
                series[name].setdefault(column, {})[line.key] = {
                    seed: list(getattr(run, name)) for seed, run in here.items()
                }
            if here:
                series["confusion"].setdefault(column, {})[line.key] = _mean(
                    [run.result["last"]["confusion"] for run in here.values()]
                )
    names = {run.classes for run in runs.values()}
    return series | {"classes": list(names.pop()) if len(names) == 1 else []}


def _mean(matrices: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    return [
        [fmean(cell) for cell in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)
    ]


def check_data(cells: Iterable[Cell], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Cells of a column and seed must have seen the same images, labels and splits, wherever they ran."""
    seen: dict[tuple[str, int], tuple[str, str]] = {}
    for cell in cells:
        if cell.name in results:
            mark = str(results[cell.name].get("data_fingerprint"))
            name, first = seen.setdefault((cell.column, cell.seed), (cell.name, mark))
            if mark != first:
                raise RunFolderError(
                    "todo.collect-scores-2",
                    f"cells {name} and {cell.name} ran on different data",
                    fix="delete the folder of the one that ran on the wrong data",
                )


def import_cells(cells: Iterable[Cell], other: Path, out: Path) -> list[str]:
    """Copy what a table needs of finished cells from another folder, unless `out` has them; returns their names."""
    if not (other / "cells").is_dir():
        raise RunFolderError(
            "todo.collect-scores-3",
            f"{other} has no cells",
            fix="give a folder that `fedgsca table --out` made",
        )
    copied = []
    for cell in cells:
        here, there = folder_of(cell, out), folder_of(cell, other)
        if (here / "result.json").exists() or not (there / "result.json").exists():
            continue
        changed = changes(cell, there)
        if changed:
            raise RunFolderError(
                "todo.collect-scores-4",
                f"{there} is another run than this table needs:\n  " + "\n  ".join(told(changed)),
                fix="merge folders that were made with the same options",
            )
        for name in _SMALL:
            try:
                write_atomic(here / name, (there / name).read_bytes())
            except OSError as error:
                raise RunFolderError(
                    "todo.collect-scores-5",
                    f"{there / name} cannot be read: {error.strerror}",
                    fix="copy the folder again",
                ) from None
        copied.append(cell.name)
    return copied
