"""From finished runs to a table. Everything is read from files, wherever the runs were made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.experiment.records import RoundRecord, RunResult, Setup
from fedgsca.experiment.run_folder import read_rounds, read_timing
from fedgsca.grid.runner import (
    GridCell,
    config_changes,
    damaged_run,
    describe_changes,
    finished_cells,
    folder_of,
)
from fedgsca.methods.base import load_methods
from fedgsca.paper.footnotes import make_notes, make_title
from fedgsca.paper.paired_test import paired_p
from fedgsca.paper.printed_numbers import printed
from fedgsca.paper.request import Request
from fedgsca.paper.table_result import (
    Matrix,
    PValues,
    Score,
    Scores,
    SeedCurves,
    TableResult,
    TableRow,
    TableSeries,
)
from fedgsca.report.comparison_tables import BASELINE, mean_std
from fedgsca.support.files import write_atomic
from fedgsca.support.text import plural

# the files of a run that a table needs; the last one makes the run a finished one
_TABLE_FILES = ("config.toml", "setup.json", "metrics.jsonl", "timing.jsonl", "result.json")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, as far as tables need it."""

    result: RunResult
    # per round
    f1: tuple[float, ...]
    stability: tuple[float, ...]
    # since the start, after every round
    seconds: tuple[float, ...]
    classes: tuple[str, ...]
    warnings: tuple[str, ...]
    # the stage of the method that never ran; empty if it did, or if the method has none
    idle_stage: str
    # site -> macro F1 of the last round at the class shares of the site
    site_f1: Mapping[str, float]


# by (variant, column, seed)
Runs = Mapping[tuple[str, str, int], FinishedRun]


def read_run(folder: Path, result: RunResult) -> FinishedRun:
    """Read the curves of a run.

    Time is the exchange with the sites. Every round counts as much as the median round, because
    single rounds on a busy machine vary.
    """
    rounds = read_rounds(folder)
    timing = read_timing(folder)
    try:
        setup = Setup.from_json(json.loads((folder / "setup.json").read_bytes()))
    except (OSError, ValueError) as error:
        raise damaged_run(folder, f"{folder} is damaged: {error}") from None
    if not rounds or not timing:
        raise damaged_run(folder, f"{folder} is damaged: it has no metrics or no timing")
    per_round = median(line.exchange for line in timing)
    return FinishedRun(
        result=result,
        f1=tuple(line.f1 for line in rounds if line.f1 is not None),
        stability=tuple(line.stability or 0.0 for line in rounds),
        seconds=tuple(accumulate([per_round] * len(rounds))),
        classes=setup.data.classes,
        warnings=setup.warnings,
        idle_stage=find_idle_stage(result.method, rounds),
        site_f1=site_scores(result.last.confusion, setup),
    )


def find_idle_stage(method: str, rounds: Sequence[RoundRecord]) -> str:
    """The stage that makes a method what it is, if it ran at no site in no round; else empty."""
    definition = load_methods().get(method)
    if definition is None or definition.logged.stage_ran is None:
        return ""
    for record in rounds:
        for site in record.sites.values():
            if definition.logged.stage_ran(site.values, site.num_samples):
                return ""
    return definition.logged.stage


def site_scores(confusion: Matrix, setup: Setup) -> dict[str, float]:
    """Macro F1 in percent at the class shares of each site, over the classes that it has.

    Every row of the confusion matrix (C, C) is scaled to the site's share of the class. True labels
    count where the noise was injected here, given ones elsewhere.
    """
    matrix = np.asarray(confusion, dtype=np.float64)
    rates = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    result = {}
    for name, site in setup.sites.items():
        counts = site.given_per_class
        if site.realised_noise is not None:
            counts = tuple(sum(row) for row in site.realised_noise.counts)
        if not counts or not sum(counts):
            continue
        present = np.flatnonzero(np.array(counts) > 0)
        # the mean of the present classes alone: absent ones would count as 0
        site_matrix = rates * np.array(counts)[:, None]
        hits = np.diag(site_matrix)[present]
        sizes = site_matrix.sum(axis=1)[present] + site_matrix.sum(axis=0)[present]
        result[name] = 100.0 * float(np.mean(2.0 * hits / np.maximum(sizes, 1e-12)))
    return result


