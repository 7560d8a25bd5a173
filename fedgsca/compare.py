"""Methods x noises x seeds. Every cell is a run folder of its own, so a comparison can be stopped, continued and extended.

    OUT/plan.json          what was asked for; `fedgsca resume OUT` reads it
    OUT/cells/<cell>/      one run each: <method>-<noise>-s<seed>, ceiling-<noise>-s<seed>
    OUT/compare.json       the numbers of all finished cells, rewritten after each of them
    OUT/compare.md, compare.csv, report.html

The ceiling is FedAvg without the wrong labels, which no method can know; recovery is the share of its advantage over FedAvg
that a method wins back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from fedgsca.config import Config, Tree, build, differences, merge
from fedgsca.engine.federation import Watcher, run
from fedgsca.engine.folder import dumps, read_config
from fedgsca.errors import ConfigError, FedgscaError, RunFolderError
from fedgsca.files import write_atomic
from fedgsca.methods.base import load_all
from fedgsca.noise import parse_noise

BASELINE = "fedavg"
Role = Literal["method", "ceiling", "clean"]


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    name: str  # its folder below cells/
    role: Role
    noise: str
    seed: int
    config: Config


@dataclass(frozen=True)
class Plan:
    """What to compare. `tree` is the configuration that all cells share; options of a method apply to that method only."""

    methods: tuple[str, ...]
    noises: tuple[str, ...]
    seeds: tuple[int, ...]
    tree: Tree = field(default_factory=dict)
    ceiling: bool = True
    clean: bool = False
    title: str = ""

    def cells(self) -> list[Cell]:
        """Seed by seed and noise by noise, so that a stopped comparison has complete columns. All are checked first."""
        found: list[Cell] = []
        for seed in self.seeds:
            for noise in self.noises:
                found += [self._cell("method", method, noise, seed) for method in self.methods]
                if self.ceiling and BASELINE in self.methods and not is_clean(noise):
                    found.append(self._cell("ceiling", BASELINE, noise, seed))
            if self.clean:
                found.append(self._cell("clean", BASELINE, "0", seed))
        return found

    def _cell(self, role: Role, method: str, noise: str, seed: int) -> Cell:
        over: Tree = {"method": method, "seed": seed, "noise": {"spec": noise}}
        config = build(merge(self.tree, merge(over, {"noise": {"oracle": True}} if role == "ceiling" else {})))
        if config.data.partition != "column":  # there the data decides how many sites there are
            parse_noise(noise, config.data.sites)
        return Cell(f"{'ceiling' if role == 'ceiling' else method}-{noise}-s{seed}", role, noise, seed, config)


class Audience(Protocol):
    """Shows a comparison to a person."""

    def watch(self, cell: Cell) -> Watcher: ...
    def finished(self, cell: Cell, result: Mapping[str, Any]) -> None: ...
    def failed(self, cell: Cell, error: Exception) -> None: ...


def is_clean(noise: str) -> bool:
    return all(part.kind == "none" for part in parse_noise(noise, noise.count("-") + 1))


def parse_methods(text: str) -> tuple[str, ...]:
    """ "fedavg,fedgsca", or "all": the baseline first, FedGSCA last, as in the paper's tables. build() knows unknown names."""
    if text.strip().lower() == "all":
        return tuple(sorted(load_all(), key=lambda name: (name != BASELINE, name == "fedgsca", name)))
    return _unique("--methods", (part.strip().lower() for part in text.split(",")), "fedavg,fedgsca or all")


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "3" is how many: 0, 1, 2. A list is taken as it is: "0,4,7", or "5," for the one seed 5."""
    example = "3 (for seeds 0, 1, 2) or a list such as 0,4,7"
    try:
        if "," not in text and int(text) > 0:
            return tuple(range(int(text)))
        seeds = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or "," not in text:
        raise ConfigError(
            f"--seeds {text!r} is neither a number of seeds nor a list of them", fix=f"for example --seeds {example}"
        )
    return tuple(dict.fromkeys(seeds))


def parse_noises(specs: Iterable[str]) -> tuple[str, ...]:
    """Each in its usual spelling (s40% is S40), so that a cell has one name however it was typed."""
    usual = ("-".join(str(part) for part in parse_noise(spec, spec.count("-") + 1)) for spec in specs)
    return _unique("--noise", usual, "0-S40-P20-C20")


def _unique(flag: str, names: Iterable[str], example: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name for name in names if name))
    if not found:
        raise ConfigError(f"{flag} names nothing", fix=f"for example {flag} {example}")
    return found


def save_plan(plan: Plan, out: Path) -> None:
    write_atomic(out / "plan.json", dumps(asdict(plan)))


def read_plan(out: Path) -> Plan | None:
    """The plan of a comparison's folder; None if the folder is something else."""
    path = out / "plan.json"
    if not path.is_file():
        return None
    try:
        kept: dict[str, Any] = json.loads(path.read_bytes())
        return Plan(**(kept | {name: tuple(kept[name]) for name in ("methods", "noises", "seeds")}))
    except (ValueError, TypeError, KeyError) as error:
        raise RunFolderError(
            f"{path} is damaged: {error}", fix="start the comparison again with its command; finished cells are kept"
        ) from None


