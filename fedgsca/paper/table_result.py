"""A reproduced table as data: the paper's numbers beside ours, stored as OUT/table.json.

Every rendering (terminal, Markdown, CSV, LaTeX, HTML, figures) needs nothing but this; see
fedgsca/paper/render.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    # sample standard deviation; None for a single seed, or where the paper prints none
    std: float | None = None
    # seed -> value
    values: Mapping[str, float] = field(default_factory=dict)


# [column][metric]; a number that does not exist is absent
Scores = Mapping[str, Mapping[str, Score]]
# [column][metric]; None where the test is not defined
PValues = Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class TableRow:
    """One method, or one variant of it."""

    key: str
    label: str
    paper: Scores
    ours: Scores
    # of the paired test against the row `TableResult.reference`
    p_value: PValues


# seed -> one value per round
SeedCurves = Mapping[str, Sequence[float]]
# (C, C): row is the true class, column the predicted one
Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class TableSeries:
    """What figures need beyond the scores, as [column][row]; empty before the first run."""

    # names of the classes; empty if the columns have different classes
    classes: tuple[str, ...] = ()
    # counts of the last round, mean over the seeds
    confusion: Mapping[str, Mapping[str, Matrix]] = field(default_factory=dict)
    f1: Mapping[str, Mapping[str, SeedCurves]] = field(default_factory=dict)
    stability: Mapping[str, Mapping[str, SeedCurves]] = field(default_factory=dict)
    # since the start of the run
    seconds: Mapping[str, Mapping[str, SeedCurves]] = field(default_factory=dict)
    # site -> macro F1 at the site's class shares, mean over the seeds
    site_f1: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class TableResult:
    """One experiment of the paper, as far as it has been run."""

    name: str
    title: str
    paper_caption: str
    # the paper's data set, and the data of this run
    dataset: str
    data: str
    scale: Scale
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[TableRow, ...]
    # key of the row that the others are tested against
    reference: str
    seeds: tuple[int, ...]
    # for the reader: scale, substitutes, missing weights, omitted parts
    notes: tuple[str, ...]
    # runs (row x column x seed)
    finished_runs: int
    total_runs: int
    series: TableSeries = field(default_factory=TableSeries)

    def to_json(self) -> dict[str, Any]:
        """The content of table.json."""
        tree = asdict(self)
        tree["done"] = tree.pop("finished_runs")
        tree["total"] = tree.pop("total_runs")
        return tree

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> TableResult:
        """The result from the content of table.json, of this version or of 0.2.0."""
        fields: dict[str, Any] = dict(tree)
        fields["finished_runs"] = fields.pop("done")
        fields["total_runs"] = fields.pop("total")
        for name in ("columns", "metrics", "seeds", "notes"):
            fields[name] = tuple(fields[name])
        fields["rows"] = tuple(_read_row(row) for row in fields["rows"])
        fields["series"] = _read_series(fields.get("series", {}))
        return cls(**fields)


def _read_row(tree: Mapping[str, Any]) -> TableRow:
    paper = _read_scores(tree["paper"])
    ours = _read_scores(tree["ours"])
    return TableRow(tree["key"], tree["label"], paper, ours, tree["p_value"])


def _read_scores(tree: Mapping[str, Mapping[str, Any]]) -> Scores:
    scores: dict[str, dict[str, Score]] = {}
    for column, metrics in tree.items():
        scores[column] = {metric: Score(**score) for metric, score in metrics.items()}
    return scores


def _read_series(tree: Mapping[str, Any]) -> TableSeries:
    fields = dict(tree)
    fields["classes"] = tuple(fields.get("classes", ()))
    return TableSeries(**fields)


def save(result: TableResult, out: Path) -> Path:
    """Write table.json into the folder and return its path."""
    text = json.dumps(result.to_json(), sort_keys=True, indent=1) + "\n"
    write_atomic(out / FILE, text.encode())
    return out / FILE


def load(out: Path) -> TableResult:
    """Read the table of a folder that `fedgsca table` wrote."""
    path = out / FILE
    try:
        return TableResult.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise RunFolderError(
            "table.missing-result",
            f"{path} does not exist",
            fix="give the folder that `fedgsca table` wrote",
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFolderError(
            "table.damaged-result",
            f"{path} is damaged: {error}",
            fix="run the command of this table again; its finished runs are kept",
        ) from None
