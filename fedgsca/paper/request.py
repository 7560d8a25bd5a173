"""What the user requests: an experiment of the paper at a scale, or a part of it, and its runs.

OUT/experiment.json    the request; `fedgsca resume OUT` reads it, and a second request for the same
                       experiment is merged into it
OUT/cells/<cell>/      one run each: <row>-<data set>-<noise>-s<seed>; experiments that have the
                       same run can share it (--merge)
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
from fedgsca.grid.runner import GridCell
from fedgsca.methods.base import paper_methods
from fedgsca.noise import parse_noise
from fedgsca.paper.experiments import DATASETS, GRIDS, REAL, Grid, GridColumn, GridRow, Variant
from fedgsca.paper.scales import base_tree, column_tree, is_own, source_of
from fedgsca.paper.table_result import Scale
from fedgsca.support.files import file_lock, write_atomic

FILE = "experiment.json"
# the settings that a grid decides
_GRID_KEYS = (
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
    """An experiment, or some rows, columns and seeds of it, by their keys."""

    name: str
    scale: Scale
    data: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    seeds: tuple[int, ...]
    # settings that the user gave for all runs
    tree: Tree = field(default_factory=dict)
    without_weights: bool = False

    @property
    def grid(self) -> Grid:
        """The whole experiment."""
        return GRIDS[self.name]

    @property
    def grid_rows(self) -> tuple[GridRow, ...]:
        """The requested rows, in the order of the paper."""
        return tuple(row for row in self.grid.all_rows if row.key in self.rows)

    @property
    def grid_columns(self) -> tuple[GridColumn, ...]:
        """The requested columns, in the order of the paper."""
        return tuple(column for column in self.grid.columns if column.key in self.columns)

    def cells(self) -> list[GridCell]:
        """All runs, each with a checked configuration.

        Seed by seed and column by column, so that an interrupted table has complete columns.
        """
        cells: list[GridCell] = []
        trees = {column.key: self._tree(column) for column in self.grid_columns}
        for seed in sorted(self.seeds):
            for column in self.grid_columns:
                for variant in self._variants(column):
                    cells.append(_make_cell(variant, column, seed, trees[column.key]))
        return cells

    def _variants(self, column: GridColumn) -> list[Variant]:
        variants = {}
        for row in self.grid_rows:
            if self.grid.includes(row, column):
                variants[row.variant.key] = row.variant
        return list(variants.values())

    def _tree(self, column: GridColumn) -> Tree:
        source = source_of(column.dataset, self.data, self.scale)
        num_classes = None
        if column.noise == REAL and not is_own(column.dataset, source):
            num_classes = _count_classes(source, self.tree)
        base = merge(base_tree(self.scale, self.tree), DATASETS[column.dataset].tree)
        return merge(merge(base, self.tree), column_tree(column, source, num_classes))


def _make_cell(variant: Variant, column: GridColumn, seed: int, tree: Tree) -> GridCell:
    config = build(merge(merge(tree, variant.tree), {"method": variant.method, "seed": seed}))
    if config.data.partition != "column":  # there the data decides the number of sites
        parse_noise(config.noise.spec, config.data.sites)
    name = f"{variant.key}-{column.dataset}-{column.noise}-s{seed}"
    return GridCell(name, variant.key, column.key, seed, config)


def _count_classes(source: str, tree: Tree) -> int:
    from fedgsca.data.load import load

    options = {}
    for key in ("image_size", "skip_unreadable", "split", "label", "splits"):
        if key in tree.get("data", {}):
            options[key] = tree["data"][key]
    return load(source, **options).num_classes


def check_settings(tree: Mapping[str, Any]) -> None:
    """Refuse settings that the grid decides: they would change the experiment under its name."""
    for key in _GRID_KEYS:
        value: Any = tree
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            raise ConfigError(
                "table.fixed-setting",
                f"the experiment varies or fixes {key}, so it cannot be set",
                fix=f"leave {key} out, or use `fedgsca compare`",
            )


def choose(flag: str, text: str | None, available: Iterable[str]) -> tuple[str, ...]:
    """The names of a comma-separated list, in any case; all names if `text` is None."""
    names = {name.lower(): name for name in available}
    if text is None:
        return tuple(names.values())
    words = [part.strip().lower() for part in text.split(",") if part.strip()]
    invalid_words = [word for word in words if word not in names]
    if invalid_words or not words:
        listing = ", ".join(map(repr, invalid_words)) or "an empty list"
        raise ConfigError(
            "table.unknown-part",
            f"{flag}: this experiment does not have {listing}",
            fix=f"use one or more of: {', '.join(names.values())}",
        )
    return tuple(names[word] for word in dict.fromkeys(words))


def choose_rows(grid: Grid, text: str | None) -> tuple[str, ...]:
    """The rows that --methods names; "all" are all methods, "paper" are those that it prints."""
    word = (text or "").strip().lower()
    if text is None or (word == "paper" and grid.prescribed_rows):
        return tuple(row.key for row in grid.rows)
    if word == "all":
        return tuple(row.key for row in grid.all_rows)
    if word == "paper":
        return paper_methods()
    return choose("--methods", text, (row.key for row in grid.all_rows))


def read_request(out: Path) -> Request | None:
    """The request of a folder; None if the folder is something else."""
    path = out / FILE
    if not path.is_file():
        return None
    try:
        fields: dict[str, Any] = json.loads(path.read_bytes())
        for name in ("data", "rows", "columns", "seeds"):
            fields[name] = tuple(fields[name])
        request = Request(**fields)
        if request.name not in GRIDS:
            raise ValueError(f"unknown experiment {request.name!r}")
        return request
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(
            "table.damaged-request",
            f"{path} is damaged: {error}",
            fix=f"delete {path} and run the command again; finished runs are kept",
        ) from None


def merge_request(request: Request, out: Path) -> Request:
    """The request together with the earlier one of the folder, written to the folder."""
    with file_lock(out / ".lock"):
        earlier = read_request(out)
        if earlier is not None:
            request = _merge_requests(request, earlier, out)
        if request != earlier:
            write_atomic(out / FILE, dumps(asdict(request)))
    return request


def _merge_requests(request: Request, earlier: Request, out: Path) -> Request:
    conflicts = []
    for name in ("name", "scale", "tree", "without_weights"):
        old_value = getattr(earlier, name)
        new_value = getattr(request, name)
        if _comparable(old_value) != _comparable(new_value):
            conflicts.append(f"{name}: {old_value!r} there, {new_value!r} here")
    if conflicts:
        raise RunFolderError(
            "table.other-experiment",
            f"{out} holds another experiment:\n  " + "\n  ".join(conflicts),
            fix=f"choose another --out, or continue that experiment with `fedgsca resume {out}`",
        )
    return replace(
        request,
        rows=tuple(dict.fromkeys((*earlier.rows, *request.rows))),
        columns=tuple(dict.fromkeys((*earlier.columns, *request.columns))),
        seeds=tuple(sorted({*earlier.seeds, *request.seeds})),
    )


def _comparable(value: Any) -> Any:
    """A value as JSON, without the path of the weights, which may differ between machines."""
    tree = json.loads(json.dumps(value))
    if isinstance(tree, dict) and isinstance(tree.get("model"), dict):
        tree["model"].pop("weights", None)
    return tree
