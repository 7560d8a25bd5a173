"""The rows of a comparison: means over seeds, recovery, differences, and what touched a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import correlation, fmean, median, stdev

from fedgsca.federation.final_statistics import read_predictions_file
from fedgsca.federation.records import finite
from fedgsca.lab.records import (
    NO_VARIANT,
    Comparison,
    ComparisonCell,
    ComparisonVariant,
    PairedDifference,
    PrintedScore,
)
from fedgsca.lab.statistic import RunScore, correct, find_winner, measure_difference, score_run
from fedgsca.support.text import join_words

BASELINE = "fedavg"
CEILING = "ceiling"
# fields of ComparisonCell in percent, where more is better
SCORES = ("f1", "recall", "precision", "best_f1")
# fields of ComparisonCell that are averaged over seeds as well
MEASURES = (
    "seconds_per_round",
    "bytes_up",
    "bytes_down",
    "auroc",
    "average_precision",
    "ece",
    "expected_f1",
    "stopped_f1",
    "kappa",
    "flagged_labels",
    "stability",
)
# fields of ComparisonCell of which a row has the median, and how many seeds have one
TIMES = ("seconds_to_best", "seconds_to_goal")
# Points of F1. Where wrong labels cost FedAvg less, a ratio to that cost would be chance.
MIN_GAP = 1.0


@dataclass(frozen=True)
class MeanStd:
    """Mean and sample standard deviation over seeds; None for a single seed."""

    mean: float
    std: float | None = None

    def text(self, digits: int = 1) -> str:
        """For people: 86.4 ± 0.5."""
        mean = f"{self.mean:.{digits}f}"
        return mean if self.std is None else f"{mean} ± {self.std:.{digits}f}"


@dataclass(frozen=True)
class ReachTime:
    """The median of the seconds until a target, over the seeds that reach it."""

    seconds: float | None
    num_reached: int
    num_seeds: int


@dataclass(frozen=True)
class ComparisonRow:
    """One method under one condition: a noise, and a variant where network or settings vary."""

    noise: str
    method: str
    label: str
    seeds: tuple[int, ...]
    # keys of SCORES and MEASURES, as far as they are known
    stats: Mapping[str, MeanStd]
    times: Mapping[str, ReachTime] = field(default_factory=dict)
    recovery: float | None = None
    # better than every other method of this condition
    is_winner: bool = False
    # the ceiling: not ranked, because no method knows which labels are wrong
    is_reference: bool = False
    # the network and the varied settings; `noise` names them, too
    variant: ComparisonVariant = NO_VARIANT
    # to the reference of the comparison
    difference: PairedDifference | None = None
    # what touched this row, each a clause
    notes: tuple[str, ...] = ()
    # class -> recall in the last round, mean over the seeds
    class_recall: Mapping[str, float] = field(default_factory=dict)
    # score -> number of a publication
    printed_scores: Mapping[str, PrintedScore] = field(default_factory=dict)

    @property
    def noise_spec(self) -> str:
        """The noise without the variant."""
        return self.noise.removesuffix(self.variant.join(""))

    @property
    def f1(self) -> MeanStd | None:
        """Macro F1; None if it is not known."""
        return self.stats.get("f1")


def mean_std(values: Sequence[float]) -> MeanStd:
    """Mean and sample standard deviation of at least one value."""
    return MeanStd(fmean(values), stdev(values) if len(values) > 1 else None)


def recovery(f1: float, baseline: float, ceiling: float) -> float | None:
    """(F1 - FedAvg) / (ceiling - FedAvg) of means as they are printed, with one digit.

    None where the ceiling is less than one point above FedAvg: then the ratio would be chance.
    """
    f1, baseline, ceiling = round(f1, 1), round(baseline, 1), round(ceiling, 1)
    gap = round(ceiling - baseline, 1)
    return None if gap < MIN_GAP else (f1 - baseline) / gap


def compare_rows(comparison: Comparison) -> list[ComparisonRow]:
    """Rows in the order of the comparison's conditions and methods; the ceiling ends each."""
    cells = [cell for cell in comparison.cells if cell.method and finite(cell.f1) is not None]
    rows: list[ComparisonRow] = []
    conditions = dict.fromkeys([*comparison.conditions, *(cell.condition for cell in cells)])
    for condition in conditions:
        rows += _condition_rows(
            comparison, condition, [cell for cell in cells if cell.condition == condition]
        )
    return rows


def _condition_rows(
    comparison: Comparison, condition: str, cells: Sequence[ComparisonCell]
) -> list[ComparisonRow]:
    methods = dict.fromkeys([*comparison.methods, *(cell.method for cell in cells)])
    rows = []
    for method in methods:
        own_cells = [cell for cell in cells if cell.method == method]
        if own_cells:
            rows.append(_make_row(comparison, own_cells))
    ceiling = comparison.ceiling.get(condition, {})
    if not ceiling:
        return rows
    stats = {"f1": mean_std(list(ceiling.values()))}
    seeds = tuple(sorted(map(int, ceiling)))
    variant = next((row.variant for row in rows), NO_VARIANT)
    row = ComparisonRow(condition, CEILING, "Ceiling", seeds, stats, variant=variant)
    rows.append(replace(row, is_reference=True))
    return _add_recovery(rows)


