"""FedGSCA with one pass over the images of a round against FedGSCA with two: accuracy and audit.

    python -m benchmarks.one_pass --out DIR [--ham ham10000_small] [--seeds 1 2]

Small CNN at 32 pixels, 4 stratified sites, 20 rounds, with the images of benchmarks.generalisation,
fewer balanced and more long-tailed ones among them. Scores are macro F1 on validation images that
are cut from the training part. Both versions of a run differ in `fedgsca.passes` only. Finished
runs are read from DIR, so the same command continues.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.generalisation import sources
from benchmarks.generalisation.measure import measure_cell
from benchmarks.generalisation.plan import (
    CNN,
    FULL,
    MIXED,
    OURS,
    Cell,
    Dataset,
    Setting,
    default_lr,
    find_datasets,
)
from benchmarks.generalisation.results import CellResult
from benchmarks.generalisation.sources import Recipe
from fedgsca.support.files import write_atomic

DATA = ("built-in", "built-in-small", "built-in-long-tail", "built-in-long-tail-large", "ham10000")
# is it the number of images, or their imbalance?
MORE_RECIPES = {
    "built-in-small": Recipe(train=1200, test=600, limit=360),
    "built-in-long-tail-large": Recipe(train=6400, test=600, difficulty=1.0, long_tail=50),
}
NOISES = (MIXED, "S40")
PASSES = ("two", "one")
PIXELS = 32

# F1, then AUROC, precision in the first tenth and error of the count, means over noisy sites
Scores = Mapping[str, float]


def find_study_data(ham: Path | None) -> list[Dataset]:
    """The data sets of the study, in the order of DATA."""
    sources.RECIPES = {**sources.RECIPES, **MORE_RECIPES}
    datasets = find_datasets("validation", pathmnist=None, ham=ham)
    for name in MORE_RECIPES:
        datasets.append(Dataset(name, sources.source_name("validation", name), True))
    datasets = [replace(item, cnn_pixels=PIXELS) for item in datasets if item.name in DATA]
    return sorted(datasets, key=lambda item: DATA.index(item.name))


def summarise(result: CellResult) -> dict[str, float]:
    """The four scores of a run, and its seconds."""
    sites = [site for site in result.sites if site.auroc is not None]
    errors = [abs(site.estimate - site.wrong) / site.labels for site in sites]
    return {
        "f1": result.f1,
        "auroc": float(np.mean([site.auroc for site in sites])),
        "precision": float(np.mean([site.precision for site in sites])),
        "error": float(np.mean(errors)),
        "seconds": result.seconds,
    }


def measure(cell: Cell, dataset: Dataset, passes: str, out: Path) -> Scores:
    """The scores of a run, from its file if it is finished."""
    path = out / f"{cell.name}-{passes}.json"
    if not path.exists():
        settings = {"fedgsca.passes": passes}
        result = measure_cell(cell, dataset, FULL, out / "scratch", settings)
        write_atomic(path, json.dumps(summarise(result), indent=1).encode())
    return dict(json.loads(path.read_bytes()))


def print_table(rows: Mapping[tuple[str, str], Mapping[str, Sequence[Scores]]]) -> None:
    """Means over the seeds in Markdown, and the differences of single seeds."""
    print("| data | noise | F1, two | one | AUROC, two | one | precision, two | one |", end="")
    print(" error of the count, two | one | F1, one - two, by seed |")
    print("|---" * 11 + "|")
    for (data, noise), scores in rows.items():
        columns = [data, noise]
        for name, digits in (("f1", 1), ("auroc", 3), ("precision", 3), ("error", 3)):
            for passes in PASSES:
                mean = np.mean([row[name] for row in scores[passes]])
                columns.append(f"{mean:.{digits}f}")
        pairs = zip(scores["one"], scores["two"], strict=True)
        columns.append(", ".join(f"{one['f1'] - two['f1']:+.1f}" for one, two in pairs))
        print("| " + " | ".join(columns) + " |", flush=True)


def main() -> None:
    """Run the study and print its table."""
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ham", type=Path, help="folder with labels.csv; else without this data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    datasets = find_study_data(options.ham)
    rows: dict[tuple[str, str], dict[str, list[Scores]]] = {}
    for seed, noise, dataset in product(options.seeds, NOISES, datasets):
        setting = Setting(dataset.name, CNN, noise, "stratified")
        cell = Cell(setting, OURS, default_lr(CNN), seed)
        row = rows.setdefault((dataset.name, noise), {passes: [] for passes in PASSES})
        for passes in PASSES:
            scores = measure(cell, dataset, passes, options.out)
            row[passes].append(scores)
            numbers = ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
            print(f"{cell.name}, {passes}: {numbers}", flush=True)
    print()
    print_table(rows)


if __name__ == "__main__":
    main()
