"""What lying sites do to a run, without protection, with the guard, and with every rule.

    python -m benchmarks.robustness --out FILE.json                   # the whole study
    python -m benchmarks.robustness --out FILE.json --print           # only the tables
    python -m benchmarks.robustness --out FILE.json --docs docs/robustness.md   # into the page
    python -m benchmarks.robustness --out FILE.json --methods fedavg,fedgsca \
        --rules off,mean,median --scenes 1/4,3/10 --poisons "change x -1,no change"

The study behind docs/robustness.md. Without a selection it measures, in this order: every lie and
every method with the default guard, one liar of four, then three of ten; honest runs of FedAvg and
FedGSCA on non-identical sites under every rule; every lie under every rule for these two; the same
with three liars of ten; and every lie and method without guard.

Built-in images (1,200), frozen features of the demo's backbone, 12 rounds, seed 0; four sites with
the noises 0, S40, P20 and C20, of which site-2 lies; or ten sites with S20, of which the last three
lie. "off" is the mean without the guard; all rules run with the guard. `honest` is a run without
liars, and in `absent` the liars do not answer. Scenes other than 1/4 and 3/10 are honest runs on
non-identical sites: "dirichlet-0.1", "dirichlet-0.5" and "group". Evidence heads are on for
FedGSCA, which uses them, and for the poison "extras x -5". Finished cells are read from FILE, so
the same call continues an interrupted study.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.poisons import CRUDE, LABEL_POISONS, POISONS, Liar
from fedgsca.config import Config, Tree, build, merge
from fedgsca.engine.base import Reply
from fedgsca.engine.local import SiteRunner
from fedgsca.engine.rounds import run
from fedgsca.errors import FedgscaError
from fedgsca.experiment.run_folder import read_rounds
from fedgsca.experiment.simulation import Experiment, prepare
from fedgsca.methods.compose import compose_method
from fedgsca.support.files import write_atomic
from fedgsca.wire import Arrays, Payload, Update

METHODS = (
    "fedavg",
    "fedgsca",
    "fednoro",
    "fedcorr",
    "fedfixer",
    "fedgp",
    "fedprox",
    "fedrobust",
)
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
            if name in self.liars and self.poison == ABSENT:
                continue
            if name in self.liars and update is not None and self.poison in POISONS:
                earlier = self.earlier.setdefault(name, [])
                first_weights = self.first_weights.setdefault(name, payload.weights)
                liar = Liar(payload, update, list(earlier), others, first_weights)
                lie = POISONS[self.poison](liar)
                earlier.append(update)
                yield replace(replies[name], update=lie)
            else:
                yield replies[name]

    def close(self) -> None:
        """Nothing to release."""


def make_config(method: str, scene: str, rule: str, poison: str, seed: int = 0) -> Config:
    """The configuration of a cell; a poison of the labels is a noise of the liars."""
    tree: Tree = {
        "method": method,
        "seed": seed,
        "data": {"source": "synthetic", "train": 1200, "test": 400},
        "noise": {"spec": "0-S40-P20-C20"},
        "model": {"frozen": True},
        "audit": {"enabled": False},
        "train": {"rounds": ROUNDS, "threads": 1, "device": "cpu"},
        "federation": {"keep_losses": False},
    }
    tree = merge(tree, SCENES[scene])
    if poison == "extras x -5":
        tree = merge(tree, {"audit": {"enabled": True}})
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


def run_cell(method: str, scene: str, rule: str, poison: str, seed: int = 0) -> dict[str, object]:
    """Macro F1 (mean of the last five rounds), who was left out how often, and who was reported."""
    config = make_config(method, scene, rule, poison, seed)
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
        alarms = []
        for record in read_rounds(folder):
            refusals += list(record.refusals)
            alarms += [f"{site} in round {record.round + 1}" for site in record.opposition or {}]
    num_liars = sum(site in liars for site in refusals)
    return {
        "f1": f1,
        "error": error,
        "refused_liars": num_liars,
        "refused_honest": len(refusals) - num_liars,
        "opposed": alarms,
    }


def cell_text(cell: Mapping[str, object]) -> str:
    """F1, or "stops" for a run that ended with an error; and refusals of honest sites."""
    f1 = cell["f1"]
    text = f"{f1:.1f}" if isinstance(f1, float) else "stops"
    if cell["refused_honest"]:
        text += f" ({cell['refused_honest']} honest refused)"
    return text


def print_table(title: str, rows: Mapping[str, Mapping[str, str]], columns: Sequence[str]) -> None:
    """As Markdown; a dash was not measured."""
    names = [name for name in columns if any(name in row for row in rows.values())]
    print(f"\n### {title}\n\n| Lie | {' | '.join(names)} |")
    print("|---" * (len(names) + 1) + "|")
    for poison, row in rows.items():
        print(f"| {poison} | {' | '.join(row.get(name, '-') for name in names)} |")


def print_tables(cells: Mapping[str, Mapping[str, object]]) -> None:
    """Lies x methods with the default guard, then lies x rules for each method."""
    by_method: dict[str, dict[str, dict[str, str]]] = {}
    by_rule: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for key, cell in cells.items():
        method, scene, rule, poison = key.split("|")
        text = cell_text(cell)
        by_rule.setdefault((method, scene), {}).setdefault(poison, {})[rule] = text
        if rule == "mean":
            by_method.setdefault(scene, {}).setdefault(poison, {})[method] = text
    for scene, rows in by_method.items():
        print_table(f"{scene}, default guard", rows, METHODS)
    for (method, scene), rows in by_rule.items():
        print_table(f"{method}, {scene}", rows, RULES)


def docs_tables(cells: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """The tables of docs/robustness.md by the name of their place; a dash was not measured."""
    texts = {tuple(key.split("|")): cell_text(cell) for key, cell in cells.items()}
    lies = list(dict.fromkeys([HONEST, ABSENT, *POISONS, *LABEL_POISONS]))
    tables = {}
    for scene in LIARS:
        columns = [("fedavg", "off"), *[(method, "mean") for method in METHODS]]
        heads = [f"{method} off" if rule == "off" else method for method, rule in columns]
        rows = {}
        for lie in lies:
            rows[lie] = [texts.get((method, scene, rule, lie), "-") for method, rule in columns]
        tables[f"guard {scene}"] = _markdown("Lie", heads, rows)
    rules = RULES[1:]
    for scene in LIARS:
        rows = {}
        for method, lie in itertools.product(METHODS[:2], lies):
            row = [texts.get((method, scene, rule, lie), "-") for rule in rules]
            if set(row[1:]) != {"-"}:
                rows[f"{method}, {lie}"] = row
        tables[f"rules {scene}"] = _markdown("Method, lie", rules, rows)
    rows = {}
    for method, scene in itertools.product(
        METHODS[:2], [name for name in SCENES if "/" not in name]
    ):
        rows[f"{method}, {scene}"] = [
            texts.get((method, scene, rule, HONEST), "-") for rule in rules
        ]
    tables["honest"] = _markdown("Method, division", rules, rows)
    return tables


def _markdown(title: str, heads: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Without columns of which nothing was measured."""
    positions = [i for i in range(len(heads)) if any(row[i] != "-" for row in rows.values())]
    lines = [f"| {title} | " + " | ".join(heads[i] for i in positions) + " |"]
    lines.append("|---" * (len(positions) + 1) + "|")
    for name, row in rows.items():
        lines.append(f"| {name} | " + " | ".join(row[i] for i in positions) + " |")
    return "\n".join(lines)


