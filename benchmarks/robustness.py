"""What lying sites do to a run, and what an aggregation rule costs honest ones.

    python -m benchmarks.robustness --data FOLDER    # all cells that are missing, then the pages
    python -m benchmarks.robustness --print          # only the pages

FOLDER may hold ham10000_small and deepdrid_small; what is absent is left out. Results are in
benchmarks/studies/robustness.csv, one line a run, so the same call continues an interrupted study.
From them the command writes benchmarks/studies/robustness.md and the tables of docs/robustness.md.

Every run: frozen features of the demo's backbone, 12 rounds, macro F1 of the last five; built-in
images (1,200) unless the scene says otherwise. In the scene 1/4 one of four sites lies (noises 0,
S40, P20, C20; site-2 is the liar), in 3/10 the last three of ten (S20). Numbers of images are
agreed on in these scenes (aggregation.max_images). `absent`: the liars never answer.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.lopsided_sites import make_lopsided
from benchmarks.poisons import LABEL_POISONS, POISONS, Liar
from benchmarks.rival_rules import RIVALS
from benchmarks.robustness_pages import write_pages
from fedgsca.config import Config, Tree, build, merge
from fedgsca.errors import FedgscaError
from fedgsca.federation.base import Reply
from fedgsca.federation.local import SiteRunner
from fedgsca.federation.rounds import run
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.methods.base import compose_method, load_methods
from fedgsca.wire import Arrays, Payload, Update

RESULTS = Path("benchmarks/studies/robustness.csv")
ROUNDS = 12
SEEDS = (104, 105)  # used for nothing else; rules and settings were chosen on 0 to 2
RULE = "mixing"
HONEST, ABSENT = "honest", "absent"
LIES = (HONEST, ABSENT, *POISONS, *LABEL_POISONS)
# for methods, rules and seeds that are not measured with all lies
FEW_LIES = (
    HONEST,
    ABSENT,
    "change x -5",
    "one wrong model, three times the norm",
    "nearly a copy of another site",
    "as far as the others are",
    "extras x -5",
    "statistics x 100",
    "labels flipped (P90)",
)
MANY_LIES = (HONEST, ABSENT, "change x -5", "as far as the others are", "labels flipped (P90)")

_FOUR = "0-S40-P20-C20"
SCENES: dict[str, Tree] = {
    "1/4": {"data": {"sites": 4}, "noise": {"spec": _FOUR}},
    "3/10": {
        "data": {"sites": 10},
        "noise": {"spec": "S20"},
        "aggregation": {"liars": 0.3},
    },
    "20/100": {"data": {"sites": 100}, "noise": {"spec": "S20"}},
    "200/1000": {
        "data": {"sites": 1000, "train": 3000},
        "noise": {"spec": "S20"},
        "federation": {"sites_per_round": 50},
    },
    "identical, clean": {"data": {"sites": 4}, "noise": {"spec": "0"}},
    "group": {"data": {"partition": "group"}, "noise": {"spec": _FOUR}},
    "Dirichlet 0.5": {"data": {"partition": "dirichlet", "alpha": 0.5}, "noise": {"spec": _FOUR}},
    "Dirichlet 0.1": {"data": {"partition": "dirichlet", "alpha": 0.1}, "noise": {"spec": _FOUR}},
    "identical, noisy": {"data": {"sites": 4}, "noise": {"spec": _FOUR}},
    "three, Dirichlet 0.5": {
        "data": {"sites": 3, "partition": "dirichlet", "alpha": 0.5},
        "noise": {"spec": "S40-P20-C20"},
    },
    "ten, Dirichlet 0.5": {
        "data": {"sites": 10, "partition": "dirichlet", "alpha": 0.5},
        "noise": {"spec": "S20"},
    },
    "lopsided, built-in": {"data": {"sites": 4, "partition": "column"}},
    "lopsided, skin": {"data": {"sites": 4, "partition": "column"}},
    "real hospitals, retina": {"data": {"sites": 3, "partition": "column"}},
}
LIARS = {
    "1/4": ("site-2",),
    "3/10": ("site-8", "site-9", "site-10"),
    "20/100": tuple(f"site-{k}" for k in range(81, 101)),
    "200/1000": tuple(f"site-{k}" for k in range(801, 1001)),
}
DIVISIONS = tuple(scene for scene in SCENES if scene not in LIARS)
_SOURCES = {"lopsided, skin": "ham10000_small", "real hospitals, retina": "deepdrid_small"}


@dataclass(frozen=True)
class Cell:
    """One run of the study."""

    scene: str
    method: str
    rule: str
    lie: str
    seed: int


@dataclass
class LyingEngine:
    """A local engine in which some sites lie. They answer last, so that they know the others."""

    runner: SiteRunner
    liars: Sequence[str]
    lie: str
    earlier: dict[str, list[Update]] = field(default_factory=dict)
    first_weights: dict[str, Arrays] = field(default_factory=dict)

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
            if name in self.liars and self.lie == ABSENT:
                continue
            if name in self.liars and update is not None and self.lie in POISONS:
                earlier = self.earlier.setdefault(name, [])
                first_weights = self.first_weights.setdefault(name, payload.weights)
                liar = Liar(payload, update, list(earlier), others, first_weights)
                earlier.append(update)
                yield replace(replies[name], update=POISONS[self.lie](liar))
            else:
                yield replies[name]

    def close(self) -> None:
        """Nothing to release."""


def make_config(cell: Cell, sources: Mapping[str, str]) -> Config:
    """The configuration of a cell; a lie about labels is a noise of the liars."""
    tree: Tree = {
        "method": cell.method,
        "seed": cell.seed,
        "data": {"source": "synthetic", "train": 1200, "test": 400},
        "model": {"frozen": True},
        "noise": {"spec": "0"},
        "train": {"rounds": ROUNDS, "threads": 1, "device": "cpu"},
        "federation": {"keep_losses": False},
        "aggregation": {"rule": cell.rule},
    }
    tree = merge(tree, SCENES[cell.scene])
    if cell.scene in sources:
        tree = merge(tree, {"data": {"source": sources[cell.scene], "train": None, "test": None}})
    if cell.lie in LABEL_POISONS:
        tree = merge(tree, {"noise": {"spec": _liar_noise(cell)}})
    return build(tree)


def _liar_noise(cell: Cell) -> str:
    """A specification that counts sites by number; the liars have the noise of the lie."""
    tree = SCENES[cell.scene]
    data, noise = tree["data"], tree["noise"]
    assert isinstance(data, dict) and isinstance(noise, dict)
    kinds = str(noise["spec"]).split("-")
    specs = [kinds[k % len(kinds)] for k in range(int(data["sites"]))]
    for name in LIARS[cell.scene]:
        specs[int(name.removeprefix("site-")) - 1] = LABEL_POISONS[cell.lie]
    return "-".join(specs)


def prepare_once(config: Config) -> Experiment:
    """The experiment; its data are prepared once for all methods, rules and lies."""
    tree = config.to_tree()
    keys = ("data", "noise", "model", "seed", "train")
    text = json.dumps({key: tree[key] for key in keys if key in tree}, sort_keys=True)
    return replace(_prepared(text), config=config)


@functools.lru_cache(maxsize=8)
def _prepared(tree_text: str) -> Experiment:
    return prepare(build(json.loads(tree_text)))


def run_cell(cell: Cell, sources: Mapping[str, str]) -> float | None:
    """Macro F1; None for a run that ended with an error."""
    config = make_config(cell, sources)
    experiment = prepare_once(config)
    liars = LIARS.get(cell.scene, ()) if cell.lie != HONEST else ()
    if cell.scene in LIARS:
        numbers = {name: len(rows) for name, rows in experiment.rows.items()}
        config = build(merge(config.to_tree(), {"aggregation": {"max_images": numbers}}))
        experiment = replace(experiment, config=config)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        runner = SiteRunner(experiment, compose_method(config), folder)
        engine = LyingEngine(runner, liars, cell.lie)
        try:
            result = run(config, folder, engine=engine, experiment=experiment)
        except FedgscaError:
            return None
    return None if result is None else result.f1


def plan_study(sources: Mapping[str, str]) -> list[Cell]:
    """All cells, the most important ones first."""
    methods = list(load_methods())
    chosen = [name for name in methods if name in ("fedavg", "fedgsca", "fedgsca-e")]
    divisions = [name for name in DIVISIONS if name in sources or not _needs_source(name)]
    first, pair, lying = SEEDS[:1], ("mean", RULE), ("1/4", "3/10")
    parts = [
        (first, lying, ("fedavg",), pair, LIES),
        (first, lying, chosen, (RULE,), LIES),
        (SEEDS, divisions, chosen, pair, (HONEST,)),
        (SEEDS, lying, methods, (RULE,), FEW_LIES),
        (SEEDS, divisions[:3], methods, pair, (HONEST,)),
        (first, ("20/100", "200/1000"), ("fedavg",), pair, MANY_LIES),
        (first, lying, ("fedavg",), RIVALS, FEW_LIES),
        (first, divisions, ("fedavg",), RIVALS, (HONEST,)),
    ]
    cells = []
    for seeds, scenes, names, rules, lies in parts:
        for key in itertools.product(seeds, scenes, names, lies, rules):
            seed, scene, method, lie, rule = key
            cells.append(Cell(scene, method, rule, lie, seed))
    return list(dict.fromkeys(cells))


def _needs_source(scene: str) -> bool:
    return scene.startswith(("lopsided", "real"))


def make_sources(data: Path | None, folder: Path) -> dict[str, str]:
    """Scene -> source of its images, where it is not the built-in one."""
    sources = {"lopsided, built-in": "synthetic"}
    for scene, name in _SOURCES.items():
        if data is not None and (data / name).exists():
            sources[scene] = str(data / name)
    for scene, source in sources.items():
        if scene.startswith("lopsided"):
            target = folder / scene.replace(", ", "-")
            make_lopsided(source, target)
            sources[scene] = str(target)
    return sources


def read_results() -> dict[Cell, float | None]:
    """The cells that are measured."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    results = {}
    for scene, method, rule, lie, seed, f1 in rows:
        results[Cell(scene, method, rule, lie, int(seed))] = float(f1) if f1 else None
    return results


def measure(cells: Sequence[Cell], sources: Mapping[str, str]) -> None:
    """Run the cells that are missing; each is written down at once."""
    RESULTS.parent.mkdir(exist_ok=True)
    if not RESULTS.exists():
        RESULTS.write_text("scene,method,rule,lie,seed,f1\n")
    results = read_results()
    for cell in cells:
        if cell in results:
            continue
        start = time.perf_counter()
        f1 = run_cell(cell, sources)
        number = "" if f1 is None else f"{f1:.2f}"
        with RESULTS.open("a", newline="") as file:
            row = (cell.scene, cell.method, cell.rule, cell.lie, cell.seed, number)
            csv.writer(file, lineterminator="\n").writerow(row)
        print(*row, f"{time.perf_counter() - start:.1f} s", flush=True)


def main() -> None:
    """Run the cells that are missing, then write the pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with ham10000_small and deepdrid_small")
    parser.add_argument("--print", action="store_true", help="run nothing")
    options = parser.parse_args()
    if not options.print:
        sources = make_sources(options.data, Path(tempfile.gettempdir()) / "fedgsca-robustness")
        measure(plan_study(sources), sources)
    write_pages(RESULTS.parent, Path("docs/robustness.md"))


if __name__ == "__main__":
    main()
