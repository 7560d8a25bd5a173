"""A reproduced table as data: the paper's numbers beside ours, per row, column and metric. Stored as OUT/table.json.

Rendering (terminal, Markdown, CSV, LaTeX, HTML, figures) needs nothing but this; see fedgsca/paper/render.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedgsca.errors import RunFolderError
from fedgsca.support.files import write_atomic

FILE = "table.json"
Scale = Literal["paper", "mini"]


@dataclass(frozen=True)
class Score:
    """One number over seeds. The paper's own numbers have no values per seed."""

    mean: float
    std: float | None = (
        None  # sample standard deviation; None for a single seed, or where the paper prints none
    )
    values: Mapping[str, float] = field(default_factory=dict)  # seed -> value


Scores = Mapping[str, Mapping[str, Score]]  # [column][metric]; absent where nothing is known


@dataclass(frozen=True)
class Row:
    """One method, or one variant of it."""

    key: str
    label: str
    paper: Scores
    ours: Scores
    p_value: Mapping[
        str, Mapping[str, float | None]
    ]  # paired test against the row `reference`; None where not defined


@dataclass(frozen=True)
class TableResult:
    """One experiment of the paper, as far as it has been run."""

    name: str
    title: str
    paper_caption: str
    dataset: str  # of the paper
    data: str  # of this run
    scale: Scale
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    reference: str  # key of the row that the others are tested against
    seeds: tuple[int, ...]
    notes: tuple[
        str, ...
    ]  # what a reader must know: scale, stand-ins, missing weights, parts left out
    done: int  # cells (row x column x seed) that are finished ...
    total: int  # ... of so many
    # for figures: "classes": [names]; [column][row]: "confusion": CxC (mean over seeds, last round);
    # [column][row][seed]: "f1", "stability", "seconds" (cumulative), each a list over rounds
    series: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> TableResult:
        known: dict[str, Any] = dict(tree)
        for name in ("columns", "metrics", "seeds", "notes"):
            known[name] = tuple(known[name])
        return cls(**(known | {"rows": tuple(_row(row) for row in known["rows"])}))


def _row(tree: Mapping[str, Any]) -> Row:
    return Row(
        tree["key"], tree["label"], _scores(tree["paper"]), _scores(tree["ours"]), tree["p_value"]
    )


def _scores(tree: Mapping[str, Mapping[str, Any]]) -> Scores:
    return {
        column: {metric: Score(**score) for metric, score in here.items()}
        for column, here in tree.items()
    }


def save(result: TableResult, out: Path) -> Path:
    write_atomic(
        out / FILE, json.dumps(result.to_json(), sort_keys=True, indent=1).encode() + b"\n"
    )
    return out / FILE


def load(out: Path) -> TableResult:
    """The table of a folder that `fedgsca table` made."""
    path = out / FILE
    try:
        return TableResult.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise RunFolderError(
            "todo.table-result-1",
            f"{path} does not exist",
            fix="give the folder that `fedgsca table --out` made",
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(
            "todo.table-result-2",
            f"{path} is damaged: {error}",
            fix="start the command of this table again; its cells are kept",
        ) from None
