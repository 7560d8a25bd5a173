"""Confidence intervals of a comparison: over the test images and over the seeds at once.

Each draw picks test images (or groups such as patients) and seeds, both with replacement, and takes
the mean of the last models' macro F1 over these seeds. Methods that were tested on the same images
get the same draws, so that the difference between two methods is paired, image by image and seed by
seed.

Of k seeds, k - 1 are drawn: then the variance of the mean over the draws is s^2 / k, as it should
be. With k of k it would be too small by the factor (k - 1) / k (Rao and Wu, Resampling Inference
With Complex Survey Data, 1988). Two or three seeds remain few; an interval cannot know what seeds
that nobody ran would give. A single seed adds nothing to the interval.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedgsca.experiment.final_statistics import FinalPredictions, read_predictions_file
from fedgsca.experiment.records import Comparison, ComparisonCell, MethodInterval, ScoreInterval
from fedgsca.report.comparison_tables import BASELINE
from fedgsca.rng import stream
from fedgsca.score_intervals import (
    DRAWS,
    MIN_UNITS,
    average_macro,
    draw_weights,
    number_units,
    quantile_interval,
    rate_matrices,
)

# seed -> macro F1: the value itself first, then one per draw, (1 + DRAWS,)
SeedScores = Mapping[int, np.ndarray]


def with_intervals(folder: Path, comparison: Comparison) -> Comparison:
    """The comparison with the intervals of all methods whose runs have their probabilities."""
    intervals: list[MethodInterval] = []
    for condition in dict.fromkeys(cell.condition for cell in comparison.cells):
        cells = [cell for cell in comparison.cells if cell.condition == condition]
        intervals += _measure_condition(folder, cells)
    return replace(comparison, intervals=tuple(intervals))


def _measure_condition(folder: Path, cells: Sequence[ComparisonCell]) -> list[MethodInterval]:
    scores: dict[str, dict[int, np.ndarray]] = {}
    for cell in cells:
        predictions = read_predictions_file(folder / cell.path)
        if predictions is None:  # moved, deleted, or a run of an older version
            continue
        scores.setdefault(cell.method, {})[cell.seed] = draw_f1(predictions)
    if not scores:
        return []
    reference = BASELINE if BASELINE in scores else next(iter(scores))
    intervals = []
    for method, seed_scores in scores.items():
        difference = None
        if method != reference:
            difference = subtract_scores(seed_scores, scores[reference])
        intervals.append(
            MethodInterval(
                noise=cells[0].condition,
                method=method,
                reference=reference,
                seeds=len(seed_scores),
                f1=mean_interval(seed_scores),
                difference=mean_interval(difference) if difference else None,
            )
        )
    return intervals


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


def subtract_scores(scores: SeedScores, reference: SeedScores) -> dict[int, np.ndarray]:
    """Differences over the seeds that both have."""
    return {seed: scores[seed] - reference[seed] for seed in scores if seed in reference}


def mean_interval(scores: SeedScores) -> ScoreInterval:
    """The mean over the seeds, and its interval over seeds and images."""
    table = np.stack([scores[seed] for seed in sorted(scores)])  # (k, 1 + DRAWS)
    value = float(table[:, 0].mean())
    bounds = quantile_interval(_draw_means(table[:, 1:]))
    return ScoreInterval(value) if bounds is None else ScoreInterval(value, *bounds)


def _draw_means(draws: np.ndarray) -> np.ndarray:
    """(d,): the mean over seeds, drawn with replacement, of draws (k, d)."""
    num_seeds, num_draws = draws.shape
    rng = stream(0, "bootstrap seeds", num_seeds)
    picks = rng.integers(num_seeds, size=(max(1, num_seeds - 1), num_draws))
    return np.asarray(draws[picks, np.arange(num_draws)].mean(axis=0))
