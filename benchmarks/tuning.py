"""A small search for the values that the paper does not fix, with the same effort for every method.

    python -m benchmarks.tuning NAME --data FILE.npz --out DIR [--methods fedavg,fedgsca] \
        [--write FILE.toml]

For each method: five learning rates with its defaults (one or two more if the best is at the edge),
then four settings of its own at the best rate. A setting's score is the macro F1 on the validation
images, mean of the last five rounds, then over both noises and the search seeds. The test images
are not used, and the search seeds are not those that docs/results.md reports. The best setting is
the same for both noises: a hospital does not know its noise. `--write` stores the winners as TOML
for benchmarks.studies. An interrupted search is resumed by the same command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import tomli_w

from benchmarks.studies import MIXED, STUDIES, UNIFORM
from fedgsca.config import Tree, build, flatten, merge
from fedgsca.engine.rounds import run
from fedgsca.experiment.run_folder import dumps, read_rounds
from fedgsca.grid.comparison import parse_methods, parse_seeds
from fedgsca.support.files import write_atomic

# Four settings of its own for each method, beside the defaults: warm-up first, then what its
# authors tuned. A method that is not named here is tuned by its learning rate only.
OWN_SETTINGS: Mapping[str, tuple[Tree, ...]] = {
    "fedavg": (
        {"weight_decay": 1e-4},
        {"weight_decay": 1e-3},
        {"weight_decay": 3e-3},
        {"weight_decay": 1e-2},
    ),
    "fedprox": ({"mu": 0.001}, {"mu": 0.1}, {"mu": 0.3}, {"mu": 1.0}),
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
    "feddiv": ({"warmup": 10}, {"loss_kind": "ce"}, {"mixup": 0.0}, {"relabel_level": 0.0}),
    "fedelc": ({"warmup": 5}, {"warmup": 20}, {"given_weight": 0.2}, {"label_rate": 300.0}),
    "fedlsr": (
        {"entropy_weight": 0.0},
        {"entropy_weight": 0.6},
        {"feature_dropout": 0.5},
        {"gamma": 1.0},
    ),
    "fedrn": ({"warmup": 0.1}, {"warmup": 0.4}, {"neighbours": 1}, {"alpha": 1.0}),
    "maskedoptim": ({"warmup": 5}, {"warmup": 20}, {"keep": 0.6}, {"median": "none"}),
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

    def trials(self, method: str) -> Iterator[Trial]:
        """First the learning rates, then the method's own settings at the best of them."""
        by_rate: dict[float, Trial] = {}
        rates = list(self.rates)
        while rates:
            rate = rates.pop(0)
            by_rate[rate] = self.run_trial(method, {"train": {"lr": rate}})
            yield by_rate[rate]
            if not rates:
                rates = self._further_rates(by_rate)
        best = max(by_rate.values(), key=lambda trial: trial.val_f1)
        section = "train" if method == "fedavg" else method  # FedAvg has no settings of its own
        for setting in OWN_SETTINGS.get(method, ()):
            yield self.run_trial(method, merge(best.setting, {section: setting}))

    def _further_rates(self, by_rate: Mapping[float, Trial]) -> list[float]:
        """Half a decade beyond the grid if the best rate is at its edge; at most twice."""
        if len(by_rate) >= len(self.rates) + 2 or len(by_rate) == 1:
            return []
        best = max(by_rate, key=lambda rate: by_rate[rate].val_f1)
        if best == max(by_rate):
            return [float(f"{3 * best:.1g}")]
        if best == min(by_rate):
            return [float(f"{best / 3:.1g}")]
        return []

    def run_trial(self, method: str, setting: Tree) -> Trial:
        """Run or read one setting under all noises and seeds."""
        by_noise = {}
        for noise in self.noises:
            scores = [self._score(method, setting, noise, seed) for seed in self.seeds]
            by_noise[noise] = mean(scores)
        return Trial(method, setting, mean(by_noise.values()), by_noise)

    def _score(self, method: str, setting: Tree, noise: str, seed: int) -> float:
        own: Tree = {"method": method, "seed": seed, "noise": {"spec": noise}}
        config = build(merge(merge(self.tree, setting), own))
        folder = self.out / "trials" / f"{method}-{config.fingerprint()[:16]}"
        run(config, folder)
        scores = [line.val_f1 for line in read_rounds(folder) if line.val_f1 is not None]
        if not scores:
            raise SystemExit(
                "this data has no validation split, and the test split is not for choosing"
            )
        return mean(scores[-5:])


def describe(setting: Tree) -> str:
    """train.lr=0.05 fedgp.warmup=0.5"""
    return " ".join(f"{key}={value}" for key, value in flatten(setting).items())


def tune(search: Search, method: str) -> Tree:
    """Run all trials of a method, print and store them; returns the best setting."""
    trials = []
    for trial in search.trials(method):
        trials.append(trial)
        noises = "  ".join(f"{noise} {score:.1f}" for noise, score in trial.by_noise.items())
        line = f"{method:10} {trial.val_f1:5.1f}  ({noises})  {describe(trial.setting)}"
        print(line, flush=True)
    best = max(trials, key=lambda trial: trial.val_f1)
    rows = []
    for trial in trials:
        by_noise = dict(trial.by_noise)
        rows.append({"setting": trial.setting, "val_f1": trial.val_f1, "by_noise": by_noise})
    content = {"method": method, "best": best.setting, "trials": rows}
    write_atomic(search.out / f"{method}.json", dumps(content))
    print(f"{method:10} best: {describe(best.setting)}", flush=True)
    return best.setting


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [name for name, study in STUDIES.items() if study.needs_data]
    parser.add_argument("name", choices=names)
    parser.add_argument(
        "--data", type=Path, required=True, help="MedMNIST-style .npz with a validation split"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--noise", nargs="*", default=[MIXED, UNIFORM])
    parser.add_argument("--seeds", default="100,101")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.001, 0.003, 0.01, 0.03, 0.1])
    parser.add_argument("--write", type=Path, help="store the winners in this TOML file")
    options = parser.parse_args()
    search = Search(
        tree=merge(STUDIES[options.name].tree, {"data": {"source": str(options.data.resolve())}}),
        noises=tuple(options.noise),
        seeds=parse_seeds(options.seeds),
        rates=tuple(options.rates),
        out=options.out,
    )
    winners = {method: tune(search, method) for method in parse_methods(options.methods)}
    if options.write:
        write_atomic(options.write, tomli_w.dumps(winners).encode())


if __name__ == "__main__":
    main()