def _late_mean(values: Sequence[float]) -> float:
    """The mean of the last fifth."""
    return fmean(values[-max(1, len(values) // 5) :])


def _minutes_to_peak(run: FinishedRun, baseline: FinishedRun | None) -> float | None:
    """Minutes until the run reaches the baseline's best F1; None if it never does."""
    if baseline is None:
        return None
    peak = max(baseline.f1)
    for seconds, f1 in zip(run.seconds, run.f1, strict=True):
        if f1 >= peak:
            return seconds / 60
    return None


# from a run and FedAvg's run with the same column and seed, if there is one
MetricFunction = Callable[[FinishedRun, FinishedRun | None], float | None]
METRICS: dict[str, MetricFunction] = {
    "f1": lambda run, _: run.result.f1,
    "recall": lambda run, _: run.result.recall,
    "precision": lambda run, _: run.result.precision,
    "peak_f1": lambda run, _: max(run.f1),
    "seconds_per_round": lambda run, _: run.seconds[0],
    "minutes_to_peak": _minutes_to_peak,
    "stability": lambda run, _: fmean(run.stability),
    "stability_late": lambda run, _: _late_mean(run.stability),
}


def collect(request: Request, out: Path) -> TableResult:
    """The table as far as its runs are finished."""
    cells = request.cells()
    results = finished_cells(cells, out)
    check_data(cells, results)
    runs: dict[tuple[str, str, int], FinishedRun] = {}
    for cell in cells:
        if cell.name in results:
            run = read_run(folder_of(cell, out), results[cell.name])
            runs[cell.row, cell.column, cell.seed] = run
    paper = printed(request.name)
    rows = _table_rows(request, runs)
    sources = [run.result.data for run in runs.values()] or request.data
    data = " and ".join(dict.fromkeys(sources))
    warnings: list[str] = []
    for run in runs.values():
        warnings += run.warnings
    return TableResult(
        name=request.name,
        title=make_title(request),
        paper_caption=f"{paper.place}: {paper.caption}",
        dataset=" and ".join(request.grid.dataset_titles),
        data=data,
        scale=request.scale,
        columns=tuple(column.key for column in request.grid_columns),
        metrics=request.grid.metrics,
        rows=rows,
        reference=request.grid.reference,
        seeds=tuple(sorted(request.seeds)),
        notes=(
            *make_notes(request, cells, warnings, rows, data),
            *idle_notes(request, runs),
        ),
        finished_runs=len([cell for cell in cells if cell.name in results]),
        total_runs=len(cells),
        series=_series(request, runs),
    )


def _table_rows(request: Request, runs: Runs) -> tuple[TableRow, ...]:
    scores = {row.key: _scores(request, row.variant.key, runs) for row in request.grid_rows}
    reference = request.grid.reference
    paper_rows = printed(request.name).rows
    rows = []
    for row in request.grid_rows:
        ours = scores[row.key]
        paper = {}
        for column, metrics in paper_rows.get(row.key, {}).items():
            if column in request.columns:
                paper[column] = metrics
        # the reference is not tested against itself
        rival = {} if row.key == reference else scores.get(reference, {})
        rows.append(TableRow(row.key, row.label, paper, ours, _p_values(ours, rival)))
    return tuple(rows)


def _runs_by_seed(
    request: Request, variant: str, column: str, runs: Runs
) -> dict[int, FinishedRun]:
    by_seed = {}
    for seed in sorted(request.seeds):
        if (variant, column, seed) in runs:
            by_seed[seed] = runs[variant, column, seed]
    return by_seed


def _scores(request: Request, variant: str, runs: Runs) -> Scores:
    scores: dict[str, dict[str, Score]] = {}
    for column in request.columns:
        by_seed = _runs_by_seed(request, variant, column, runs)
        for metric in request.grid.metrics:
            values: dict[str, float] = {}
            for seed, run in by_seed.items():
                value = METRICS[metric](run, runs.get((BASELINE, column, seed)))
                if value is not None:
                    values[str(seed)] = value
            if values:
                stat = mean_std(list(values.values()))
                scores.setdefault(column, {})[metric] = Score(stat.mean, stat.std, values)
    return scores


def _p_values(scores: Scores, reference: Scores) -> PValues:
    """p of every score against the reference; None where the reference has none."""
    p_values: dict[str, dict[str, float | None]] = {}
    for column, metrics in scores.items():
        p_values[column] = {}
        for metric, score in metrics.items():
            rival = reference.get(column, {}).get(metric)
            p = None if rival is None else paired_p(score.values, rival.values)
            p_values[column][metric] = p
    return p_values


def _series(request: Request, runs: Runs) -> TableSeries:
    """Curves per round, and mean confusion matrices of the last round."""
    confusion: dict[str, dict[str, Matrix]] = {}
    f1: dict[str, dict[str, SeedCurves]] = {}
    stability: dict[str, dict[str, SeedCurves]] = {}
    seconds: dict[str, dict[str, SeedCurves]] = {}
    for column in request.grid_columns:
        for row in request.grid_rows:
            by_seed = _runs_by_seed(request, row.variant.key, column.key, runs)
            if not by_seed:
                continue
            place = (column.key, row.key)
            _put(f1, place, {str(seed): list(run.f1) for seed, run in by_seed.items()})
            _put(
                stability, place, {str(seed): list(run.stability) for seed, run in by_seed.items()}
            )
            _put(seconds, place, {str(seed): list(run.seconds) for seed, run in by_seed.items()})
            matrices = [run.result.last.confusion for run in by_seed.values()]
            confusion.setdefault(column.key, {})[row.key] = _mean_matrix(matrices)
    site_f1 = _site_series(request, runs)
    class_lists = {run.classes for run in runs.values()}
    classes = class_lists.pop() if len(class_lists) == 1 else ()
    return TableSeries(classes, confusion, f1, stability, seconds, site_f1)


def _site_series(request: Request, runs: Runs) -> dict[str, dict[str, dict[str, float]]]:
    """[column][row][site]: macro F1 at the class shares of the site, mean over the seeds."""
    series: dict[str, dict[str, dict[str, float]]] = {}
    for column in request.grid_columns:
        series[column.key] = {}
        for row in request.grid_rows:
            by_seed = _runs_by_seed(request, row.variant.key, column.key, runs)
            values: dict[str, list[float]] = {}
            for run in by_seed.values():
                for site, score in run.site_f1.items():
                    values.setdefault(site, []).append(score)
            if values:
                means = {site: fmean(scores) for site, scores in values.items()}
                series[column.key][row.key] = means
    return series


def idle_notes(request: Request, runs: Runs) -> list[str]:
    """One note for every row and column in which the method's own stage never ran."""
    notes = []
    for row in request.grid_rows:
        for column in request.grid_columns:
            by_seed = _runs_by_seed(request, row.variant.key, column.key, runs)
            seeds = [str(seed) for seed, run in by_seed.items() if run.idle_stage]
            if seeds:
                stage = next(run.idle_stage for run in by_seed.values() if run.idle_stage)
                notes.append(
                    f"{row.label}, {column.key}: the {stage} never ran with "
                    f"{plural(len(seeds), 'seed')} ({', '.join(seeds)}), so the number is that of "
                    "training on all given labels."
                )
    return notes


def _put(
    series: dict[str, dict[str, SeedCurves]], place: tuple[str, str], curves: SeedCurves
) -> None:
    column, row = place
    series.setdefault(column, {})[row] = curves


def _mean_matrix(matrices: Sequence[Matrix]) -> list[list[float]]:
    mean = []
    for rows in zip(*matrices, strict=True):
        mean.append([fmean(counts) for counts in zip(*rows, strict=True)])
    return mean


def check_data(cells: Iterable[GridCell], results: Mapping[str, RunResult]) -> None:
    """Check that the runs of a column and seed used the same images, labels and splits."""
    first_runs: dict[tuple[str, int], tuple[str, str]] = {}
    for cell in cells:
        if cell.name not in results:
            continue
        fingerprint = results[cell.name].data_fingerprint
        place = (cell.column, cell.seed)
        first_name, first_fingerprint = first_runs.setdefault(place, (cell.name, fingerprint))
        if fingerprint != first_fingerprint:
            raise RunFolderError(
                "table.mixed-data",
                f"runs {first_name} and {cell.name} used different data",
                fix="delete the folder of the run that used the wrong data",
            )


def import_cells(cells: Iterable[GridCell], source: Path, out: Path) -> list[str]:
    """Copy from another folder the files that a table needs of finished runs.

    Runs that `out` has are left alone. Returns the names of the copied runs.
    """
    if not (source / "cells").is_dir():
        raise RunFolderError(
            "table.no-runs-to-merge",
            f"{source} has no runs of a table",
            fix="give --merge a folder that `fedgsca table` wrote",
        )
    names = []
    for cell in cells:
        old_folder = folder_of(cell, source)
        new_folder = folder_of(cell, out)
        if (new_folder / "result.json").exists() or not (old_folder / "result.json").exists():
            continue
        changes = config_changes(cell, old_folder)
        if changes:
            raise RunFolderError(
                "table.other-run",
                f"{old_folder} is not the run that this table needs:\n  "
                + "\n  ".join(describe_changes(changes)),
                fix="merge folders that were made with the same options",
            )
        _copy_run(old_folder, new_folder)
        names.append(cell.name)
    return names


def _copy_run(old_folder: Path, new_folder: Path) -> None:
    for name in _TABLE_FILES:
        path = old_folder / name
        try:
            write_atomic(new_folder / name, path.read_bytes())
        except OSError as error:
            raise RunFolderError(
                "table.unreadable-run",
                f"{path} cannot be read: {error.strerror}",
                fix="copy the folder again",
            ) from None
