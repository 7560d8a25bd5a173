"""What lying sites do to a run, without protection, with the guard, and with every rule.

    python -m benchmarks.robustness --out FILE.json [--methods fedavg,fedgsca] \
        [--rules off,mean,median] [--scenes 1/4,3/10] [--poisons "change x -1,no change"]

The study behind docs/robustness.md. Built-in images (1,200), frozen features of the demo's
backbone, 12 rounds, seed 0; four sites with the noises 0, S40, P20 and C20, of which site-2 lies;
or ten sites with S20, of which the last three lie. "off" is the mean without the guard; all rules
run with the guard. `honest` is a run without liars, and in `absent` the liars do not answer. Scenes
other than 1/4 and 3/10 are honest runs on non-identical sites: "dirichlet-0.1", "dirichlet-0.5" and
"group". Evidence heads are on for FedGSCA, which uses them, and for the poison "extras x -5".
Finished cells are read from FILE, so the same call continues an interrupted study.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.poisons import LABEL_POISONS, POISONS, Liar
from fedgsca.config import Config, Tree, build, merge
from fedgsca.engine.base import Reply
from fedgsca.engine.local import SiteRunner
from fedgsca.engine.rounds import run
from fedgsca.errors import FedgscaError
from fedgsca.experiment.run_folder import read_rounds
from fedgsca.experiment.simulation import Experiment, prepare
from fedgsca.methods.compose import compose_method
from fedgsca.support.files import write_atomic
from fedgsca.wire import Payload, Update

HONEST = "honest"
ABSENT = "absent"
ROUNDS = 12
RULES = (
    "off",
    "mean",
    "norm-bound",
    "median",
    "trimmed-mean",
    "geometric-median",
    "krum",
    "multi-krum",
)
SCENES: dict[str, Tree] = {
    "1/4": {"data": {"sites": 4}, "noise": {"spec": "0-S40-P20-C20"}},
    "3/10": {"data": {"sites": 10}, "noise": {"spec": "S20"}, "aggregation": {"liars": 3}},
    "dirichlet-0.1": {"data": {"partition": "dirichlet", "alpha": 0.1}},
    "dirichlet-0.5": {"data": {"partition": "dirichlet", "alpha": 0.5}},
    "group": {"data": {"partition": "group"}},
}
LIARS = {"1/4": ("site-2",), "3/10": ("site-8", "site-9", "site-10")}


@dataclass
class LyingEngine:
    """A local engine in which some sites lie. They answer last, so that they know the others."""

    runner: SiteRunner
    liars: Sequence[str]
    poison: str
    earlier: dict[str, list[Update]] = field(default_factory=dict)

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        names = sorted(self.runner.experiment.sites if sites is None else sites)
        replies = {name: self.runner.run_round(name, payload) for name in names}
        others = []
        for name in names:
            update = replies[name].update
            if name not in self.liars and update is not None:
                others.append(update)
        for name in names:
            update = replies[name].update
            if name in self.liars and self.poison == ABSENT:
                continue
            if name in self.liars and update is not None and self.poison in POISONS:
                earlier = self.earlier.setdefault(name, [])
                lie = POISONS[self.poison](Liar(payload, update, list(earlier), others))
                earlier.append(update)
                yield replace(replies[name], update=lie)
            else:
                yield replies[name]

    def close(self) -> None:
        """Nothing to release."""


def make_config(method: str, scene: str, rule: str, poison: str) -> Config:
    """The configuration of a cell; a poison of the labels is a noise of the liars."""
    tree: Tree = {
        "method": method,
        "data": {"source": "synthetic", "train": 1200, "test": 400},
        "noise": {"spec": "0-S40-P20-C20"},
        "model": {"frozen": True},
        "audit": {"enabled": False},
        "train": {"rounds": ROUNDS, "threads": 1, "device": "cpu"},
        "federation": {"keep_losses": False},
    }
    tree = merge(tree, SCENES[scene])
    if method != "fedgsca" and poison != "extras x -5":
        tree = merge(tree, {"evidence": {"enabled": False}})
    if poison in LABEL_POISONS:
        tree = merge(tree, {"noise": {"spec": _liar_noise(scene, LABEL_POISONS[poison])}})
    settings = {"guard": rule != "off", "rule": "mean" if rule == "off" else rule}
    return build(merge(tree, {"aggregation": settings}))


def _liar_noise(scene: str, kind: str) -> str:
    if scene == "1/4":
        return f"0-{kind}-P20-C20"
    # sorted by name: site-1, site-10, site-2, ...; the specification counts by number
    return "-".join([*["S20"] * 7, *[kind] * 3])


def _data_config(config: Config) -> str:
    """What the images and labels of the sites depend on."""
    tree = config.to_tree()
    keys = ("data", "noise", "model", "seed", "train")
    return json.dumps({key: tree[key] for key in keys if key in tree}, sort_keys=True)


@functools.lru_cache(maxsize=8)
def _prepared(tree_text: str) -> Experiment:
    """The sites with their data: the same for all methods and rules."""
    return prepare(build(json.loads(tree_text)))


def prepare_once(config: Config) -> Experiment:
    """The experiment; its data are prepared once for all methods, rules and lies."""
    return replace(_prepared(_data_config(config)), config=config)


def run_cell(method: str, scene: str, rule: str, poison: str) -> dict[str, object]:
    """Macro F1 (mean of the last five rounds) and how many updates of whom were left out."""
    config = make_config(method, scene, rule, poison)
    liars = LIARS.get(scene, ()) if poison != HONEST else ()
    experiment = prepare_once(config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        runner = SiteRunner(experiment, compose_method(config), folder)
        engine = LyingEngine(runner, liars, poison)
        f1: float | None = None
        error = ""
        try:
            result = run(config, folder, engine=engine, experiment=experiment)
            f1 = None if result is None else result.f1
        except FedgscaError as problem:
            error = problem.code
        refusals = []
        for record in read_rounds(folder):
            refusals += list(record.refusals)
    num_liars = sum(site in liars for site in refusals)
    return {
        "f1": f1,
        "error": error,
        "refused_liars": num_liars,
        "refused_honest": len(refusals) - num_liars,
    }


def print_tables(cells: dict[str, dict[str, object]]) -> None:
    """One Markdown table per method and scene: poisons x rules."""
    tables: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for key, cell in cells.items():
        method, scene, rule, poison = key.split("|")
        f1 = cell["f1"]
        text = f"{f1:.1f}" if isinstance(f1, float) else str(cell["error"])
        if cell["refused_honest"]:
            text += f" ({cell['refused_honest']} honest refused)"
        tables.setdefault((method, scene), {}).setdefault(poison, {})[rule] = text
    for (method, scene), rows in tables.items():
        rules = [rule for rule in RULES if any(rule in row for row in rows.values())]
        print(f"\n### {method}, {scene}\n\n| Poison | {' | '.join(rules)} |")
        print("|---" * (len(rules) + 1) + "|")
        for poison, row in rows.items():
            print(f"| {poison} | {' | '.join(row.get(rule, '') for rule in rules)} |")


def main() -> None:
    """Run the cells that are missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default="fedavg,fedgsca")
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--scenes", default="1/4,3/10")
    parser.add_argument("--poisons", default=",".join([HONEST, ABSENT, *POISONS, *LABEL_POISONS]))
    options = parser.parse_args()
    unknown_poisons = set(options.poisons.split(",")) - {HONEST, ABSENT, *POISONS, *LABEL_POISONS}
    if unknown_poisons:
        parser.error(f"unknown poisons: {', '.join(sorted(unknown_poisons))}")
    cells: dict[str, dict[str, object]] = {}
    if options.out.exists():
        cells = json.loads(options.out.read_text())
    for scene in options.scenes.split(","):
        for method in options.methods.split(","):
            poisons = options.poisons.split(",") if scene in LIARS else [HONEST]
            for poison in poisons:
                for rule in options.rules.split(","):
                    key = "|".join((method, scene, rule, poison))
                    if key not in cells:
                        cells[key] = run_cell(method, scene, rule, poison)
                        print(key, cells[key], flush=True)
                        write_atomic(options.out, json.dumps(cells, indent=1).encode())
    print_tables(cells)


if __name__ == "__main__":
    main()
