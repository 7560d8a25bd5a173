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
from typing import Any

from fedgsca.config import Tree, build, differences, merge, read_toml
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.experiment.run_folder import dumps
from fedgsca.grid import runner
from fedgsca.grid.runner import Audience, Cell, Results, Role, finished_cells, run_cells, told
from fedgsca.methods.base import load_methods
from fedgsca.noise import parse_noise
from fedgsca.support.files import write_atomic

BASELINE = "fedavg"


@dataclass(frozen=True)
class Plan:
    """What to compare. `tree` is the configuration that all cells share; options of a method apply to that method only.

    `tuned` has settings for the cells of one method, such as its own learning rate; the ceiling and the clean reference are FedAvg's.
    """

    methods: tuple[str, ...]
    noises: tuple[str, ...]
    seeds: tuple[int, ...]
    tree: Tree = field(default_factory=dict)
    ceiling: bool = True
    clean: bool = False
    title: str = ""  # empty: made from the methods and the data
    tuned: Mapping[str, Tree] = field(default_factory=dict)

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
        if role == "ceiling":
            over = merge(over, {"noise": {"oracle": True}})
        config = build(merge(merge(self.tree, self.tuned.get(method, {})), over))
        if config.data.partition != "column":  # there the data decides how many sites there are
            parse_noise(noise, config.data.sites)
        row = "ceiling" if role == "ceiling" else method
        return Cell(f"{row}-{noise}-s{seed}", row, noise, seed, config, role)


def read_tuned(path: Path) -> dict[str, Tree]:
    """Settings per method from a TOML file: [fedavg.train] lr = 0.003 is FedAvg's learning rate, [fedgp.fedgp] its own options."""
    tree = read_toml(path)
    unknown = [
        name
        for name, section in tree.items()
        if name not in load_methods() or not isinstance(section, Mapping)
    ]
    if unknown:
        raise ConfigError(
            "todo.comparison-1",
            f"{path}: {unknown[0]} is not a method with settings",
            fix="each table is [METHOD.SECTION], for example [fedavg.train]",
        )
    return tree


def is_clean(noise: str) -> bool:
    return all(part.kind == "none" for part in parse_noise(noise, noise.count("-") + 1))


def parse_methods(text: str) -> tuple[str, ...]:
    """ "fedavg,fedgsca", or "all": the baseline first, FedGSCA last, as in the paper's tables. build() knows unknown names."""
    if text.strip().lower() == "all":
        return tuple(
            sorted(load_methods(), key=lambda name: (name != BASELINE, name == "fedgsca", name))
        )
    return _unique(
        "--methods", (part.strip().lower() for part in text.split(",")), "fedavg,fedgsca or all"
    )


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
            "todo.comparison-2",
            f"--seeds {text!r} is neither a number of seeds nor a list of them",
            fix=f"for example --seeds {example}",
        )
    return tuple(dict.fromkeys(seeds))


def parse_noises(specs: Iterable[str]) -> tuple[str, ...]:
    """Each in its usual spelling (s40% is S40), so that a cell has one name however it was typed."""
    usual = (
        "-".join(str(part) for part in parse_noise(spec, spec.count("-") + 1)) for spec in specs
    )
    return _unique("--noise", usual, "0-S40-P20-C20")


def _unique(flag: str, names: Iterable[str], example: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name for name in names if name))
    if not found:
        raise ConfigError(
            "todo.comparison-3", f"{flag} names nothing", fix=f"for example {flag} {example}"
        )
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
            "todo.comparison-4",
            f"{path} is damaged: {error}",
            fix="start the comparison again with its command; finished cells are kept",
        ) from None


def extend(plan: Plan, out: Path) -> Plan:
    """The plan together with what the folder was asked for before. Both must be one comparison: the same settings for all cells."""
    try:
        kept = read_plan(out)
    except RunFolderError:  # damaged: this command replaces it
        kept = None
    if kept is None:
        return plan
    whole = Plan(
        tuple(dict.fromkeys((*kept.methods, *plan.methods))), tuple(dict.fromkeys((*kept.noises, *plan.noises))),
        tuple(dict.fromkeys((*kept.seeds, *plan.seeds))), merge(kept.tree, plan.tree),
        kept.ceiling or plan.ceiling, kept.clean or plan.clean, plan.title or kept.title,
        merge(kept.tuned, plan.tuned),
    )  # fmt: skip
    configs = {cell.name: cell.config for cell in whole.cells()}
    for cell, theirs in [(cell, True) for cell in kept.cells()] + [
        (cell, False) for cell in plan.cells()
    ]:
        changed = (
            differences(configs[cell.name], cell.config)
            if theirs
            else differences(cell.config, configs[cell.name])
        )
        if changed:
            raise RunFolderError(
                "todo.comparison-5",
                f"{out} holds another comparison; with its settings, cell {cell.name} would differ:\n  "
                + "\n  ".join(told(changed)),
                fix=f"choose another --out, or continue that comparison with `fedgsca resume {out}`",
            )
    return whole


def check_folder(cells: Iterable[Cell], out: Path) -> None:
    runner.check_folder(cells, out, marker="plan.json", what="comparison")


@dataclass(frozen=True)
class Outcome:
    compare: dict[str, Any]  # the content of compare.json
    failed: dict[str, str]  # cell -> reason


def run_plan(plan: Plan, out: Path, audience: Audience, *, jobs: int = 1) -> Outcome:
    """Run what the plan asks for and is not finished yet; report that and what the folder had before."""
    asked = plan.cells()
    check_folder(asked, out)
    whole = extend(plan, out)
    save_plan(whole, out)
    cells = whole.cells()
    results: Results = finished_cells(cells, out)

    def keep(_: Cell) -> None:
        write_atomic(out / "compare.json", dumps(collect(whole, cells, results)))

    failed = run_cells(asked, out, audience, results, jobs=jobs, keep=keep)
    return Outcome(collect(whole, cells, results), failed)


def collect(
    plan: Plan, cells: Iterable[Cell], results: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The content of compare.json from the finished cells."""
    done = [(cell, results[cell.name]) for cell in cells if cell.name in results]
    ceiling: dict[str, dict[str, float]] = {}
    for cell, result in done:
        if cell.role == "ceiling":
            ceiling.setdefault(cell.noise, {})[str(cell.seed)] = result["f1"]
    data = done[0][1]["data"] if done else ""
    compare = {
        "title": plan.title or f"{listed(plan.methods)} on {data}",
        "data": data,
        "noises": list(plan.noises),
        "methods": list(plan.methods),
        "seeds": list(plan.seeds),
        "cells": [_row(cell, result) for cell, result in done if cell.role == "method"],
        "ceiling": ceiling,
    }
    clean = {str(cell.seed): result["f1"] for cell, result in done if cell.role == "clean"}
    return compare | ({"clean": clean} if clean else {})


def listed(methods: Iterable[str]) -> str:
    """FedAvg, FedProx and FedGSCA."""
    known = [load_methods()[name].__name__ for name in methods]
    return " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)


def _row(cell: Cell, result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "method": cell.config.method,
        "label": load_methods()[cell.config.method].__name__,
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
    from fedgsca.report.comparison_tables import compare_rows, to_csv, to_markdown

    rows = compare_rows(compare)
    write_atomic(out / "compare.json", dumps(compare))
    write_atomic(out / "compare.md", to_markdown(rows).encode())
    write_atomic(out / "compare.csv", to_csv(rows).encode())
