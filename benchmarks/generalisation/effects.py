"""What a variant of a constant changes: runs of the simulator, stored and summarised."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.generalisation.measure import score_ranking
from benchmarks.generalisation.plan import (
    FROZEN,
    FULL,
    LEARNING_RATES,
    OURS,
    QUICK,
    Cell,
    Dataset,
    Rate,
    Setting,
    Size,
    cell_config,
    default_lr,
    find_datasets,
    rate_text,
)
from benchmarks.generalisation.simulator import (
    Federation,
    Opinion,
    make_federation,
    run_fedavg,
    run_fedgsca,
    train_evidence,
)
from benchmarks.generalisation.sources import share_features
from benchmarks.generalisation.summary import LOW_RECOVERY, TOLERANCE
from benchmarks.generalisation.variants import DEFAULT, LEARNING_RATE, Variant, format_value
from fedgsca.config import Config
from fedgsca.config.schema import AUTO_RATE
from fedgsca.evidence import suspicion
from fedgsca.lab.report.comparison_rows import recovery
from fedgsca.lab.table import Table
from fedgsca.methods.fedgsca_e import FedGSCAEOptions
from fedgsca.support.files import write_atomic

BASELINES = "baselines"
# what is concluded from the defaults
MIN_RECOVERY = 0.7
MAX_AUROC_CHANGE = 0.01

Run = tuple[Setting, int]


@dataclass(frozen=True)
class RunResult:
    """One run of FedGSCA, and the rankings of its noisy sites."""

    f1: float
    aurocs: Sequence[float]
    precisions: Sequence[float]


@dataclass(frozen=True)
class Baselines:
    """FedAvg by learning rate, and the ceiling."""

    fedavg: Mapping[str, float]
    ceiling: float


def list_runs(options: argparse.Namespace) -> list[tuple[Setting, Dataset, Size, int]]:
    """The chosen settings with frozen features, times the seeds."""
    datasets = find_datasets(
        "validation", pathmnist=options.pathmnist, ham=options.ham, quick=options.quick
    )
    size = QUICK if options.quick else FULL
    if options.rounds is not None:
        size = replace(size, rounds={**size.rounds, FROZEN: options.rounds})
    if options.sites is not None:
        size = replace(size, sites=options.sites)
    runs = []
    noises = options.noises or size.noises
    for seed, partition, noise in product(options.seeds, options.partitions, noises):
        for dataset in datasets:
            runs.append((Setting(dataset.name, FROZEN, noise, partition), dataset, size, seed))
    return runs


# ---- runs ----


def measure_setting(
    setting: Setting,
    dataset: Dataset,
    size: Size,
    seed: int,
    variants: Sequence[Variant],
    out: Path,
) -> None:
    """Run and store what is missing of these variants. They must have the same evidence."""
    files = {variant: _result_file(out, variant.folder, setting, seed) for variant in variants}
    pending_variants = [variant for variant in variants if not files[variant].exists()]
    baseline_file = _result_file(out, BASELINES, setting, seed)
    needs_baselines = DEFAULT in variants and not baseline_file.exists()
    if not pending_variants and not needs_baselines:
        return
    usual = default_lr(setting.model)
    config = cell_config(Cell(setting, OURS, usual, seed), dataset, size)
    share_features(config)
    federation = make_federation(config)
    if needs_baselines:
        _write(baseline_file, measure_baselines(federation, setting))
    if not pending_variants:
        return
    opinions = train_evidence(federation)
    aurocs, precisions = score_audit(federation, list(opinions.values())[-1])
    for variant in pending_variants:
        options = FedGSCAEOptions.model_validate(variant.option_values())
        own_federation = federation
        if variant.name == LEARNING_RATE:
            assert isinstance(variant.value, float)
            own_federation = use_rate(federation, variant.value)
        f1 = run_fedgsca(own_federation, opinions, options)
        _write(files[variant], RunResult(f1, aurocs, precisions))


def use_rate(federation: Federation, lr: Rate) -> Federation:
    """The same federation with another learning rate; its own is the resolved one of "auto"."""
    if lr == AUTO_RATE:
        return federation
    config: Config = federation.config
    train = config.train.model_copy(update={"lr": lr})
    return replace(federation, config=config.model_copy(update={"train": train}))


def measure_baselines(federation: Federation, setting: Setting) -> Baselines:
    """FedAvg with all learning rates, and without wrong labels."""
    by_rate = {}
    for lr in LEARNING_RATES[setting.model]:
        by_rate[rate_text(lr)] = run_fedavg(use_rate(federation, lr))
    ceiling = by_rate[rate_text(default_lr(setting.model))]
    if setting.is_noisy:
        ceiling = run_fedavg(federation, is_ceiling=True)
    return Baselines(by_rate, ceiling)


def score_audit(
    federation: Federation, opinions: Sequence[Opinion]
) -> tuple[list[float], list[float]]:
    """AUROC and precision in the first tenth, of the sites with wrong labels."""
    aurocs, precisions = [], []
    for site, opinion in zip(federation.sites, opinions, strict=True):
        score = score_ranking(suspicion(opinion.posterior, site.given), site.given != site.truth)
        if score.auroc is not None and score.precision is not None:
            aurocs.append(score.auroc)
            precisions.append(score.precision)
    return aurocs, precisions


def _result_file(out: Path, folder: str, setting: Setting, seed: int) -> Path:
    return out / folder / f"{setting.name}_s{seed}.json"


def _write(file: Path, result: RunResult | Baselines) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(asdict(result)).encode())


# ---- the table ----


@dataclass(frozen=True)
class Effect:
    """A row of the table; means over settings, F1 in percent."""

    f1: float
    recovery: float
    low_recoveries: int
    worst_recovery: float
    to_tuned: float
    below_tuned: int
    # the largest loss against FedAvg without noise; NaN if every setting is noisy
    worst_clean: float
    auroc: float
    precision: float

    def failed_conclusions(self, default: Effect) -> list[str]:
        """Conclusions from the default that do not hold."""
        names = []
        if self.recovery <= MIN_RECOVERY:
            names.append("recovery")
        if self.to_tuned <= 0.0:
            names.append("tuned FedAvg")
        if abs(self.auroc - default.auroc) > MAX_AUROC_CHANGE:
            names.append("AUROC")
        return names


def measure_effect(out: Path, runs: Sequence[Run], folder: str) -> Effect | None:
    """The row of a variant; None until all its runs are finished."""
    by_setting: dict[Setting, list[tuple[RunResult, Baselines]]] = {}
    for setting, seed in runs:
        files = [_result_file(out, name, setting, seed) for name in (folder, BASELINES)]
        if not all(file.exists() for file in files):
            return None
        trees = [json.loads(file.read_text()) for file in files]
        pair = (RunResult(**trees[0]), Baselines(**trees[1]))
        by_setting.setdefault(setting, []).append(pair)
    return summarise_effect(by_setting)


def summarise_effect(results: Mapping[Setting, Sequence[tuple[RunResult, Baselines]]]) -> Effect:
    """The row over all settings; recoveries count at most 1, as in the suite's goal.

    FedAvg is tuned on clean labels of the images on which it is measured: an upper bound.
    """
    all_f1, ratios, distances, clean_gaps = [], [], [], []
    aurocs: list[float] = []
    precisions: list[float] = []
    for setting, pairs in results.items():
        f1 = float(np.mean([run.f1 for run, _ in pairs]))
        ceiling = float(np.mean([base.ceiling for _, base in pairs]))
        by_rate = {}
        for lr in pairs[0][1].fedavg:
            by_rate[lr] = float(np.mean([base.fedavg[lr] for _, base in pairs]))
        baseline = by_rate[rate_text(default_lr(setting.model))]
        all_f1.append(f1)
        if not setting.is_noisy:
            clean_gaps.append(f1 - baseline)
            continue
        distances.append(f1 - max(by_rate.values()))
        ratio = recovery(f1, baseline, ceiling)
        if ratio is not None:
            ratios.append(min(ratio, 1.0))
        for run, _ in pairs:
            aurocs += run.aurocs
            precisions += run.precisions
    return Effect(
        f1=float(np.mean(all_f1)),
        recovery=float(np.mean(ratios)) if ratios else np.nan,
        low_recoveries=sum(ratio < LOW_RECOVERY for ratio in ratios),
        worst_recovery=min(ratios, default=np.nan),
        to_tuned=float(np.mean(distances)),
        below_tuned=sum(distance < -TOLERANCE for distance in distances),
        worst_clean=min(clean_gaps, default=np.nan),
        auroc=float(np.mean(aurocs)),
        precision=float(np.mean(precisions)),
    )


def make_table(out: Path, runs: Sequence[Run], variants: Sequence[Variant]) -> Table:
    """A line per variant that is finished."""
    head = ["constant or option", "tried", "F1", "recovery", "below 0.5", "worst"]
    head += ["to tuned FedAvg", "below it", "no noise, worst", "AUROC", "precision"]
    default = measure_effect(out, runs, DEFAULT.folder)
    rows = []
    for variant in variants if default is not None else ():
        effect = measure_effect(out, runs, variant.folder)
        if effect is not None and default is not None:
            rows.append(_effect_cells(variant, effect, default))
    return Table("Half and twice", [*head, "does not hold"], rows, words=(1,))


def _effect_cells(variant: Variant, effect: Effect, default: Effect) -> list[str]:
    names = effect.failed_conclusions(default)
    return [
        variant.name or "(default)",
        format_value(variant.value) if variant.name else "",
        f"{effect.f1:.1f}",
        f"{effect.recovery:.2f}",
        f"{effect.low_recoveries}",
        f"{effect.worst_recovery:.2f}",
        f"{effect.to_tuned:+.1f}",
        f"{effect.below_tuned}",
        "–" if np.isnan(effect.worst_clean) else f"{effect.worst_clean:+.1f}",
        f"{effect.auroc:.3f}",
        f"{effect.precision:.3f}",
        ", ".join(names) or "–",
    ]
