"""How soon a model is good: time until FedAvg's best F1, and until 95 % of the ceiling.

The ceiling is FedAvg without the wrong labels, the mean of its last rounds. Time is that of
complete rounds from the first one on: warm-up, evidence heads, selection and aggregation included;
evaluation, files and the computation of frozen features left out. It is CPU time where the sites
were trained in one process, because that differs little on a busy machine.

    OUT/efficiency.json, efficiency.csv, efficiency.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any

from fedgsca.config import Tree, merge
from fedgsca.errors import ConfigError
from fedgsca.experiment.run_folder import dumps, read_rounds, read_timing
from fedgsca.grid.comparison import ComparisonPlan, is_clean
from fedgsca.grid.runner import Results, damaged_run, finished_cells, folder_of
from fedgsca.methods.base import load_methods
from fedgsca.metrics import HEADLINE_ROUNDS
from fedgsca.report.comparison_tables import BASELINE
from fedgsca.support.csv_table import render_csv
from fedgsca.support.files import write_atomic
from fedgsca.support.markdown import markdown_table
from fedgsca.support.text import DASH, plural

FILE = "efficiency.json"
CEILING = "ceiling"
SHARE = 0.95
CPU, WALL = "CPU seconds", "seconds"


@dataclass(frozen=True)
class Curve:
    """Macro F1 after every round, and the seconds of all rounds until then."""

    f1: Sequence[float]
    seconds: Sequence[float]
    # what `seconds` counts
    clock: str = CPU

    @property
    def final(self) -> float:
        """The mean of the last rounds."""
        return fmean(self.f1[-HEADLINE_ROUNDS:])

    def reach(self, target: float) -> tuple[int, float] | None:
        """The first round, from 1, whose F1 is at least `target`, and the seconds until its end."""
        for index, score in enumerate(self.f1):
            if score >= target:
                return index + 1, self.seconds[index]
        return None

    def seconds_until(self, target: float) -> float:
        """The seconds until `target` is reached; infinite if it never is."""
        place = self.reach(target)
        return math.inf if place is None else place[1]


# the curves of one seed by method, and that of the ceiling
SeedCurves = Mapping[str, Curve]


@dataclass(frozen=True)
class TargetTimes:
    """When the runs of a method, one per seed, first reach an F1; None: never."""

    rounds: tuple[int | None, ...]
    seconds: tuple[float | None, ...]
    # the median of the ratios to FedAvg's time; None if most runs never arrive, or FedAvg never
    ratio: float | None
    # "1.50", "6.00 s" where FedAvg never arrives, or a dash
    text: str

    @property
    def arrivals(self) -> str:
        """How many of the runs arrive: "1/2"."""
        return f"{sum(value is not None for value in self.seconds)}/{len(self.seconds)}"


@dataclass(frozen=True)
class EfficiencyRow:
    """One method under one condition."""

    method: str
    title: str
    seeds: tuple[int, ...]
    # the mean of the last rounds, over the seeds
    f1: float
    # time of all rounds relative to FedAvg's
    cost: float
    to_best: TargetTimes
    to_share: TargetTimes


@dataclass(frozen=True)
class EfficiencyGroup:
    """All methods under one condition: a noise, or a data set and a noise."""

    title: str
    clock: str
    # seed -> FedAvg's best F1, and 95 % of the ceiling
    best: Mapping[int, float]
    goal: Mapping[int, float]
    rows: tuple[EfficiencyRow, ...]


# ---- arithmetic ----


def ratios_to(values: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Each value over its reference, where the reference is finite."""
    ratios = []
    for value, base in zip(values, reference, strict=True):
        if math.isfinite(base):
            ratios.append(value / base)
    return ratios


def format_ratio(values: Sequence[float], reference: Sequence[float]) -> str:
    """The median of the ratios to FedAvg, or of the seconds where FedAvg never arrives.

    A run that never arrives counts as infinite.
    """
    ratios = ratios_to(values, reference)
    middle = median(ratios or values)
    if not math.isfinite(middle):
        return DASH
    return f"{middle:.2f}" if ratios else f"{middle:.2f} s"


