"""Time to accuracy of every method: until FedAvg's best F1, and until 95 % of the ceiling.

    python -m benchmarks.efficiency --out DIR [--model frozen] [--noise S40 ...] [--seeds 1 2]
        [--methods fedavg fedgsca ...] [--ham ham10000_small]

The same as `fedgsca efficiency --noise ...` for the data sets of the suite, without run folders:
scores are macro F1 on validation images that are cut from the training part
(benchmarks.generalisation), time and targets are those of fedgsca.grid.time_to_accuracy. Curves
are stored in DIR, so the same command continues.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from benchmarks.generalisation.plan import (
    BASELINE,
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
from fedgsca.grid.time_to_accuracy import CEILING, Curve, summarise_times, to_csv, to_markdown
from fedgsca.methods.base import load_methods
from fedgsca.metrics import confusion, scores
from fedgsca.site import load_weights
from fedgsca.support.files import write_atomic
from fedgsca.train import evaluate

DATA = ("built-in", "built-in-long-tail", "ham10000")
ROUNDS = {FROZEN: 40, CNN: 20}
PIXELS = 32


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
    groups: dict[str, dict[int, dict[str, Curve]]] = {}
    for dataset, noise, seed in product(datasets, options.noise, options.seeds):
        setting = Setting(dataset.name, options.model, noise, "stratified")
        curves = {}
        for method in (CEILING, *methods):
            cell = Cell(setting, method, default_lr(options.model), seed)
            curves[method] = read_curve(cell, dataset, size, options.out)
        groups.setdefault(f"{dataset.name}, {noise}", {})[seed] = curves
    summaries = [summarise_times(title, runs, methods) for title, runs in groups.items()]
    write_atomic(options.out / "efficiency.csv", to_csv(summaries).encode())
    print(to_markdown(summaries))


if __name__ == "__main__":
    main()