def write_docs(page: Path, cells: Mapping[str, Mapping[str, object]]) -> None:
    """Replace the tables between `<!-- table NAME -->` and `<!-- end of table -->`."""
    text = page.read_text()
    for name, table in docs_tables(cells).items():
        start, end = f"<!-- table {name} -->", "<!-- end of table -->"
        before, _, rest = text.partition(start)
        if not rest:
            raise SystemExit(f"{page} has no {start}")
        text = before + start + "\n\n" + table + "\n\n" + end + rest.partition(end)[2]
    page.write_text(text)


def select_cells(
    scenes: Sequence[str], methods: Sequence[str], rules: Sequence[str], lies: Sequence[str]
) -> list[str]:
    """The keys of cells; a scene without liars has honest runs only."""
    keys = []
    for scene, rule in itertools.product(scenes, rules):
        poisons = lies if scene in LIARS else [HONEST]
        for poison, method in itertools.product(poisons, methods):
            keys.append("|".join((method, scene, rule, poison)))
    return keys


def plan_study() -> list[str]:
    """The keys of all cells of the study, the most important ones first."""
    lies = [HONEST, ABSENT, *CRUDE, *POISONS, *LABEL_POISONS]
    lies = list(dict.fromkeys(lies))
    detailed_methods = METHODS[:2]
    rules = [rule for rule in RULES if rule not in ("off", "mean")]
    keys = [
        *select_cells(["1/4"], METHODS, ["mean"], lies),
        *select_cells(["3/10"], METHODS, ["mean"], lies),
        *select_cells(["dirichlet-0.1", "dirichlet-0.5", "group"], detailed_methods, RULES, lies),
        *select_cells(["1/4"], detailed_methods, rules, lies),
        *select_cells(["3/10"], detailed_methods, rules, lies),
        *select_cells(["1/4", "3/10"], METHODS, ["off"], lies),
    ]
    return list(dict.fromkeys(keys))


def main() -> None:
    """Run the cells that are missing, then print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods")
    parser.add_argument("--rules")
    parser.add_argument("--scenes")
    parser.add_argument("--poisons")
    parser.add_argument("--seed", type=int, default=0, help="use another FILE for each seed")
    parser.add_argument("--print", action="store_true", help="run nothing")
    parser.add_argument("--docs", type=Path, help="run nothing; write the tables into this page")
    options = parser.parse_args()
    all_lies = [HONEST, ABSENT, *POISONS, *LABEL_POISONS]
    lies = options.poisons.split(",") if options.poisons else all_lies
    unknown_lies = set(lies) - set(all_lies)
    if unknown_lies:
        parser.error(f"unknown poisons: {', '.join(sorted(unknown_lies))}")
    keys = plan_study()
    if options.methods or options.rules or options.scenes or options.poisons:
        keys = select_cells(
            (options.scenes or "1/4,3/10").split(","),
            (options.methods or "fedavg,fedgsca").split(","),
            (options.rules or ",".join(RULES)).split(","),
            lies,
        )
    cells: dict[str, dict[str, object]] = {}
    if options.out.exists():
        cells = json.loads(options.out.read_text())
    for key in keys:
        if key not in cells and not options.print and not options.docs:
            method, scene, rule, poison = key.split("|")
            cells[key] = run_cell(method, scene, rule, poison, options.seed)
            print(key, cells[key], flush=True)
            write_atomic(options.out, json.dumps(cells, indent=1).encode())
    print(f"{sum(key in cells for key in keys)} of {len(keys)} cells are measured")
    if options.docs:
        write_docs(options.docs, cells)
        return
    print_tables(cells)


if __name__ == "__main__":
    main()