def _target_times(
    curves: Sequence[Curve], references: Sequence[Curve], targets: Sequence[float]
) -> TargetTimes:
    places = [curve.reach(target) for curve, target in zip(curves, targets, strict=True)]
    rounds = tuple(None if place is None else place[0] for place in places)
    seconds = tuple(None if place is None else place[1] for place in places)
    values = [curve.seconds_until(target) for curve, target in zip(curves, targets, strict=True)]
    bases = []
    for reference, target in zip(references, targets, strict=True):
        bases.append(reference.seconds_until(target))
    ratios = ratios_to(values, bases)
    middle = median(ratios) if ratios else math.inf
    ratio = middle if math.isfinite(middle) else None
    return TargetTimes(rounds, seconds, ratio, format_ratio(values, bases))


def summarise_times(
    title: str, runs: Mapping[int, SeedCurves], methods: Sequence[str]
) -> EfficiencyGroup:
    """One condition: seed -> the curves of its runs, FedAvg's and the ceiling's among them.

    A method that has no run with a seed is compared over the others.
    """
    best = {seed: max(curves[BASELINE].f1) for seed, curves in runs.items()}
    goal = {seed: SHARE * curves[CEILING].final for seed, curves in runs.items()}
    titles = {name: method.card.title for name, method in load_methods().items()}
    rows = []
    for method in methods:
        seeds = [seed for seed in runs if method in runs[seed]]
        if not seeds:
            continue
        curves = [runs[seed][method] for seed in seeds]
        references = [runs[seed][BASELINE] for seed in seeds]
        costs = []
        for curve, reference in zip(curves, references, strict=True):
            costs.append(curve.seconds[-1] / reference.seconds[-1])
        row = EfficiencyRow(
            method=method,
            title=titles.get(method, method),
            seeds=tuple(seeds),
            f1=fmean(curve.final for curve in curves),
            cost=median(costs),
            to_best=_target_times(curves, references, [best[seed] for seed in seeds]),
            to_share=_target_times(curves, references, [goal[seed] for seed in seeds]),
        )
        rows.append(row)
    clock = next(iter(runs.values()))[BASELINE].clock
    return EfficiencyGroup(title, clock, best, goal, tuple(rows))


# ---- from the runs of a comparison ----


def read_curve(folder: Path, clock: str) -> Curve:
    """The curve of a finished run. Raises RunFolderError if a round has no score or no time."""
    timing = _read_seconds(folder, clock)
    rounds = read_rounds(folder)
    f1 = []
    seconds = []
    for line in rounds:
        if line.f1 is None or line.round not in timing:
            raise damaged_run(folder, f"{folder} is damaged: a round has no F1 or no time")
        f1.append(line.f1)
        seconds.append(timing[line.round])
    return Curve(f1, list(accumulate(seconds)), clock)


def _read_seconds(folder: Path, clock: str) -> dict[int, float]:
    """Round -> its seconds; of a round that was repeated, the last ones."""
    seconds = {}
    for line in read_timing(folder):
        value = line.cpu if clock == CPU else line.exchange
        if value is not None:
            seconds[line.round] = value
    return seconds


def _choose_clock(runs: Mapping[int, Mapping[str, Path]]) -> str:
    """CPU seconds if all runs have them: not those of several processes or of older versions."""
    for folders in runs.values():
        for folder in folders.values():
            if any(line.cpu is None for line in read_timing(folder)):
                return WALL
    return CPU


def collect_groups(plan: ComparisonPlan, results: Results, out: Path) -> list[EfficiencyGroup]:
    """The conditions of a comparison for which FedAvg and the ceiling are finished."""
    conditions: dict[str, dict[int, dict[str, Path]]] = {}
    clean_conditions = set()
    for cell in plan.cells():
        if cell.name not in results or cell.role == "clean":
            continue
        condition = cell.variant.join(cell.noise)
        seeds = conditions.setdefault(condition, {})
        seeds.setdefault(cell.seed, {})[cell.row] = folder_of(cell, out)
        if is_clean(cell.noise):
            clean_conditions.add(condition)
    groups = []
    for condition, seeds in conditions.items():
        runs = {}
        for seed, folders in seeds.items():
            if condition in clean_conditions and BASELINE in folders:
                # without wrong labels, FedAvg is its own ceiling
                folders[CEILING] = folders[BASELINE]
            if BASELINE in folders and CEILING in folders:
                runs[seed] = folders
        if runs:
            clock = _choose_clock(runs)
            groups.append(_read_group(condition, runs, clock, plan.methods))
    return groups