def finished_cells(cells: Iterable[Cell], out: Path) -> dict[str, dict[str, Any]]:
    """Results of the cells that need not run again."""
    paths = {cell.name: out / "cells" / cell.name / "result.json" for cell in cells}
    return {name: json.loads(path.read_bytes()) for name, path in paths.items() if path.is_file()}


def check_folder(cells: Iterable[Cell], out: Path) -> None:
    """Before anything runs: the folder is new or a comparison, and the cells it has are those that are asked for."""
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{out} is a file", fix="choose a folder with --out")
    if out.is_dir() and any(out.iterdir()) and not (out / "plan.json").exists():
        raise RunFolderError(f"{out} is not empty and not a comparison", fix="choose a new folder with --out")
    for cell in cells:
        folder = out / "cells" / cell.name
        changed = differences(cell.config, read_config(folder)) if (folder / "config.toml").exists() else []
        if changed:
            rows = [f"{key}: {theirs!r} there, {mine!r} here" for key, mine, theirs in changed[:6]]
            raise RunFolderError(
                f"{out} holds another comparison; in cell {cell.name}:\n  " + "\n  ".join(rows),
                fix=f"choose another --out, or continue that comparison with `fedgsca resume {out}`",
            )


@dataclass(frozen=True)
class Outcome:
    compare: dict[str, Any]  # the content of compare.json
    failed: dict[str, str]  # cell -> reason


def run_plan(plan: Plan, out: Path, audience: Audience, *, jobs: int = 1) -> Outcome:
    """Run what is not finished yet. A cell that fails is named and the others go on."""
    cells = plan.cells()
    check_folder(cells, out)
    save_plan(plan, out)
    results = finished_cells(cells, out)
    failed: dict[str, str] = {}
    for cell in cells:
        if cell.name in results or cell.name in failed:
            continue  # done before; or the clean reference, which is also a cell of noise 0
        try:
            results[cell.name] = run(cell.config, out / "cells" / cell.name, jobs=jobs, watcher=audience.watch(cell))
        except Exception as error:  # also our own bugs: hours of other cells must not depend on this one
            failed[cell.name] = error.message if isinstance(error, FedgscaError) else f"{type(error).__name__}: {error}"
            audience.failed(cell, error)
            continue
        audience.finished(cell, results[cell.name])
        write_atomic(out / "compare.json", dumps(collect(plan, cells, results)))
    return Outcome(collect(plan, cells, results), failed)


def collect(plan: Plan, cells: Iterable[Cell], results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The content of compare.json from the finished cells."""
    done = [(cell, results[cell.name]) for cell in cells if cell.name in results]
    ceiling: dict[str, dict[str, float]] = {}
    for cell, result in done:
        if cell.role == "ceiling":
            ceiling.setdefault(cell.noise, {})[str(cell.seed)] = result["f1"]
    compare = {
        "title": plan.title,
        "data": done[0][1]["data"] if done else "",
        "noises": list(plan.noises),
        "methods": list(plan.methods),
        "seeds": list(plan.seeds),
        "cells": [_row(cell, result) for cell, result in done if cell.role == "method"],
        "ceiling": ceiling,
    }
    clean = {str(cell.seed): result["f1"] for cell, result in done if cell.role == "clean"}
    return compare | ({"clean": clean} if clean else {})


def _row(cell: Cell, result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "method": cell.config.method,
        "label": load_all()[cell.config.method].__name__,
        "noise": cell.noise,
        "seed": cell.seed,
        "path": f"cells/{cell.name}",
        **{name: result[name] for name in ("f1", "recall", "precision")},
        "best_f1": result["best"]["f1"],
        "seconds_per_round": result["seconds"]["per_round"],
        "bytes_up": result["bytes_per_round"]["up"],
        "bytes_down": result["bytes_per_round"]["down"],
    }


def write_tables(out: Path, compare: Mapping[str, Any]) -> None:
    """compare.json, compare.md and compare.csv."""
    from fedgsca.report.tables import compare_rows, to_csv, to_markdown

    rows = compare_rows(compare)
    write_atomic(out / "compare.json", dumps(compare))
    write_atomic(out / "compare.md", to_markdown(rows).encode())
    write_atomic(out / "compare.csv", to_csv(rows).encode())
