"""The pages of the study of lying sites: its own, and the tables of docs/robustness.md."""

from __future__ import annotations

import csv
import datetime
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedgsca.support.files import write_atomic

_MEAN, _RULE = "mean", "mixing"
_SCENES = ("1/4", "3/10")
_MANY = ("20/100", "200/1000")
_LIMIT = 2.0  # points below the liars' absence
_START, _END = "<!-- table {} -->", "<!-- end of table -->"


class Results:
    """Means over seeds of the study's runs."""

    def __init__(self, path: Path) -> None:
        self.values: dict[tuple[str, str, str, str], list[float | None]] = {}
        self.seeds: list[str] = []
        with path.open(newline="") as file:
            for row in list(csv.reader(file))[1:]:
                scene, method, rule, lie, seed, f1 = row
                numbers = self.values.setdefault((scene, method, rule, lie), [])
                numbers.append(float(f1) if f1 else None)
                if seed not in self.seeds:
                    self.seeds.append(seed)

    def f1(self, scene: str, method: str, rule: str, lie: str = "honest") -> float | None:
        """None: not measured, or a run stopped."""
        numbers = self.values.get((scene, method, rule, lie), [None])
        known = [number for number in numbers if number is not None]
        return fmean(known) if known and len(known) == len(numbers) else None

    def text(self, scene: str, method: str, rule: str, lie: str = "honest") -> str:
        """The mean, "stops" if a run did, a dash if there was none."""
        value = self.f1(scene, method, rule, lie)
        if value is not None:
            return f"{value:.1f}"
        return "stops" if (scene, method, rule, lie) in self.values else "-"

    def names(self, part: int, scenes: Iterable[str] | None = None) -> list[str]:
        """The methods (1), rules (2) or lies (3) of these scenes, or the scenes (0), in order."""
        wanted = None if scenes is None else set(scenes)
        keys = [key for key in self.values if wanted is None or key[0] in wanted]
        return list(dict.fromkeys(key[part] for key in keys))

    def losses(self, scene: str, method: str, rule: str) -> dict[str, float]:
        """Points below the liars' absence, for every lie that was measured."""
        absent = self.f1(scene, method, rule, "absent")
        result = {}
        for lie in self.names(3, [scene]):
            value = self.f1(scene, method, rule, lie)
            if lie not in ("honest", "absent") and value is not None and absent is not None:
                result[lie] = absent - value
        return result


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def worst_table(results: Results) -> str:
    """A line for each method and scene: honest, absent, the worst lie."""
    rows = []
    for scene in _SCENES:
        for method in results.names(1, [scene]):
            losses = results.losses(scene, method, _RULE)
            if not losses:
                continue
            lie = max(losses, key=lambda name: losses[name])
            num_worse = sum(loss > _LIMIT for loss in losses.values())
            rows.append(
                (
                    scene,
                    method,
                    results.text(scene, method, _RULE),
                    results.text(scene, method, _RULE, "absent"),
                    f"{results.text(scene, method, _RULE, lie)} ({lie})",
                    f"{-losses[lie]:+.1f}",
                    f"{num_worse} of {len(losses)}",
                )
            )
    heads = ("Scene", "Method", "Honest", "Absent", "Worst lie", "Beside absent")
    return _markdown((*heads, f"Lies that cost more than {_LIMIT:g}"), rows)


def lie_table(results: Results, scene: str) -> str:
    """Every lie: FedAvg without a rule, then the methods that were measured with all lies."""
    lies = results.names(3, [scene])
    methods = []
    for method in results.names(1, [scene]):
        if all((scene, method, _RULE, lie) in results.values for lie in lies):
            methods.append(method)
    rows = []
    for lie in lies:
        numbers = [results.text(scene, method, _RULE, lie) for method in methods]
        rows.append((lie, results.text(scene, "fedavg", _MEAN, lie), *numbers))
    heads = ("Lie", "fedavg, mean", *[f"{method}, {_RULE}" for method in methods])
    return _markdown(heads, rows)


