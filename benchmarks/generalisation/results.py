"""Finished runs on disk, one small JSON file each.

DIR/PART/cells/CELL.json        scores of a run and, for FedGSCA, the audit of its sites
DIR/PART/cleanlab/SETTING.json  what cleanlab finds inside each site; it depends on no method
DIR/PART/table.md, summary.json
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import fedgsca
from benchmarks.generalisation.plan import Cell, Setting
from fedgsca.support.files import write_atomic


@dataclass(frozen=True)
class SiteAudit:
    """The audit of one site against the truth."""

    site: str
    labels: int
    wrong: int
    # estimated number of wrong labels with its interval
    estimate: float
    low: float
    high: float
    can_tell: bool
    # of the ranking; None at a site without wrong labels
    auroc: float | None
    precision: float | None


@dataclass(frozen=True)
class RankingScore:
    """AUROC and precision in the first tenth of a list; None at a site without wrong labels."""

    auroc: float | None
    precision: float | None


@dataclass(frozen=True)
class CellResult:
    """One finished run. Scores are macro F1 in percent, means of the last five rounds."""

    cell: Cell
    f1: float
    # on validation images; None in the part "validation", whose F1 is measured on them
    val_f1: float | None
    seconds: float
    # digest of the package's source
    version: str
    sites: tuple[SiteAudit, ...] = ()
    per_class: Mapping[str, float] = field(default_factory=dict)
    # messages of the run, such as those of a guard
    notes: tuple[str, ...] = ()


def package_version() -> str:
    """A digest of the package's source files, to notice tables of several versions."""
    folder = Path(fedgsca.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


class ResultFolder:
    """The results of one part of the suite."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, cell: Cell) -> CellResult | None:
        """The result of a cell, None if it is not finished."""
        tree = _read_json(self.path / "cells" / f"{cell.name}.json")
        return None if tree is None else _to_result(tree)

    def write(self, result: CellResult) -> None:
        """Store a finished run."""
        _write_json(self.path / "cells" / f"{result.cell.name}.json", asdict(result))

    def read_all(self, cells: Iterable[Cell]) -> list[CellResult]:
        """The results of those cells that are finished."""
        results = [self.read(cell) for cell in cells]
        return [result for result in results if result is not None]

    def read_cleanlab(self, setting: Setting, seed: int) -> dict[str, RankingScore] | None:
        """Site -> cleanlab's ranking, None if it was not measured."""
        tree = _read_json(self._cleanlab_path(setting, seed))
        if tree is None:
            return None
        return {site: RankingScore(**scores) for site, scores in tree.items()}

    def write_cleanlab(
        self, setting: Setting, seed: int, scores: Mapping[str, RankingScore]
    ) -> None:
        """Store cleanlab's rankings of a setting."""
        tree = {site: asdict(score) for site, score in scores.items()}
        _write_json(self._cleanlab_path(setting, seed), tree)

    def _cleanlab_path(self, setting: Setting, seed: int) -> Path:
        return self.path / "cleanlab" / f"{setting.name}_s{seed}.json"


def _to_result(tree: Mapping[str, Any]) -> CellResult:
    cell = dict(tree["cell"])
    fields = {
        **tree,
        "cell": Cell(**{**cell, "setting": Setting(**cell["setting"])}),
        "sites": tuple(SiteAudit(**site) for site in tree["sites"]),
        "notes": tuple(tree["notes"]),
    }
    return CellResult(**fields)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        tree: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return tree


def _write_json(path: Path, tree: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(tree, indent=1).encode())
