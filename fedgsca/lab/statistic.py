"""Is A better than B? One answer for tables, pages and benchmarks.

The difference is that of the printed means: macro F1 of the last five rounds, averaged over the
seeds that both have. Its 95 % interval adds two errors, by 1,000 draws of each:

    images  a paired bootstrap: test images (or whole groups such as patients) are drawn with
            replacement, the same ones for A and B and for every seed, so that what they share
            cancels; how a score depends on them is read from the predictions of the last model
    seeds   s / sqrt(k) times a draw from Student's t with k - 1 degrees of freedom, s the standard
            deviation of the differences of k seeds

The t matters: few seeds say little about their own spread. Where two methods are equally good and
trainings vary more than images, drawing seeds with replacement claims a win in 33 % of comparisons
with two seeds and 17 % with three; this claims one in 4.5 and 4.2 %. With one seed the interval is
over images only: the sentence says so.

The share of draws at or beyond zero is the probability that a claimed win is false. p is twice that
share, corrected for the number of rows that are compared with the same reference (Holm).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from fedgsca.federation.final_statistics import FinalPredictions
from fedgsca.federation.score_intervals import (
    DRAWS,
    MIN_UNITS,
    average_macro,
    draw_weights,
    number_units,
    quantile_interval,
    rate_matrices,
)
from fedgsca.lab.records import PairedDifference
from fedgsca.rng import stream
from fedgsca.support.text import plural, signed


@dataclass(frozen=True)
class RunScore:
    """One run: its printed macro F1, and how it varies with the test images."""

    f1: float
    # (DRAWS,) macro F1 of the last model in every draw minus that of all images; None: not known
    deviations: np.ndarray | None = None
    images: int | None = None


# seed -> run
SeedRuns = Mapping[int, RunScore]


def score_run(f1: float, predictions: FinalPredictions | None) -> RunScore:
    """A run with the printed F1; without predictions, or with too few, there is no interval."""
    if predictions is None:
        return RunScore(f1)
    values = draw_f1(predictions)
    deviations = values[1:] - values[0]
    if not np.isfinite(deviations).any():
        return RunScore(f1)
    return RunScore(f1, deviations, len(predictions.labels))


def draw_f1(predictions: FinalPredictions) -> np.ndarray:
    """(1 + DRAWS,) macro F1 in percent: of all images, then of every draw.

    Too few images for an interval: only the first number is finite.
    """
    labels, probs = predictions.labels, predictions.probs
    n, num_classes = probs.shape
    cells = np.zeros((n, num_classes**2))
    cells[np.arange(n), labels * num_classes + probs.argmax(axis=1)] = 1.0
    units = number_units(n, predictions.groups)
    absent = np.bincount(labels, minlength=num_classes) == 0
    values = [_macro_f1(np.ones((1, n)) @ cells, absent)]
    if units.max() + 1 < MIN_UNITS:
        return np.concatenate([*values, np.full(DRAWS, np.nan)])
    for weights in draw_weights(units, DRAWS, address=_digest(predictions)):
        values.append(_macro_f1(weights @ cells, absent))
    return np.concatenate(values)


def _macro_f1(counts: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """(d,) from the cells (d, C * C) of confusion matrices."""
    matrices = counts.reshape(len(counts), len(absent), len(absent))
    f1, _, _, _ = rate_matrices(matrices)
    return average_macro(f1, matrices.sum(axis=2), absent)


def _digest(predictions: FinalPredictions) -> str:
    """The same test images get the same draws, others independent ones."""
    names = [predictions.ids] if predictions.groups is None else [predictions.groups]
    text = "\0".join(str(name) for name in np.concatenate([predictions.ids, *names]))
    return hashlib.sha256(text.encode()).hexdigest()


def measure_difference(
    runs: SeedRuns, reference_runs: SeedRuns, *, noise: str, method: str, reference: str
) -> PairedDifference | None:
    """A method minus its reference, before the correction; None without a common seed."""
    seeds = sorted(seed for seed in runs if seed in reference_runs)
    if not seeds:
        return None
    pairs = [(runs[seed], reference_runs[seed]) for seed in seeds]
    means = [fmean(run.f1 for run, _ in pairs), fmean(rival.f1 for _, rival in pairs)]
    points = round(round(means[0], 1) - round(means[1], 1), 1)  # as a reader subtracts them
    result = PairedDifference(noise, method, reference, len(seeds), None, points)
    draws = []
    for run, rival in pairs:
        if run.deviations is None or rival.deviations is None:
            return result
        draws.append(run.f1 - rival.f1 + run.deviations - rival.deviations)
    values = draw_means(np.stack(draws))
    bounds = quantile_interval(values)
    assert bounds is not None  # the deviations are finite
    p = two_sided_p(values)
    measure = replace(result, images=pairs[0][0].images, low=bounds[0], high=bounds[1], p=p)
    return replace(measure, reversal=p / 2)


def draw_means(draws: np.ndarray) -> np.ndarray:
    """(d,): the mean difference with both errors, from image draws (k, d) of k seeds."""
    num_seeds, num_draws = draws.shape
    means = draws.mean(axis=0)
    if num_seeds == 1:
        return np.asarray(means)
    spread = draws.mean(axis=1).std(ddof=1) / np.sqrt(num_seeds)
    rng = stream(0, "t of seeds", num_seeds)
    return np.asarray(means + spread * rng.standard_t(num_seeds - 1, size=num_draws))


def two_sided_p(values: np.ndarray) -> float:
    """Twice the smaller share of draws (d,) at or beyond zero; never 0, because draws are few."""
    values = values[np.isfinite(values)]
    smaller = min(int(np.sum(values <= 0)), int(np.sum(values >= 0)))
    return min(1.0, 2.0 * (smaller + 1) / (len(values) + 1))


def correct(differences: Sequence[PairedDifference]) -> list[PairedDifference]:
    """The rows of one table with p corrected for their number."""
    corrected_values = holm([difference.p for difference in differences])
    return [replace(item, p=p) for item, p in zip(differences, corrected_values, strict=True)]


def find_winner(runs: Mapping[str, SeedRuns], condition: str) -> str | None:
    """The method that is better than every other one, corrected for their number; else None."""
    best = max(runs, key=lambda method: fmean([run.f1 for run in runs[method].values()]))
    pairs = []
    for rival, seeds in runs.items():
        if rival != best:
            pairs.append(
                measure_difference(runs[best], seeds, noise=condition, method=best, reference=rival)
            )
    differences = correct([pair for pair in pairs if pair is not None])
    if not differences or len(differences) < len(pairs):
        return None
    return best if all(item.is_clear and item.points > 0 for item in differences) else None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction for the number of tests; None, no test, stays None."""
    tests = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    results: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(tests):
        largest = max(largest, min(1.0, p * (len(tests) - rank)))
        results[i] = largest
    return results


def describe(difference: PairedDifference, label: str, reference_label: str) -> str:
    """The one sentence about a pair."""
    points = difference.points
    if difference.is_clear:
        better, worse = (label, reference_label) if points > 0 else (reference_label, label)
        text = f"{better} is better than {worse} by {abs(points):.1f} points"
        return f"{text} ({_certainty(difference, is_mirrored=points < 0)})."
    text = f"{label} and {reference_label} cannot be told apart: {signed(points)} points"
    return f"{text} ({_certainty(difference)})."


def _certainty(difference: PairedDifference, *, is_mirrored: bool = False) -> str:
    if difference.low is None or difference.high is None or difference.p is None:
        return "without an interval: the test images are too few, or their predictions are missing"
    low, high = difference.low, difference.high
    if is_mirrored:
        low, high = -high, -low
    text = f"95 % interval {signed(low)} to {signed(high)}, corrected p {difference.p:.2g}"
    if difference.is_clear and difference.reversal is not None:
        text += f", probability that this is false {difference.reversal:.2g}"
    if difference.seeds == 1:
        return f"{text}; one seed: all of this is over test images only"
    return f"{text}; over test images and {plural(difference.seeds, 'seed')}"
