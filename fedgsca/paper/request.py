"""What was asked for: an experiment of the paper at a scale, or a part of it, and the cells that follow from it.

OUT/experiment.json    the request; `fedgsca resume OUT` reads it, and a second request for the same experiment joins it
OUT/cells/<cell>/      one run each: <row>-<data set>-<noise>-s<seed>; experiments with the same cell may share it (--merge)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgsca.config import Tree, build, merge
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.experiment.run_folder import dumps
from fedgsca.grid.runner import Cell
from fedgsca.noise import parse_noise
from fedgsca.paper.experiments import DATASETS, GRIDS, REAL, Column, Grid, Line, Variant
from fedgsca.paper.scales import base_tree, column_tree, is_own, source_of
from fedgsca.paper.table_result import Scale
from fedgsca.support.files import locked, write_atomic

FILE = "experiment.json"
_DECIDED = (
    "method",
    "seed",
    "data.source",
    "data.sites",
    "noise.spec",
    "noise.matrix",
    "noise.given",
    "federation.eval_every",
)


@dataclass(frozen=True)
class Request:
    """An experiment, or the named rows, columns and seeds of it. `tree`: settings that the user gave for all cells."""

    name: str
    scale: Scale
    data: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    seeds: tuple[int, ...]
    tree: Tree = field(default_factory=dict)
    without_weights: bool = False

    @property
    def grid(self) -> Grid:
        return GRIDS[self.name]

    @property
    def lines(self) -> tuple[Line, ...]:
        """In the paper's order, whatever the order of asking."""
        return tuple(line for line in self.grid.lines if line.key in self.rows)

    @property
    def settings(self) -> tuple[Column, ...]:
        return tuple(column for column in self.grid.columns if column.key in self.columns)

    def cells(self) -> list[Cell]:
        """Seed by seed and column by column, so that a stopped table has complete columns. All are checked first."""
        found: list[Cell] = []
        trees = {column.key: self._tree(column) for column in self.settings}
        for seed in sorted(self.seeds):
            for column in self.settings:
                wanted = {
                    line.variant.key: line.variant
                    for line in self.lines
                    if self.grid.runs(line, column)
                }
                found += [
                    _cell(variant, column, seed, trees[column.key]) for variant in wanted.values()
                ]
        return found

    def _tree(self, column: Column) -> Tree:
        source = source_of(column.dataset, self.data, self.scale)
        guess = column.noise == REAL and not is_own(column.dataset, source)
        below = merge(base_tree(self.scale, self.tree), DATASETS[column.dataset].tree)
        return merge(
            merge(below, self.tree),
            column_tree(column, source, _num_classes(source, self.tree) if guess else None),
        )


def _cell(variant: Variant, column: Column, seed: int, tree: Tree) -> Cell:
    config = build(merge(merge(tree, variant.tree), {"method": variant.method, "seed": seed}))
    if config.data.partition != "column":  # there the data decides how many sites there are
        parse_noise(config.noise.spec, config.data.sites)
    return Cell(
        f"{variant.key}-{column.dataset}-{column.noise}-s{seed}",
        variant.key,
        column.key,
        seed,
        config,
    )


def _num_classes(source: str, tree: Tree) -> int:
    from fedgsca.data.load import load

    data = tree.get("data", {})
    asked = {
        key: data[key]
        for key in ("image_size", "skip_unreadable", "split", "label", "splits")
        if key in data
    }
    return load(source, **asked).num_classes


def check_settings(tree: Mapping[str, Any]) -> None:
    """The grid decides some settings; to set them would change the experiment under its name."""
    for key in _DECIDED:
        part: Any = tree
        for name in key.split("."):
            part = part.get(name) if isinstance(part, Mapping) else None
        if part is not None:
            raise ConfigError(
                "todo.request-1",
                f"{key} is what the experiment varies or fixes",
                fix="leave it out, or use `fedgsca compare`",
            )


def choose(flag: str, text: str | None, known: Iterable[str]) -> tuple[str, ...]:
    """Names joined by commas, or everything. Capitals do not count."""
    names = {name.lower(): name for name in known}
    asked = [part.strip().lower() for part in (text or "").split(",") if part.strip()]
    unknown = [part for part in asked if part not in names]
    if unknown or (text is not None and not asked):
        raise ConfigError(
            "todo.request-2",
            f"{flag}: this experiment has no {', '.join(map(repr, unknown)) or 'empty name'}",
            fix=f"choose from {', '.join(names.values())}",
        )
    return tuple(names[part] for part in dict.fromkeys(asked)) or tuple(names.values())


def read_request(out: Path) -> Request | None:
    """The request of a folder; None if the folder is something else."""
    path = out / FILE
    if not path.is_file():
        return None
    try:
        kept: dict[str, Any] = json.loads(path.read_bytes())
        lists = {name: tuple(kept[name]) for name in ("data", "rows", "columns", "seeds")}
        found = Request(**(kept | lists))
        if found.name not in GRIDS:
            raise ValueError(f"no experiment is called {found.name!r}")
        return found
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(
            "todo.request-3",
            f"{path} is damaged: {error}",
            fix=f"delete {path} and start the command again; cells are kept",
        ) from None


def join(request: Request, out: Path) -> Request:
    """The request together with what the folder was asked for before, written to the folder."""
    with locked(out / ".lock"):
        kept = read_request(out)
        whole = request if kept is None else _joined(request, kept, out)
        if whole != kept:
            write_atomic(out / FILE, dumps(asdict(whole)))
    return whole


def _joined(request: Request, kept: Request, out: Path) -> Request:
    fixed = ("name", "scale", "tree", "without_weights")
    other = [f"{name}: {getattr(kept, name)!r} there, {getattr(request, name)!r} here" for name in fixed
             if _plain(getattr(kept, name)) != _plain(getattr(request, name))]  # fmt: skip
    if other:
        raise RunFolderError(
            "todo.request-4",
            f"{out} holds another experiment:\n  " + "\n  ".join(other),
            fix=f"choose another --out, or continue that one with `fedgsca resume {out}`",
        )
    return replace(
        request,
        rows=tuple(dict.fromkeys((*kept.rows, *request.rows))),
        columns=tuple(dict.fromkeys((*kept.columns, *request.columns))),
        seeds=tuple(sorted({*kept.seeds, *request.seeds})),
    )


def _plain(value: Any) -> Any:
    """As JSON has it, without the place of the weights file: another machine may keep it elsewhere."""
    tree = json.loads(json.dumps(value))
    if isinstance(tree, dict) and isinstance(tree.get("model"), dict):
        tree["model"] = {key: part for key, part in tree["model"].items() if key != "weights"}
    return tree