def _make_row(comparison: Comparison, cells: Sequence[ComparisonCell]) -> ComparisonRow:
    """The row of a method from its cells under one condition."""
    first = cells[0]
    stats = {}
    for key in (*SCORES, *MEASURES):
        values = _numbers(cells, key)
        if values:
            stats[key] = mean_std(values)
    times = {}
    for key in TIMES:
        values = _numbers(cells, key)
        times[key] = ReachTime(median(values) if values else None, len(values), len(cells))
    differences = {(item.method, item.noise): item for item in comparison.differences or ()}
    publication = comparison.publication
    printed_rows = publication.rows if publication is not None else {}
    return ComparisonRow(
        noise=first.condition,
        variant=first.variant,
        method=first.method,
        label=first.label or first.method,
        seeds=tuple(cell.seed for cell in cells),
        stats=stats,
        times=times,
        difference=differences.get((first.method, first.condition)),
        is_winner=(comparison.winners or {}).get(first.condition) == first.method,
        class_recall=_mean_class_recall(cells),
        notes=_join_notes(cells),
        printed_scores=printed_rows.get(first.method, {}).get(first.noise, {}),
    )


def _numbers(cells: Iterable[ComparisonCell], key: str) -> list[float]:
    values = [finite(getattr(cell, key)) for cell in cells]
    return [value for value in values if value is not None]


def _mean_class_recall(cells: Sequence[ComparisonCell]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for cell in cells:
        for name, recall in (cell.class_recall or {}).items():
            values.setdefault(name, []).append(recall)
    return {name: fmean(recalls) for name, recalls in values.items()}


def _join_notes(cells: Sequence[ComparisonCell]) -> tuple[str, ...]:
    """The notes of all seeds; one that some of the seeds do not have names its seeds."""
    seeds_of: dict[str, list[str]] = {}
    for cell in cells:
        for note in cell.notes:
            seeds_of.setdefault(note, []).append(str(cell.seed))
    notes = []
    for note, seeds in seeds_of.items():
        word = "seed" if len(seeds) == 1 else "seeds"
        suffix = f" ({word} {join_words(seeds)})" if len(seeds) < len(cells) else ""
        notes.append(note + suffix)
    return tuple(notes)


def _add_recovery(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    means = {row.method: row.f1.mean for row in rows if row.f1 is not None}
    if BASELINE not in means:
        return list(rows)
    baseline, ceiling = means[BASELINE], means[CEILING]
    complete = []
    for row in rows:
        if row.method in means and not row.is_reference:
            row = replace(row, recovery=recovery(means[row.method], baseline, ceiling))
        complete.append(row)
    return complete


def common_seeds(cells: Iterable[ComparisonCell]) -> frozenset[int]:
    """The seeds with which every method of these cells has a run, all under one condition."""
    seeds: dict[str, set[int]] = {}
    for cell in cells:
        seeds.setdefault(cell.method, set()).add(cell.seed)
    return frozenset(set.intersection(*seeds.values())) if seeds else frozenset()


def with_differences(folder: Path, comparison: Comparison) -> Comparison:
    """The comparison with the difference of every method to the reference, and the winners."""
    differences: list[PairedDifference] = []
    winners: dict[str, str] = {}
    for condition in dict.fromkeys(cell.condition for cell in comparison.cells):
        runs: dict[str, dict[int, RunScore]] = {}
        for cell in comparison.cells:
            if cell.condition == condition and finite(cell.f1) is not None:
                score = score_run(cell.f1, read_predictions_file(folder / cell.path))
                runs.setdefault(cell.method, {})[cell.seed] = score
        reference = _choose_reference(comparison, list(runs))
        condition_differences = []
        for method, seed_runs in runs.items():
            if method != reference:
                names = {"noise": condition, "method": method, "reference": reference}
                difference = measure_difference(seed_runs, runs[reference], **names)
                if difference is not None:
                    condition_differences.append(difference)
        differences += correct(condition_differences)
        winner = find_winner(runs, condition)
        if winner is not None:
            winners[condition] = winner
    return replace(comparison, differences=tuple(differences), winners=winners or None)


def _choose_reference(comparison: Comparison, methods: Sequence[str]) -> str:
    for name in (comparison.reference, BASELINE):
        if name in methods:
            return str(name)
    return methods[0]


def rank_agreement(rows: Sequence[ComparisonRow]) -> float | None:
    """Spearman's correlation of the order by F1 here and in print; None below three methods."""
    own_means = []
    printed_means = []
    for row in rows:
        if row.f1 is not None and "f1" in row.printed_scores:
            own_means.append(round(row.f1.mean, 1))
            printed_means.append(row.printed_scores["f1"].mean)
    if len(set(own_means)) < 2 or len(set(printed_means)) < 2 or len(own_means) < 3:
        return None
    return correlation(_mean_ranks(own_means), _mean_ranks(printed_means))


def _mean_ranks(values: Sequence[float]) -> list[float]:
    """The rank of every value; equal ones share their mean."""
    ranks = []
    for value in values:
        smaller = sum(rival < value for rival in values)
        ranks.append(smaller + (1 + values.count(value)) / 2)
    return ranks
