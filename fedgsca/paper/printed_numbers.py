"""The numbers that the paper prints: numbers.json, by experiment, row, column and metric."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedgsca.paper.table_result import Score, Scores


@dataclass(frozen=True)
class PrintedTable:
    """One table or figure of the paper."""

    # "Table 4": by the order of the captions; the labels in the paper's source count otherwise
    place: str
    caption: str
    # [row][column][metric]
    rows: dict[str, Scores]
    # (row, column, metric) of numbers that follow from printed ones -> the calculation
    derivations: dict[tuple[str, str, str], str]


@cache
def _numbers() -> dict[str, Any]:
    text = Path(__file__).with_name("numbers.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def source() -> str:
    """The publication of the numbers."""
    return str(_numbers()["source"])


def names() -> tuple[str, ...]:
    """All experiments that the paper prints numbers of."""
    return tuple(_numbers()["experiments"])


@cache
def printed(name: str) -> PrintedTable:
    """The paper's numbers of one experiment."""
    experiment = _numbers()["experiments"][name]
    rows: dict[str, dict[str, dict[str, Score]]] = {}
    derivations: dict[tuple[str, str, str], str] = {}
    for row, columns in experiment["rows"].items():
        rows[row] = {}
        for column, metrics in columns.items():
            rows[row][column] = {}
            for metric, number in metrics.items():
                score = Score(float(number["mean"]), number.get("std"))
                rows[row][column][metric] = score
                if "derived" in number:
                    derivations[row, column, metric] = number["derived"]
    return PrintedTable(experiment["where"], experiment["caption"], dict(rows), derivations)
