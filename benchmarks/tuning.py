"""A small search for the values that the paper does not fix, the same effort for every method, on the validation split.

    python -m benchmarks.tuning NAME --data FILE.npz --out DIR [--methods fedavg,fedgsca] [--write FILE.toml]

For each method: five learning rates with its defaults (one or two more where the best lies at the edge), then four settings of
its own at the best of them. A setting's score is the macro F1 on the validation images, mean of the last five rounds, then over
both noises and the search seeds; the test images are not looked at, and the search seeds are none of those that docs/results.md
reports. The best setting is kept for both noises: a hospital does not know its noise. `--write` keeps the winners as TOML;
benchmarks.studies reads that file. Stop at any time; the same command goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import tomli_w

from benchmarks.studies import MIXED, STUDIES, UNIFORM
from fedgsca.config import Tree, build, merge
from fedgsca.engine.rounds import run
from fedgsca.experiment.run_folder import dumps, read_lines
from fedgsca.grid.comparison import parse_methods, parse_seeds
from fedgsca.support.files import write_atomic

# Four settings of its own for each method, beside the defaults: warm-up first, then what its authors tuned.
SITES_SOURCE: Mapping[str, tuple[Tree, ...]] = {
    "fedavg": tuple({"weight_decay": value} for value in (1e-4, 1e-3, 3e-3, 1e-2)),
    "fedprox": tuple({"mu": value} for value in (0.001, 0.1, 0.3, 1.0)),
    "fedrobust": (
        {"feature_unit": 0.03},
        {"feature_unit": 0.3},
        {"matrix_lr": 0.2},
        {"shift_radius": 1.0},
    ),
    "fedcorr": ({"stage1": 0.2}, {"confidence": 0.8}, {"split_guard": 0.0}, {"mixup": 0.2}),
    "fedgp": ({"warmup": 0.1}, {"warmup": 0.35}, {"warmup": 0.5}, {"confidence": 0.6}),
    "fedfixer": ({"warmup": 5}, {"warmup": 20}, {"confidence": 1.0}, {"distance": 5.0}),
    "fednoro": ({"warmup": 5}, {"warmup": 20}, {"strength": 0.5}, {"strength": 0.95}),
    "fedgsca": (
        {"warmup": 10},
        {"warmup": 20},
        {"doubtful": "flag"},
        {"selector": {"memory": 0.0}},
    ),
}


@dataclass(frozen=True)
class Trial:
    """One setting of one method and its score on the validation images."""

    method: str
    setting: Tree
    val_f1: float
    by_noise: Mapping[str, float]


@dataclass(frozen=True)
class Search:
    """What all trials share."""

    tree: Tree
    noises: tuple[str, ...]
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    out: Path

    def _beyond(self, trials: Mapping[float, Trial]) -> float | None:
        best = max(trials, key=lambda rate: trials[rate].val_f1)
        if len(trials) >= len(self.rates) + 2 or len(trials) == 1:
            return None
        return {max(trials): float(f"{3 * best:.1g}"), min(trials): float(f"{best / 3:.1g}")}.get(
            best
        )

    def trial(self, method: str, setting: Tree) -> Trial:
        scores = {
            noise: [self._score(method, setting, noise, seed) for seed in self.seeds]
            for noise in self.noises
        }
        found = {noise: mean(values) for noise, values in scores.items()}
        return Trial(method, setting, mean(found.values()), found)

    def _score(self, method: str, setting: Tree, noise: str, seed: int) -> float:
        config = build(
            merge(
                merge(self.tree, setting),
                {"method": method, "seed": seed, "noise": {"spec": noise}},
            )
        )
        folder = self.out / "trials" / f"{method}-{config.fingerprint()[:16]}"
        run(config, folder)
        lines = [
            line["val_f1"] for line in read_lines(folder / "metrics.jsonl") if "val_f1" in line
        ]
        if not lines:
            raise SystemExit(
                "this data has no validation split, and the test split is not for choosing"
            )
        return mean(lines[-5:])

    def method(self, name: str) -> Iterator[Trial]:
        """First the learning rates, then the method's own settings at the best of them."""
        trials: dict[float, Trial] = {}
        rates = list(self.rates)
        while rates:
            trials[rates[0]] = self.trial(name, {"train": {"lr": rates[0]}})
            yield trials[rates.pop(0)]
            if not rates:  # the best at the edge of the grid: one step of a half decade further
                rates = [rate for rate in (self._beyond(trials),) if rate is not None]
        best = max(trials.values(), key=lambda trial: trial.val_f1)
        for own in SITES_SOURCE.get(name, ()):
            section = "train" if name == "fedavg" else name  # FedAvg has no settings of its own
            yield self.trial(name, merge(best.setting, {section: own}))


def describe(setting: Mapping[str, Any]) -> str:
    """train.lr=0.05 fedgp.warmup=0.5"""

    def flat(tree: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for key, value in tree.items():
            yield from (
                flat(value, f"{prefix}{key}.")
                if isinstance(value, Mapping)
                else [f"{prefix}{key}={value}"]
            )

    return " ".join(flat(setting, ""))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "name", choices=[name for name, study in STUDIES.items() if study.needs_data]
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="MedMNIST-style .npz with a validation split"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--noise", nargs="*", default=[MIXED, UNIFORM])
    parser.add_argument("--seeds", default="100,101")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.001, 0.003, 0.01, 0.03, 0.1])
    parser.add_argument("--write", type=Path, help="keep the winners in this TOML file")
    options = parser.parse_args()
    tree = merge(STUDIES[options.name].tree, {"data": {"source": str(options.data.resolve())}})
    search = Search(
        tree, tuple(options.noise), parse_seeds(options.seeds), tuple(options.rates), options.out
    )
    winners: dict[str, Tree] = {}
    for name in parse_methods(options.methods):
        trials = []
        for trial in search.method(name):
            trials.append(trial)
            noises = "  ".join(f"{noise} {score:.1f}" for noise, score in trial.by_noise.items())
            print(
                f"{name:10} {trial.val_f1:5.1f}  ({noises})  {describe(trial.setting)}", flush=True
            )
        best = max(trials, key=lambda trial: trial.val_f1)
        winners[name] = best.setting
        rows = [
            {"setting": t.setting, "val_f1": t.val_f1, "by_noise": dict(t.by_noise)} for t in trials
        ]
        write_atomic(
            options.out / f"{name}.json",
            dumps({"method": name, "best": best.setting, "trials": rows}),
        )
        print(f"{name:10} best: {describe(best.setting)}", flush=True)
    if options.write:
        write_atomic(options.write, tomli_w.dumps(winners).encode())


if __name__ == "__main__":
    main()
