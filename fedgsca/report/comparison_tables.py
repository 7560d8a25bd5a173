"""The table of a comparison: mean ± standard deviation over seeds, ranks, recovery. Plain Python, for the command line, too.

recovery = (F1 - F1 of FedAvg) / (F1 of the ceiling - F1 of FedAvg), per seed; the ceiling is FedAvg without the wrong labels
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from fedgsca.support.text import size_text

BASELINE = "fedavg"
RANKED = ("f1", "recall", "precision", "best_f1")  # percent, more is better
COSTS = ("seconds_per_round", "bytes_up", "bytes_down")
MIN_LOSS = 1.0  # points of F1; where the wrong labels cost FedAvg less, a ratio to that cost would be chance


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation (None for a single seed) over seeds."""

    mean: float
    std: float | None = None

    def text(self, digits: int = 1) -> str:
        return (
            f"{self.mean:.{digits}f}"
            if self.std is None
            else f"{self.mean:.{digits}f} ± {self.std:.{digits}f}"
        )


@dataclass(frozen=True)
class Row:
    """One method under one noise."""

    noise: str
    method: str
    label: str
    seeds: int
    stats: Mapping[str, Stat]  # keys of RANKED and COSTS, as far as known
    recovery: float | None = None
    best: frozenset[str] = (
        frozenset()
    )  # keys of RANKED in which this method is the first of its noise, ties included
    second: frozenset[str] = frozenset()
    reference: bool = (
        False  # the ceiling: beside the ranking, because no method can know what it knows
    )

    @property
    def f1(self) -> Stat | None:
        return self.stats.get("f1")


def summary(values: Sequence[float]) -> Stat:
    return Stat(fmean(values), stdev(values) if len(values) > 1 else None)


def compare_rows(compare: Mapping[str, Any]) -> list[Row]:
    """Rows in the order of compare.json's noises and methods, each noise's ceiling after its methods."""
    cells = [cell for cell in compare.get("cells", []) if _number(cell.get("f1")) is not None]
    rows: list[Row] = []
    for noise in _in_order(compare.get("noises", []), (str(cell["noise"]) for cell in cells)):
        here = [cell for cell in cells if str(cell["noise"]) == noise]
        names = _in_order(compare.get("methods", []), (str(cell["method"]) for cell in here))
        ceiling = {
            str(seed): float(f1)
            for seed, f1 in (compare.get("ceiling") or {}).get(noise, {}).items()
        }
        base = {str(cell["seed"]): float(cell["f1"]) for cell in here if cell["method"] == BASELINE}
        made = [
            _row(noise, name, [cell for cell in here if cell["method"] == name], base, ceiling)
            for name in names
        ]
        rows += _ranked([row for row in made if row is not None])
        if ceiling:
            rows.append(
                Row(
                    noise,
                    "ceiling",
                    "Ceiling",
                    len(ceiling),
                    {"f1": summary(list(ceiling.values()))},
                    reference=True,
                )
            )
    return rows


def _in_order(wanted: Sequence[str], found: Any) -> list[str]:
    """Names as planned, then any others that occur."""
    return list(dict.fromkeys([*map(str, wanted), *found]))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _row(
    noise: str,
    method: str,
    cells: list[Any],
    base: Mapping[str, float],
    ceiling: Mapping[str, float],
) -> Row | None:
    if not cells:
        return None
    stats = {}
    for key in (*RANKED, *COSTS):
        values = [
            value for value in (_number(cell.get(key)) for cell in cells) if value is not None
        ]
        if values:
            stats[key] = summary(values)
    won = [
        _recovery(float(cell["f1"]), base.get(str(cell["seed"])), ceiling.get(str(cell["seed"])))
        for cell in cells
    ]
    known = [value for value in won if value is not None]
    label = str(cells[0].get("label") or method)
    return Row(noise, method, label, len(cells), stats, fmean(known) if known else None)


