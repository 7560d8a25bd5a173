"""Reproduced tables as an experiment leaves them, made up but of the paper's size, for tests of their rendering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fedgsca.paper.table_result import Row, Scale, Score, TableResult
from fedgsca.rng import stream

METHODS = ("FedAvg", "FedProx", "FedRobust", "FedCorr", "FedGP", "FedFixer", "FedNoRo", "FedGSCA")
SCORES = ("f1", "recall", "precision")
PAPER_F1 = dict(zip(METHODS, (65.37, 66.79, 62.59, 62.79, 81.52, 81.21, 79.48, 82.47), strict=True))


def score(values: Mapping[str, float]) -> Score:
    found = list(values.values())
    return Score(fmean(found), stdev(found) if len(found) > 1 else None, dict(values))


def table(
    *, name: str = "kvasir-symmetric", columns: Sequence[str] = ("S40", "S50"), metrics: Sequence[str] = SCORES,
    labels: Mapping[str, str] | None = None, paper: Mapping[str, float] | None = None, reference: str = "fedgsca",
    scale: Scale = "mini", seeds: int = 3, shift: float = -9.0, series: Mapping[str, Any] | None = None, **changes: Any,
) -> TableResult:  # fmt: skip
    """Our numbers are the paper's, shifted and with noise; `paper` maps row keys to F1."""
    labels = labels or {label.lower(): label for label in METHODS}
    known = {label.lower(): value for label, value in PAPER_F1.items()} if paper is None else paper
    rows = []
    for key, label in labels.items():
        printed: dict[str, dict[str, Score]] = {}
        found: dict[str, dict[str, Score]] = {}
        tests: dict[str, dict[str, float | None]] = {}
        for i, column in enumerate(columns):
            rng = stream(0, "paper-results", name, key, column)
            base = known.get(key, 75.0)
            if key in known:
                printed[column] = {
                    m: Score(round(base - 5 * i + 1.3 * j, 2), 0.3) for j, m in enumerate(metrics)
                }
            draws = {
                m: base + shift - 4 * i + j + rng.normal(0, 1.5) + rng.normal(0, 0.6, seeds)
                for j, m in enumerate(metrics)
            }
            found[column] = {
                m: score({str(s): float(v) for s, v in enumerate(values)})
                for m, values in draws.items()
            }
            tests[column] = {
                m: None if key == reference else float(rng.choice([0.003, 0.03, 0.4]))
                for m in metrics
            }
        rows.append(Row(key, label, printed, found, tests))
    cells = len(rows) * len(columns) * seeds
    base_facts: dict[str, Any] = {
        "title": "Kvasir-Capsule, extreme symmetric noise", "paper_caption": "Table 2", "dataset": "Kvasir-Capsule",
        "data": "pathmnist_small" if scale == "mini" else "kvasir-capsule", "notes": ("10 rounds, frozen features",),
        "done": cells, "total": cells,
    }  # fmt: skip
    return TableResult(
        **(base_facts | dict(changes)), name=name, scale=scale, columns=tuple(columns), metrics=tuple(metrics),
        rows=tuple(rows), reference=reference, seeds=tuple(range(seeds)), series=series or {},
    )  # fmt: skip


def partial(result: TableResult) -> TableResult:
    """The same while it runs: one row has nothing, one has a single seed."""
    empty, single, *rest = result.rows
    first = {
        c: {m: score({"0": s.values["0"]}) for m, s in here.items()}
        for c, here in single.ours.items()
    }
    rows = (
        Row(empty.key, empty.label, empty.paper, {}, {}),
        Row(single.key, single.label, single.paper, first, {}),
        *rest,
    )
    return TableResult(**{**vars(result), "rows": rows, "done": result.total // 2})


def confusion(classes: int, right: float, name: str) -> list[list[float]]:
    rng = stream(1, "confusion", name)
    counts = rng.dirichlet(np.ones(classes), classes) * (1 - right) + right * np.eye(classes)
    return [[round(40 * float(v), 2) for v in row] for row in counts]


def curves(
    columns: Sequence[str], keys: Sequence[str], rounds: int = 30, seeds: int = 3
) -> dict[str, Any]:
    """What an experiment logs per round: f1, stability and seconds."""
    f1: dict[str, Any] = {}
    stability: dict[str, Any] = {}
    seconds: dict[str, Any] = {}
    x = np.arange(rounds)
    for column in columns:
        for target in (f1, stability, seconds):
            target[column] = {}
        for i, key in enumerate(keys):
            rng = stream(2, "curves", column, key)
            own = [str(seed) for seed in range(seeds)]
            f1[column][key] = {
                s: (70 + 4 * i - 45 * np.exp(-x / (6 - i)) + rng.normal(0, 0.8, rounds)).tolist()
                for s in own
            }
            drift = np.exp(rng.normal(0, 0.08, (seeds, rounds)))
            stability[column][key] = {
                s: ((2.5 - 0.5 * i) * (1 + 0.02 * x) * drift[int(s)]).tolist() for s in own
            }
            seconds[column][key] = {
                s: ((133 + 20 * i) * (x + 1.0) * rng.uniform(0.98, 1.02)).tolist() for s in own
            }
    return {"f1": f1, "stability": stability, "seconds": seconds}
