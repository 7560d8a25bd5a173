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
    """The study's runs: scene, method, rule and lie -> seed -> F1, None for one that stopped."""

    def __init__(self, path: Path) -> None:
        self.values: dict[tuple[str, str, str, str], dict[str, float | None]] = {}
        with path.open(newline="") as file:
            for scene, method, rule, lie, seed, f1 in list(csv.reader(file))[1:]:
                runs = self.values.setdefault((scene, method, rule, lie), {})
                runs[seed] = float(f1) if f1 else None

    def f1(self, scene: str, method: str, rule: str, lie: str = "honest") -> float | None:
        """The mean over seeds; None: not measured, or a run stopped."""
        numbers = list(self.values.get((scene, method, rule, lie), {"": None}).values())
        known = [number for number in numbers if number is not None]
        return fmean(known) if len(known) == len(numbers) else None

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

    def difference(
        self, key: tuple[str, str, str, str], other: tuple[str, str, str, str]
    ) -> float | None:
        """How much more F1 `key` has than `other`: the mean over seeds that both have."""
        runs, other_runs = self.values.get(key, {}), self.values.get(other, {})
        points = []
        for seed, f1 in runs.items():
            other_f1 = other_runs.get(seed)
            if f1 is not None and other_f1 is not None:
                points.append(f1 - other_f1)
        return fmean(points) if points else None

    def changes(self, scene: str, method: str, rule: str) -> dict[str, float]:
        """Of every lie that was measured: points above the liars' absence."""
        result = {}
        for lie in self.names(3, [scene]):
            key, absent = (scene, method, rule, lie), (scene, method, rule, "absent")
            change = self.difference(key, absent)
            if lie not in ("honest", "absent") and change is not None:
                result[lie] = change
        return result


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def worst_table(results: Results) -> str:
    """A line for each method: in both scenes honest, absent, and the worst lie beside absent."""
    rows = []
    for method in results.names(1, _SCENES):
        row = [method]
        for scene in _SCENES:
            changes = results.changes(scene, method, _RULE)
            pair = [results.text(scene, method, _RULE, lie) for lie in ("honest", "absent")]
            row += [", ".join(pair), _describe_worst(changes)]
        rows.append(row)
    heads = ["Method"]
    for scene in _SCENES:
        heads += [f"{scene}: honest, absent", f"worst lie; worse than -{_LIMIT:g}"]
    return _markdown(heads, rows)


def _describe_worst(changes: Mapping[str, float]) -> str:
    if not changes:
        return "-"
    worst = min(changes, key=lambda name: changes[name])
    num_worse = sum(change < -_LIMIT for change in changes.values())
    return f"{changes[worst]:+.1f} ({worst}); {num_worse} of {len(changes)}"


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
        changes = {}
        for method in all_methods:
            keys = [(scene, method, rule, "honest") for rule in (_RULE, _MEAN)]
            change = results.difference(keys[0], keys[1])
            if change is not None:
                changes[method] = change
        numbers = []
        for method in methods:
            pair = [results.text(scene, method, rule) for rule in (_MEAN, _RULE)]
            numbers.append(", ".join(pair))
        if not changes:
            continue
        worst = min(changes, key=lambda name: changes[name])
        text = f"{fmean(changes.values()):+.1f} ({len(changes)} methods)"
        rows.append((scene, *numbers, text, f"{changes[worst]:+.1f} ({worst})"))
    heads = [f"{method}: mean, {_RULE}" for method in methods]
    return _markdown(("Honest sites", *heads, "Change", "Worst"), rows)


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
    num_runs = sum(len(runs) for runs in results.values.values())
    seeds = sorted({seed for runs in results.values.values() for seed in runs})
    text = (
        "# Lying sites: the study\n\n"
        "Written by `python -m benchmarks.robustness`; do not edit. What a scene and a lie is:\n"
        "benchmarks/robustness.py, benchmarks/poisons.py and docs/robustness.md.\n\n"
        f"{datetime.date.today().isoformat()}; {machine}; seeds {', '.join(seeds)}; "
        f"{num_runs} runs. Macro F1, mean over the seeds that were measured.\n"
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