def _read_group(
    condition: str, runs: Mapping[int, Mapping[str, Path]], clock: str, methods: Sequence[str]
) -> EfficiencyGroup:
    curves = {}
    for seed, folders in runs.items():
        curves[seed] = {row: read_curve(folder, clock) for row, folder in folders.items()}
    return summarise_times(f"noise {condition}", curves, methods)


def write_efficiency(plan: ComparisonPlan, out: Path) -> list[EfficiencyGroup]:
    """Write efficiency.json, .csv and .md of the finished runs of a comparison."""
    groups = collect_groups(plan, finished_cells(plan.cells(), out), out)
    write_atomic(out / FILE, dumps(to_json(groups)))
    write_atomic(out / "efficiency.csv", to_csv(groups).encode())
    write_atomic(out / "efficiency.md", to_markdown(groups).encode())
    return groups


# ---- tables ----

HEADER = (
    "method",
    "F1 at the end",
    "time of a round",
    "time to FedAvg's best",
    "reached",
    "time to 95 % of the ceiling",
    "reached",
)


def to_json(groups: Sequence[EfficiencyGroup]) -> dict[str, Any]:
    """All numbers; None: never reached."""
    return {"share": SHARE, "groups": [asdict(group) for group in groups]}


def table_rows(group: EfficiencyGroup) -> list[list[str]]:
    """The cells under HEADER; times are multiples of FedAvg's, medians over the seeds."""
    rows = []
    for row in group.rows:
        cells = [row.title, f"{row.f1:.1f}", f"{row.cost:.2f}"]
        for times in (row.to_best, row.to_share):
            cells += [times.text, times.arrivals]
        rows.append(cells)
    return rows


def describe(group: EfficiencyGroup) -> str:
    """The heading of a table: the condition and its targets, means over the seeds."""
    return (
        f"{group.title}: FedAvg's best F1 {fmean(group.best.values()):.1f}, 95 % of the ceiling"
        f" {fmean(group.goal.values()):.1f}; {plural(len(group.best), 'seed')}, {group.clock}"
    )


def to_markdown(groups: Sequence[EfficiencyGroup]) -> str:
    """One table per condition."""
    lines = []
    for group in groups:
        lines += [describe(group), ""]
        lines += markdown_table(HEADER, table_rows(group), text_columns=1)
    return "\n".join(lines)


def to_csv(groups: Sequence[EfficiencyGroup]) -> str:
    """One line per condition, method and seed; empty: never reached."""
    header = ["condition", "method", "seed", "clock", "best_round", "best_seconds"]
    lines: list[list[object]] = [[*header, "goal_round", "goal_seconds"]]
    for group in groups:
        for row in group.rows:
            times = zip(
                row.seeds,
                row.to_best.rounds,
                row.to_best.seconds,
                row.to_share.rounds,
                row.to_share.seconds,
                strict=True,
            )
            for seed, *values in times:
                lines.append([group.title, row.method, seed, group.clock, *values])
    return render_csv(lines)


# ---- the plan ----


def timed_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """The methods with FedAvg first, whose times are the unit."""
    return (BASELINE, *(name for name in methods if name != BASELINE))


def timed_tree(tree: Tree) -> Tree:
    """The settings of all runs: every round is scored, one thread unless the user says otherwise.

    Several threads wait for each other in a busy loop, which would count as CPU time.
    """
    # below the user's settings: a section that is no table is reported with all other problems
    tree = merge({"train": {"threads": 1}, "federation": {"eval_every": 1}}, tree)
    federation = tree["federation"]
    eval_every = federation["eval_every"] if isinstance(federation, Mapping) else 1
    if eval_every != 1:
        raise ConfigError(
            "grid.rounds-without-a-score",
            f"the time to an F1 needs the score of every round, got federation.eval_every ="
            f" {eval_every}",
            fix="leave federation.eval_every out",
        )
    return tree
