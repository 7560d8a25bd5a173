"""The studies behind docs/results.md, each a comparison with fixed settings.

    python -m benchmarks.studies NAME --out DIR [--data FILE] [--noise SPEC ...] [--seeds 0,1,2]

    demo             the demo's recipe on the built-in images, with ceiling and clean labels
    pathmnist-frozen all methods on a MedMNIST-style file, frozen EfficientNet-Lite0 features
    pathmnist-cnn    all methods, small CNN from scratch, until FedAvg memorises the noise
    pathmnist-small  the same on 1,000 training images and fewer rounds: an hour instead of a day
    pathmnist-short  FedAvg and FedGSCA with one local epoch, where FedAvg does not memorise
    synthetic-cnn    FedAvg with the small CNN on clean and on noisy built-in images

`--tuned FILE` takes the settings that benchmarks.tuning chose for each method. An interrupted study
is resumed by the same command. Tables: compare.md and report.html in DIR.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

from fedgsca.cli.compare import run_comparison
from fedgsca.config import Tree, merge
from fedgsca.errors import FedgscaError
from fedgsca.grid.comparison import ComparisonPlan, parse_methods, parse_seeds, read_tuned
from fedgsca.grid.demo_plan import RECIPE

MIXED = "0-S40-P20-C20"
UNIFORM = "S40"


@dataclass(frozen=True)
class Study:
    """A comparison whose settings are fixed."""

    methods: str
    noises: tuple[str, ...]
    tree: Tree = field(default_factory=dict)
    ceiling: bool = True
    clean: bool = False
    needs_data: bool = True


CNN: Tree = {"model": {"name": "cnn"}, "train": {"threads": 1, "augment": "none"}}
# The first stage of every method lasts 4 of the 12 rounds: defaults for 100 rounds (10 for FedFixer
# and FedNoRo, 5 for FedGSCA) would fill them.
FIRST_STAGE: Tree = {
    "fedfixer": {"warmup": 4},
    "fednoro": {"warmup": 4},
    "fedgsca": {"warmup": 4},
    "feddiv": {"warmup": 4, "relabel_from": 2},
    "fedelc": {"warmup": 4},
    "maskedoptim": {"warmup": 4},
    "fedrn": {"warmup": 1 / 3},
    "fedgp": {"warmup": 1 / 3},
    "fedcorr": {"stage1": 1 / 3, "stage2": 1 / 3},
}
SMALL = merge(CNN, {"data": {"train": 1000}, **FIRST_STAGE})
SYNTHETIC_CNN: Tree = {
    "data": {"train": 1200, "test": 600},
    "train": {"rounds": 15, "epochs": 4, "lr": 0.03},
}
STUDIES = {
    "demo": Study("fedavg,fedgsca", (MIXED,), merge({}, RECIPE), clean=True, needs_data=False),
    "pathmnist-frozen": Study(
        "all",
        (MIXED, UNIFORM),
        {"model": {"frozen": True}, "train": {"rounds": 60, "threads": 1}},
    ),
    "pathmnist-cnn": Study(
        "all",
        (MIXED, UNIFORM),
        merge(CNN, {"train": {"rounds": 20, "epochs": 5, "lr": 0.03}}),
    ),
    "pathmnist-small": Study(
        "all",
        (MIXED, UNIFORM),
        merge(SMALL, {"train": {"rounds": 12, "epochs": 4, "lr": 0.03}}),
    ),
    "pathmnist-short": Study(
        "fedavg,fedgsca",
        (MIXED, UNIFORM),
        merge(CNN, {"train": {"rounds": 40}}),
        ceiling=False,
    ),
    "synthetic-cnn": Study(
        "fedavg", (MIXED,), merge(CNN, SYNTHETIC_CNN), clean=True, needs_data=False
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=list(STUDIES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="MedMNIST-style .npz")
    parser.add_argument("--noise", nargs="*", help="instead of the study's own")
    parser.add_argument("--methods", help="instead of the study's own")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tuned", type=Path, help="TOML with settings for each method")
    options = parser.parse_args()
    study = STUDIES[options.name]
    if study.needs_data and options.data is None:
        parser.error(f"{options.name} needs --data FILE.npz")
    tree = study.tree
    if options.data:
        tree = merge(tree, {"data": {"source": str(options.data.resolve())}})
    plan = ComparisonPlan(
        methods=parse_methods(options.methods or study.methods),
        noises=tuple(options.noise or study.noises),
        seeds=parse_seeds(options.seeds),
        tree=tree,
        ceiling=study.ceiling,
        clean=study.clean,
        title=options.name,
        method_settings=read_tuned(options.tuned) if options.tuned else {},
    )
    try:
        run_comparison(plan, options.out, jobs=1, quiet=False, as_json=False)
    except FedgscaError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