def _recovery(f1: float, base: float | None, ceiling: float | None) -> float | None:
    if base is None or ceiling is None or ceiling - base < MIN_LOSS:
        return None
    return (f1 - base) / (ceiling - base)


def _ranked(rows: list[Row]) -> list[Row]:
    """Best and second best per score, compared as printed: equal numbers, equal marks. A row alone wins nothing."""
    if len(rows) < 2:
        return rows
    for key in RANKED:
        first, second = first_and_second(
            {i: round(row.stats[key].mean, 1) for i, row in enumerate(rows) if key in row.stats}
        )
        for i in first:
            rows[i] = replace(rows[i], best=rows[i].best | {key})
        for i in second:
            rows[i] = replace(rows[i], second=rows[i].second | {key})
    return rows


def first_and_second(shown: Mapping[int, float]) -> tuple[set[int], set[int]]:
    """Who has the largest number and who the next one; a tie for the first place leaves no second, and one alone wins nothing."""
    places = sorted(shown.values(), reverse=True)
    if len(places) < 2:
        return set(), set()
    first = {i for i, value in shown.items() if value == places[0]}
    return first, {i for i, value in shown.items() if value == places[1]} if len(
        first
    ) == 1 else set()


def score_text(row: Row, key: str) -> str:
    """A score for people: "86.4 ± 0.5", or a dash."""
    return row.stats[key].text() if key in row.stats else "–"


def recovery_text(row: Row) -> str:
    return "–" if row.recovery is None else f"{row.recovery:.2f}".replace("-", "−")


def to_markdown(rows: Sequence[Row]) -> str:
    """A table for a README: best bold, second best underlined (markdown has no underline, so <u>)."""
    with_recovery = any(row.recovery is not None for row in rows)
    head = [
        "Noise",
        "Method",
        "Macro F1",
        "Recall",
        "Precision",
        "Best F1",
        *(["Recovery"] if with_recovery else []),
    ]
    head += ["s/round", "Bytes up/round", "Seeds"]
    lines = [
        "| " + " | ".join(head) + " |",
        "|" + "|".join(["---", "---", *["--:"] * (len(head) - 2)]) + "|",
    ]
    for row in rows:
        shown = [_marked(row, key) for key in RANKED]
        name = f"*{escape_cell(row.label)}*" if row.reference else escape_cell(row.label)
        won = [recovery_text(row)] if with_recovery else []
        lines.append(
            "| "
            + " | ".join([escape_cell(row.noise), name, *shown, *won, *_costs(row), str(row.seeds)])
            + " |"
        )
    return "\n".join(lines) + "\n"


def _costs(row: Row) -> list[str]:
    """Median seconds of a round and what all sites send in it, means over the seeds."""
    seconds, up = row.stats.get("seconds_per_round"), row.stats.get("bytes_up")
    return [f"{seconds.mean:.2g}" if seconds else "–", size_text(round(up.mean)) if up else "–"]


def _marked(row: Row, key: str) -> str:
    text = score_text(row, key)
    return f"**{text}**" if key in row.best else f"<u>{text}</u>" if key in row.second else text


def escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def to_csv(rows: Sequence[Row]) -> str:
    """All numbers at full precision, one row per method and noise; empty where unknown."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = (*RANKED, *COSTS)
    writer.writerow(
        [
            "noise",
            "method",
            "label",
            "seeds",
            *(f"{key}_{part}" for key in keys for part in ("mean", "std")),
            "recovery",
        ]
    )
    for row in rows:
        values: list[object] = []
        for key in keys:
            stat = row.stats.get(key)
            values += [
                "" if stat is None else stat.mean,
                "" if stat is None or stat.std is None else stat.std,
            ]
        writer.writerow(
            [
                row.noise,
                row.method,
                row.label,
                row.seeds,
                *values,
                "" if row.recovery is None else row.recovery,
            ]
        )
    return text.getvalue()