def rule_table(results: Results, scene: str) -> str:
    """Every lie for FedAvg under every rule."""
    rules = results.names(2, [scene])
    rows = []
    for lie in results.names(3, [scene]):
        rows.append((lie, *[results.text(scene, "fedavg", rule, lie) for rule in rules]))
    return _markdown(("Lie", *rules), rows)


def honest_table(results: Results) -> str:
    """What the rule costs honest sites: three methods, then all."""
    scenes = [scene for scene in results.names(0) if scene not in (*_SCENES, *_MANY)]
    all_methods = results.names(1, scenes)
    methods = [name for name in all_methods if name in ("fedavg", "fedgsca", "fedgsca-e")]
    rows = []
    for scene in scenes:
        costs = {}
        for method in all_methods:
            mean, mixed = results.f1(scene, method, _MEAN), results.f1(scene, method, _RULE)
            if mean is not None and mixed is not None:
                costs[method] = mean - mixed
        numbers = []
        for method in methods:
            pair = [results.text(scene, method, rule) for rule in (_MEAN, _RULE)]
            numbers.append(", ".join(pair))
        if not costs:
            continue
        worst = max(costs, key=lambda name: costs[name])
        change = f"{-fmean(costs.values()):+.1f}; worst {-costs[worst]:+.1f} ({worst})"
        rows.append((scene, *numbers, change))
    heads = [f"{method}: mean, {_RULE}" for method in methods]
    return _markdown(("Honest sites", *heads, f"All {len(all_methods)} methods"), rows)


def rival_table(results: Results) -> str:
    """Honest sites under every rule, for FedAvg and the selecting methods."""
    scenes = [scene for scene in results.names(0) if scene not in (*_SCENES, *_MANY)]
    rules = results.names(2)
    rows = []
    for scene in scenes:
        for method in ("fedavg", "fedgsca", "fedgsca-e"):
            numbers = [results.text(scene, method, rule) for rule in rules]
            if any(number != "-" for number in numbers[2:]):
                rows.append((scene, method, *numbers))
    return _markdown(("Honest sites", "Method", *rules), rows)


def many_table(results: Results) -> str:
    """A hundred and a thousand sites."""
    rows = []
    for scene in _MANY:
        for method in results.names(1, [scene]):
            for lie in results.names(3, [scene]):
                pair = [results.text(scene, method, rule, lie) for rule in (_MEAN, _RULE)]
                rows.append((scene, method, lie, *pair))
    return _markdown(("Liars of sites", "Method", "Lie", _MEAN, _RULE), rows)


TABLES: Mapping[str, Callable[[Results], str]] = {
    "worst lies": worst_table,
    "honest sites": honest_table,
    "lies 1/4": lambda results: lie_table(results, "1/4"),
    "lies 3/10": lambda results: lie_table(results, "3/10"),
    "many sites": many_table,
    "rules 1/4": lambda results: rule_table(results, "1/4"),
    "rules 3/10": lambda results: rule_table(results, "3/10"),
    "rules, honest sites": rival_table,
}


def write_pages(folder: Path, page: Path) -> None:
    """The study's page in the folder, and the tables that `page` has a place for."""
    results = Results(folder / "robustness.csv")
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    num_runs = sum(len(numbers) for numbers in results.values.values())
    text = (
        "# Lying sites: the study\n\n"
        "Written by `python -m benchmarks.robustness`; do not edit. What a scene and a lie is:\n"
        "benchmarks/robustness.py, benchmarks/poisons.py and docs/robustness.md.\n\n"
        f"{datetime.date.today().isoformat()}; {machine}; seeds {', '.join(results.seeds)}; "
        f"{num_runs} runs. Macro F1, mean over the seeds.\n"
    )
    for name, make in TABLES.items():
        text += f"\n## {name[0].upper()}{name[1:]}\n\n{make(results)}\n"
    write_atomic(folder / "robustness.md", text.encode())
    text = page.read_text()
    for name, make in TABLES.items():
        before, start, rest = text.partition(_START.format(name))
        if start:
            table = make(results)
            text = f"{before}{start}\n\n{table}\n\n{_END}{rest.partition(_END)[2]}"
    write_atomic(page, text.encode())
