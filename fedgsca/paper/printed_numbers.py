"""The numbers that the paper prints, as data: numbers.json, one entry per experiment, row, column and metric."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedgsca.paper.table_result import Score, Scores


@dataclass(frozen=True)
class Printed:
    """One table or figure of the paper."""

    where: str  # "Table 2"
    caption: str
    rows: dict[str, Scores]  # [row][column][metric]
    derived: dict[tuple[str, str, str], str]  # numbers that follow from printed ones: how


@cache
def _file() -> dict[str, Any]:
    return dict(json.loads(Path(__file__).with_name("numbers.json").read_text(encoding="utf-8")))


def source() -> str:
    return str(_file()["source"])


def names() -> tuple[str, ...]:
    return tuple(_file()["experiments"])


@cache
def printed(name: str) -> Printed:
    """What the paper says about an experiment."""
    entry = _file()["experiments"][name]
    rows: dict[str, Scores] = {}
    derived: dict[tuple[str, str, str], str] = {}
    for row, columns in entry["rows"].items():
        rows[row] = {
            column: {
                metric: Score(float(number["mean"]), number.get("std"))
                for metric, number in metrics.items()
            }
            for column, metrics in columns.items()
        }
        for column, metrics in columns.items():
            derived |= {
                (row, column, m): number["derived"]
                for m, number in metrics.items()
                if "derived" in number
            }
    return Printed(entry["where"], entry["caption"], rows, derived)
