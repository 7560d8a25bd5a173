"""Made-up reproduced tables of the paper's size, for tests of their rendering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedgsca.paper.table_result import (
    Scale,
    Score,
    SeedCurves,
    TableResult,
    TableRow,
    TableSeries,
)
from fedgsca.rng import stream

METHODS = ("FedAvg", "FedProx", "FedRobust", "FedCorr", "FedGP", "FedFixer", "FedNoRo", "FedGSCA")
SCORES = ("f1", "recall", "precision")
PAPER_F1 = dict(zip(METHODS, (65.37, 66.79, 62.59, 62.79, 81.52, 81.21, 79.48, 82.47), strict=True))


def score(values: Mapping[str, float]) -> Score:
    numbers = list(values.values())
    return Score(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None, dict(values))


def table(
    *,
    name: str = "kvasir-symmetric",
    columns: Sequence[str] = ("S40", "S50"),
    metrics: Sequence[str] = SCORES,
    labels: Mapping[str, str] | None = None,
    paper: Mapping[str, float] | None = None,
    reference: str = "fedgsca",
    scale: Scale = "mini",
    seeds: int = 3,
    shift: float = -9.0,
    series: TableSeries | None = None,
) -> TableResult:
    """Our numbers are the paper's, shifted and with noise; `paper` maps row keys to F1."""
    labels = labels or {label.lower(): label for label in METHODS}
    if paper is None:
        paper = {label.lower(): value for label, value in PAPER_F1.items()}
    rows = []
    for key, label in labels.items():
        paper_scores: dict[str, dict[str, Score]] = {}
        our_scores: dict[str, dict[str, Score]] = {}
        p_values: dict[str, dict[str, float | None]] = {}
        for i, column in enumerate(columns):
            rng = stream(0, "paper-results", name, key, column)
            base = paper.get(key, 75.0)
            if key in paper:
                paper_scores[column] = {}
                for j, metric in enumerate(metrics):
                    paper_scores[column][metric] = Score(round(base - 5 * i + 1.3 * j, 2), 0.3)
            our_scores[column] = {}
            for j, metric in enumerate(metrics):
                mean = base + shift - 4 * i + j + rng.normal(0, 1.5)
                values = mean + rng.normal(0, 0.6, seeds)
                by_seed = {str(seed): float(value) for seed, value in enumerate(values)}
                our_scores[column][metric] = score(by_seed)
            p_values[column] = {}
            for metric in metrics:
                p = None if key == reference else float(rng.choice([0.003, 0.03, 0.4]))
                p_values[column][metric] = p
        rows.append(TableRow(key, label, paper_scores, our_scores, p_values))
    runs = len(rows) * len(columns) * seeds
    return TableResult(
        name=name,
        title="Kvasir-Capsule, extreme symmetric noise",
        paper_caption="Table 4",
        dataset="Kvasir-Capsule",
        data="pathmnist_small" if scale == "mini" else "kvasir-capsule",
        scale=scale,
        columns=tuple(columns),
        metrics=tuple(metrics),
        rows=tuple(rows),
        reference=reference,
        seeds=tuple(range(seeds)),
        notes=("10 rounds, frozen features",),
        finished_runs=runs,
        total_runs=runs,
        series=series or TableSeries(),
    )


def unfinished(result: TableResult) -> TableResult:
    """The same table while it runs: one row has nothing, one has a single seed."""
    empty_row, single_row, *other_rows = result.rows
    first_seed: dict[str, dict[str, Score]] = {}
    for column, metrics in single_row.ours.items():
        first_seed[column] = {}
        for metric, numbers in metrics.items():
            first_seed[column][metric] = score({"0": numbers.values["0"]})
    rows = (
        replace(empty_row, ours={}, p_value={}),
        replace(single_row, ours=first_seed, p_value={}),
        *other_rows,
    )
    return replace(result, rows=rows, finished_runs=result.total_runs // 2)


def confusion(classes: int, right: float, name: str) -> list[list[float]]:
    rng = stream(1, "confusion", name)
    counts = rng.dirichlet(np.ones(classes), classes) * (1 - right) + right * np.eye(classes)
    matrix = []
    for row in counts.tolist():
        matrix.append([round(40 * value, 2) for value in row])
    return matrix


def curves(
    columns: Sequence[str], keys: Sequence[str], rounds: int = 30, seeds: int = 3
) -> TableSeries:
    """What an experiment logs per round: f1, stability and seconds."""
    f1: dict[str, dict[str, SeedCurves]] = {}
    stability: dict[str, dict[str, SeedCurves]] = {}
    seconds: dict[str, dict[str, SeedCurves]] = {}
    x = np.arange(rounds)
    for column in columns:
        for target in (f1, stability, seconds):
            target[column] = {}
        for i, key in enumerate(keys):
            rng = stream(2, "curves", column, key)
            names = [str(seed) for seed in range(seeds)]
            scores: dict[str, Any] = {}
            for seed in names:
                noise = rng.normal(0, 0.8, rounds)
                scores[seed] = (70 + 4 * i - 45 * np.exp(-x / (6 - i)) + noise).tolist()
            drift = np.exp(rng.normal(0, 0.08, (seeds, rounds)))
            distances = (2.5 - 0.5 * i) * (1 + 0.02 * x) * drift
            times: dict[str, Any] = {}
            for seed in names:
                times[seed] = ((133 + 20 * i) * (x + 1.0) * rng.uniform(0.98, 1.02)).tolist()
            f1[column][key] = scores
            stability[column][key] = dict(zip(names, distances.tolist(), strict=True))
            seconds[column][key] = times
    return TableSeries(f1=f1, stability=stability, seconds=seconds)
