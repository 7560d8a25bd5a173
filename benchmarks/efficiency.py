"""Time to accuracy of every method: until FedAvg's best F1, and until 95 % of the ceiling.

    python -m benchmarks.efficiency --out DIR [--model frozen] [--noise S40 ...] [--seeds 1 2]
        [--methods fedavg fedgsca ...] [--ham ham10000_small]

Time is the CPU time of complete rounds, from the first one on: warm-up, evidence heads, selection
and aggregation included; evaluation, files and the computation of frozen features left out. Scores
are macro F1 on validation images that are cut from the training part (benchmarks.generalisation).
The ceiling is FedAvg without the wrong labels, the mean of its last five rounds. Curves are stored
in DIR, so the same command continues.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.generalisation.plan import (
    BASELINE,
    CEILING,
    CNN,
    FROZEN,
    MIXED,
    Cell,
    Dataset,
    Setting,
    Size,
    cell_config,
    default_lr,
    find_datasets,
)
from benchmarks.generalisation.sources import share_features
from benchmarks.speed import Rounds
from fedgsca.methods.base import load_methods
from fedgsca.metrics import HEADLINE_ROUNDS, confusion, scores
from fedgsca.site import load_weights
from fedgsca.support.files import write_atomic
from fedgsca.train import evaluate

DATA = ("built-in", "built-in-long-tail", "ham10000")
ROUNDS = {FROZEN: 40, CNN: 20}
SHARE = 0.95
PIXELS = 32


@dataclass(frozen=True)
class Curve:
    """Macro F1 after every round, and the CPU seconds of all rounds until then."""

    f1: Sequence[float]
    seconds: Sequence[float]

    @property
    def final(self) -> float:
        """The mean of the last rounds."""
        return float(np.mean(self.f1[-HEADLINE_ROUNDS:]))

    def reach(self, target: float) -> tuple[int, float] | None:
        """The first round, from 1, whose F1 is at least `target`, and the seconds until its end."""
        for index, score in enumerate(self.f1):
            if score >= target:
                return index + 1, self.seconds[index]
        return None


def draw_curve(cell: Cell, dataset: Dataset, size: Size) -> Curve:
    """Train a cell round by round."""
    config = cell_config(cell, dataset, size)
    share_features(config)
    f1 = []
    seconds = []
    total = 0.0
    with tempfile.TemporaryDirectory(prefix="efficiency-") as folder:
        rounds = Rounds(config, Path(folder))
        runner = rounds.runner
        test = runner.experiment.test
        assert test is not None  # the suite's sources have test images
        for _ in range(config.train.rounds):
            start = time.process_time()
            rounds.step()
            total += time.process_time() - start
            load_weights(runner.model, rounds.state.weights)
            predictions = evaluate(runner.model, test, runner.device).predictions
            matrix = confusion(test.labels, predictions, test.num_classes)
            f1.append(float(scores(matrix).f1))
            seconds.append(total)
    return Curve(f1, seconds)


def read_curve(cell: Cell, dataset: Dataset, size: Size, out: Path) -> Curve:
    """The curve of a cell, from its file if there is one."""
    path = out / f"{cell.name}.json"
    if not path.exists():
        curve = draw_curve(cell, dataset, size)
        write_atomic(path, json.dumps(asdict(curve)).encode())
        print(f"{cell.name}: F1 {curve.final:.1f}, {curve.seconds[-1]:.1f} s", flush=True)
    return Curve(**json.loads(path.read_bytes()))


def compare_times(curves: Mapping[str, Curve], target: float) -> dict[str, float]:
    """Method -> seconds until `target`; infinite for one that never reaches it."""
    seconds = {}
    for method, curve in curves.items():
        place = curve.reach(target)
        seconds[method] = np.inf if place is None else place[1]
    return seconds


def format_ratio(values: Sequence[float], reference: Sequence[float]) -> str:
    """The median of the ratios to FedAvg, or of the CPU seconds where FedAvg never arrives.

    A run that never arrives counts as infinite.
    """
    ratios = []
    for value, base in zip(values, reference, strict=True):
        if np.isfinite(base):
            ratios.append(value / base)
    middle = median(ratios or values)
    if not np.isfinite(middle):
        return "–"
    return f"{middle:.2f}" if ratios else f"{middle:.2f} s"


def count_arrivals(values: Sequence[float]) -> str:
    return f"{sum(bool(np.isfinite(value)) for value in values)}/{len(values)}"


def print_table(
    groups: Mapping[str, Sequence[Mapping[str, Curve]]], methods: Sequence[str]
) -> None:
    """One table per data set and noise; times are medians over the seeds."""
    titles = {name: method.title for name, method in load_methods().items()}
    for title, runs in groups.items():
        best = [max(run[BASELINE].f1) for run in runs]
        ceilings = [SHARE * run[CEILING].final for run in runs]
        to_best = [compare_times(run, target) for run, target in zip(runs, best, strict=True)]
        to_share = [compare_times(run, target) for run, target in zip(runs, ceilings, strict=True)]
        print(f"\n{title}: FedAvg's best F1 {np.mean(best):.1f}, ", end="")
        print(f"95 % of the ceiling {np.mean(ceilings):.1f}; {len(runs)} seeds\n")
        print(
            "| method | F1 at the end | time of a round | time to FedAvg's best | reached |", end=""
        )
        print(" time to 95 % of the ceiling | reached |")
        print("|---" * 7 + "|")
        for method in methods:
            final = np.mean([run[method].final for run in runs])
            cost = [run[method].seconds[-1] / run[BASELINE].seconds[-1] for run in runs]
            columns = [titles[method], f"{final:.1f}", f"{median(cost):.2f}"]
            for times in (to_best, to_share):
                values = [row[method] for row in times]
                columns.append(format_ratio(values, [row[BASELINE] for row in times]))
                columns.append(count_arrivals(values))
            print("| " + " | ".join(columns) + " |", flush=True)


def main() -> None:
    """Train what is missing and print the tables; times are shares of FedAvg's."""
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=(FROZEN, CNN), default=FROZEN)
    parser.add_argument("--noise", nargs="+", default=[MIXED, "S40"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--methods", nargs="+", default=list(load_methods()))
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--ham", type=Path, help="folder with labels.csv; else without this data")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    methods = [BASELINE, *(name for name in options.methods if name != BASELINE)]
    datasets = find_datasets("validation", pathmnist=None, ham=options.ham)
    datasets = [replace(item, cnn_pixels=PIXELS) for item in datasets if item.name in options.data]
    size = Size(rounds=ROUNDS)
    groups: dict[str, list[dict[str, Curve]]] = {}
    for dataset, noise, seed in product(datasets, options.noise, options.seeds):
        setting = Setting(dataset.name, options.model, noise, "stratified")
        curves = {}
        for method in (CEILING, *methods):
            cell = Cell(setting, method, default_lr(options.model), seed)
            curves[method] = read_curve(cell, dataset, size, options.out)
        groups.setdefault(f"{dataset.name}, {noise}", []).append(curves)
    print_table(groups, methods)


if __name__ == "__main__":
    main()
