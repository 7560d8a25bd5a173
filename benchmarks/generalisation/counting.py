"""How well the audit counts wrong labels, on the suite's data sets.

    python -m benchmarks.generalisation.counting --out DIR --seeds 3 4 [--pathmnist F] [--ham D]

With frozen features the evidence heads do not depend on the method. So only the heads are trained,
on the schedule of a run of 60 rounds, which takes a second. Judgements are stored in DIR; a second
call only counts. The images are those of the part "validation".
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.generalisation.plan import (
    BASELINE,
    FROZEN,
    FULL,
    NOISES,
    Cell,
    Dataset,
    Setting,
    cell_config,
    default_lr,
    find_datasets,
)
from benchmarks.generalisation.sources import share_features
from fedgsca.evidence import (
    MIN_USEFUL,
    POWERS,
    Heads,
    Judgement,
    assign_folds,
    best_power,
    explain_parts,
    explained_across_folds,
    head_targets,
    judge,
    own_references,
    sharpen,
    to_halves,
    train_heads,
)
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.labels.wrong_count import WrongShare, estimate_wrong, fit_models
from fedgsca.methods.site import Samples
from fedgsca.rng import stream

# as in a run of 60 rounds: opinions count from the first of these rounds on, are collected in the
# second and every five rounds, until the last
FIRST_JUDGED, FIRST, EVERY, LAST = 3, 8, 5, 38
SMALL_SITE = 150


@dataclass
class HeadSite:
    """A site while the heads are trained."""

    name: str
    features: np.ndarray
    given: np.ndarray
    truth: np.ndarray
    folds: np.ndarray
    # (n, C): sum of opinions since the last refresh, and what the heads learn
    opinion_sum: np.ndarray
    targets: np.ndarray

    def mean_opinion(self) -> np.ndarray:
        total = self.opinion_sum.astype(np.float64)
        return np.asarray(total / total.sum(axis=1, keepdims=True))

    def references(self) -> np.ndarray:
        """(P, C): the site's own mean opinion for each of POWERS."""
        return own_references(self.mean_opinion(), head_targets(self.targets)[1])

    def log_likelihoods(self) -> np.ndarray:
        """(P,)"""
        values = []
        for power, reference in zip(POWERS, self.references(), strict=True):
            opinion = sharpen(self.mean_opinion(), power)
            value, _ = explain_parts(opinion, self.given, to_halves(self.folds), reference)
            values.append(value)
        return np.array(values)

    def refresh(self, power: float) -> Judgement:
        """A new judgement; the heads learn its posterior, if it explains anything."""
        judgement = Judgement(self.mean_opinion(), self.references(), power)
        opinion = sharpen(judgement.probs, power)
        reference = judgement.references[POWERS.index(power)]
        self.targets = np.eye(opinion.shape[1])[self.given]
        if explained_across_folds(opinion, self.given, self.folds, reference) >= MIN_USEFUL:
            self.targets = judgement.transition(self.given).posterior
        self.opinion_sum = np.zeros_like(self.opinion_sum)
        return judgement


def train_all(sites: Sequence[HeadSite], seed: int) -> list[Judgement]:
    """Train the heads at all sites; the last judgement of each site."""
    num_classes = sites[0].targets.shape[1]
    heads = Heads.zeros(sites[0].features.shape[1], num_classes)
    total = sum(len(site.given) for site in sites)
    power = POWERS[0]
    for round in range(LAST + 1):
        weight, bias = np.zeros_like(heads.weight), np.zeros_like(heads.bias)
        log_likelihoods = []
        since = (round - FIRST) % EVERY if round >= FIRST else -1
        if since == 1:
            for site in sites:
                site.refresh(power)
        for site in sites:
            if round >= FIRST_JUDGED:
                site.opinion_sum += judge(heads, site.features, site.folds).astype(np.float32)
            targets, weights = head_targets(site.targets)
            if since == 0:
                log_likelihoods.append(site.log_likelihoods())
            order = stream(seed, site.name, round, "ev").permutation(len(site.given))
            own = train_heads(
                heads, site.features, targets, weights, site.folds, order, num_sites=len(sites)
            )
            weight += own.weight * np.float32(len(site.given) / total)
            bias += own.bias * np.float32(len(site.given) / total)
        heads = Heads(weight, bias)
        if since == 0:
            power = best_power(np.sum(log_likelihoods, axis=0))
    return [site.refresh(power) for site in sites]


def read_contents(samples: Samples) -> list[bytes]:
    """What decides about the fold of every image: its group, or else its features."""
    if samples.groups is not None:
        return [str(group).encode() for group in samples.groups]
    return [np.ascontiguousarray(row).tobytes() for row in np.asarray(samples.inputs)]


Site = TypeVar("Site", bound=HeadSite)


def make_sites(experiment: Experiment, seed: int, kind: type[Site]) -> list[Site]:
    """All sites of an experiment with frozen features, before the heads are trained."""
    num_classes = experiment.table.num_classes
    sites = []
    for name, rows in sorted(experiment.rows.items()):
        samples = experiment.sites[name]
        given = np.asarray(samples.labels)
        sites.append(
            kind(
                name=name,
                features=np.asarray(samples.inputs, dtype=np.float32),
                given=given,
                truth=experiment.table.labels[rows],
                folds=assign_folds(seed, name, read_contents(samples)),
                opinion_sum=np.zeros((len(given), num_classes), np.float32),
                targets=np.eye(num_classes)[given],
            )
        )
    return sites


def collect(dataset: Dataset, noise: str, partition: str, seed: int, file: Path) -> None:
    """Judgements, labels and truth of all sites of a setting."""
    cell = Cell(Setting(dataset.name, FROZEN, noise, partition), BASELINE, default_lr(FROZEN), seed)
    config = cell_config(cell, dataset, FULL)
    share_features(config)
    sites = make_sites(prepare(config), seed, HeadSite)
    arrays = {}
    for i, (site, judgement) in enumerate(zip(sites, train_all(sites, seed), strict=True)):
        arrays[f"{i}.probs"] = judgement.probs
        arrays[f"{i}.references"] = judgement.references
        arrays[f"{i}.power"] = np.array(judgement.power)
        arrays[f"{i}.given"] = site.given
        arrays[f"{i}.truth"] = site.truth
    np.savez(file, **arrays)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Count:
    """The count at one site."""

    data: str
    num_labels: int
    truth: float
    estimate: WrongShare

    @property
    def is_close(self) -> bool:
        """Within five points; of a clean site: below three."""
        return abs(self.estimate.share - self.truth) <= (0.05 if self.truth > 0 else 0.03)

    @property
    def holds(self) -> bool:
        return self.estimate.low <= self.truth + 1e-9 and self.truth <= self.estimate.high + 1e-9


def count_file(data: str, file: Path) -> list[Count]:
    """The counts of all sites of a stored setting."""
    counts = []
    with np.load(file) as arrays:
        for i in range(sum(name.endswith(".given") for name in arrays)):
            given, truth = arrays[f"{i}.given"], arrays[f"{i}.truth"]
            power = float(arrays[f"{i}.power"])
            judgement = Judgement(arrays[f"{i}.probs"], arrays[f"{i}.references"], power)
            estimate = estimate_wrong(fit_models(judgement, given))
            counts.append(Count(data, len(given), float(np.mean(given != truth)), estimate))
    return counts


def describe(name: str, counts: Sequence[Count]) -> str:
    """One row of the table."""
    noisy = [count for count in counts if count.truth > 0]
    clean = [count for count in counts if count.truth == 0]
    cells = [name, f"{len(noisy)}, {len(clean)}"]
    for group in (noisy, clean):
        sure = [count for count in group if count.estimate.can_tell]
        cells.append(f"{_mean([count.is_close for count in group])}")
        cells.append(f"{_mean([count.is_close for count in sure])}")
        cells.append(f"{_mean([count.holds for count in group])}")
    cells.append(_mean([not count.estimate.can_tell for count in counts]))
    cells.append(_mean([count.estimate.high - count.estimate.low for count in counts]))
    return "| " + " | ".join(cells) + " |"


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f}" if values else "–"


HEADER = """| data | noisy, clean sites | within 5 points | where told | interval holds |\
 clean below 3 % | where told | interval holds | cannot tell | width |
|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Collect what is missing, count, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4])
    parser.add_argument("--pathmnist", type=Path)
    parser.add_argument("--ham", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    datasets = find_datasets("validation", pathmnist=args.pathmnist, ham=args.ham)
    counts: list[Count] = []
    print(HEADER)
    for dataset in datasets:
        for noise, partition, seed in product(NOISES, ("stratified", "dirichlet"), args.seeds):
            file = args.out / f"{dataset.name}__{noise}__{partition}__{seed}.npz"
            if not file.exists():
                collect(dataset, noise, partition, seed, file)
            counts += count_file(dataset.name, file)
        own_counts = [count for count in counts if count.data == dataset.name]
        print(describe(dataset.name, own_counts), flush=True)
    small = [count for count in counts if count.num_labels < SMALL_SITE]
    print(describe(f"sites of fewer than {SMALL_SITE} labels", small))
    print(describe("all", counts))


if __name__ == "__main__":
    main()
