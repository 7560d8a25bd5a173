"""From the final model's probabilities, or the counts of the sites, to the statistics of a run."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgsca.federation.calibration import brier_score, chance_ece, log_loss, reliability_curve
from fedgsca.federation.records import (
    CalibrationBin,
    CalibrationResult,
    ClassStatistics,
    FinalStatistics,
    GroupStatistics,
    RoundRecord,
    ScoreInterval,
    SubsetScores,
)
from fedgsca.federation.score_intervals import (
    DRAWS,
    MIN_UNITS,
    ScoreDraws,
    WeightedScorer,
    average_macro,
    draw_weights,
    join_draws,
    number_units,
    quantile_interval,
    rate_matrices,
)
from fedgsca.federation.simulation import Experiment
from fedgsca.metrics import confusion, scores
from fedgsca.rng import stream

# scores of a class, and those of them that need probabilities
_RATES = ("f1", "recall", "precision")
_RANKS = ("auroc", "average_precision")


def summarise_predictions(
    predictions: FinalPredictions, classes: Sequence[str], round_index: int, group_word: str
) -> FinalStatistics | None:
    """The statistics of probabilities; None if some are not finite."""
    labels, probs, groups = predictions.labels, predictions.probs, predictions.groups
    if not len(labels) or not predictions.is_finite:
        return None
    scorer = WeightedScorer(labels, probs)
    units = number_units(len(labels), groups)
    num_units = int(units.max()) + 1
    masks = _site_masks(predictions.sites)
    draws: list[ScoreDraws] = []
    site_draws: dict[str, list[ScoreDraws]] = {name: [] for name in masks}
    if num_units >= MIN_UNITS:
        for weights in draw_weights(units):
            draws.append(scorer.measure(weights))
            for name, mask in masks.items():
                site_draws[name].append(scorer.measure(weights * mask, with_ranks=False))
    per_site = {}
    for name, mask in masks.items():
        value = scorer.measure(mask[None, :], with_ranks=False)
        has_interval = len(np.unique(units[mask > 0])) >= MIN_UNITS
        per_site[name] = _subset_scores(value, site_draws[name] if has_interval else [])
    value = scorer.measure(np.ones((1, len(labels))))
    return replace(
        _statistics(round_index, classes, value, draws, per_site),
        unit="image" if groups is None else group_word,
        units=num_units,
        calibration=calibration_result(labels, probs),
        groups=_group_statistics(predictions, group_word),
    )


def summarise_counts(record: RoundRecord, classes: Sequence[str]) -> FinalStatistics | None:
    """The statistics of the confusion matrices of the sites.

    Images are drawn within each site. Which images belong to one patient is not known here.
    """
    if not record.confusion or not record.site_confusions:
        return None
    draws = np.zeros((DRAWS, len(classes), len(classes)))
    per_site = {}
    for name, matrix in record.site_confusions.items():
        counts = np.array(matrix, dtype=np.float64)
        if not counts.any():
            continue
        site_draws = _draw_matrices(counts, name)
        draws += site_draws
        has_interval = counts.sum() >= MIN_UNITS
        per_site[name] = _subset_scores(
            _score_matrices(counts[None]), [_score_matrices(site_draws)] if has_interval else []
        )
    value = _score_matrices(np.array([record.confusion], dtype=np.float64))
    has_interval = value.support.sum() >= MIN_UNITS
    all_draws = [_score_matrices(draws)] if has_interval else []
    return _statistics(record.round, classes, value, all_draws, per_site)


def _statistics(
    round_index: int,
    classes: Sequence[str],
    value: ScoreDraws,
    parts: Sequence[ScoreDraws],
    per_site: Mapping[str, SubsetScores],
) -> FinalStatistics:
    """What images and counts have in common; without parts of draws, there are no intervals."""
    draws = join_draws(parts)
    absent = value.support[0] == 0
    macro = {name: _macro_interval(name, value, draws, absent) for name in (*_RATES, *_RANKS)}
    num_images = int(value.support.sum())
    return FinalStatistics(
        round=round_index,
        images=num_images,
        unit="image",
        units=num_images,
        draws=0 if draws is None else DRAWS,
        accuracy=_interval(value.accuracy, None if draws is None else draws.accuracy),
        f1=macro["f1"],
        recall=macro["recall"],
        precision=macro["precision"],
        per_class=_per_class(classes, value, draws),
        per_site=per_site,
        auroc=_optional(macro["auroc"]),
        average_precision=_optional(macro["average_precision"]),
    )


def _draw_matrices(counts: np.ndarray, name: str) -> np.ndarray:
    """(d, C, C): confusion matrices of as many images as in counts (C, C), with replacement."""
    rng = stream(0, "bootstrap counts", name)
    total = counts.sum()
    draws = rng.multinomial(int(total), counts.ravel() / total, size=DRAWS)
    return draws.reshape(DRAWS, *counts.shape).astype(np.float64)


def _score_matrices(matrices: np.ndarray) -> ScoreDraws:
    """Scores of confusion matrices (d, C, C): those that need probabilities are NaN."""
    f1, recall, precision, accuracy = rate_matrices(matrices)
    no_ranks = np.full(f1.shape, np.nan)
    return ScoreDraws(accuracy, f1, recall, precision, no_ranks, no_ranks, matrices.sum(axis=2))


def _site_masks(sites: np.ndarray | None) -> Mapping[str, np.ndarray]:
    """Site -> (n,) 1 for its images, else 0; empty where no site is known."""
    if sites is None:
        return {}
    return {str(name): (sites == name).astype(np.float64) for name in np.unique(sites)}


def _subset_scores(value: ScoreDraws, parts: Sequence[ScoreDraws]) -> SubsetScores:
    draws = join_draws(parts)
    no_class = np.zeros(value.f1.shape[1], dtype=bool)
    return SubsetScores(
        images=int(value.support.sum()),
        accuracy=_interval(value.accuracy, None if draws is None else draws.accuracy),
        f1=_macro_interval("f1", value, draws, no_class),
    )


def _macro_interval(
    name: str, value: ScoreDraws, draws: ScoreDraws | None, absent: np.ndarray
) -> ScoreInterval:
    mean = average_macro(getattr(value, name), value.support, absent)
    if draws is None:
        return _interval(mean, None)
    return _interval(mean, average_macro(getattr(draws, name), draws.support, absent))


def _per_class(
    classes: Sequence[str], value: ScoreDraws, draws: ScoreDraws | None
) -> dict[str, ClassStatistics]:
    results = {}
    for c, name in enumerate(classes):
        intervals = {}
        for key in (*_RATES, *_RANKS):
            column = None
            if draws is not None:
                # a class that is not in a draw has no score there
                has_class = draws.support[:, c] > 0
                column = np.where(has_class, getattr(draws, key)[:, c], np.nan)
            intervals[key] = _interval(getattr(value, key)[:, c], column)
        ranks = [_optional(intervals[key]) for key in _RANKS]
        results[name] = ClassStatistics(*(intervals[key] for key in _RATES), *ranks)
    return results


def _interval(value: np.ndarray, draws: np.ndarray | None) -> ScoreInterval:
    """value (1,), draws (d,)."""
    bounds = None if draws is None else quantile_interval(draws)
    if bounds is None:
        return ScoreInterval(float(value[0]))
    return ScoreInterval(float(value[0]), *bounds)


def _optional(interval: ScoreInterval) -> ScoreInterval | None:
    """None for a score that is not defined."""
    return interval if np.isfinite(interval.value) else None


def calibration_result(labels: np.ndarray, probs: np.ndarray) -> CalibrationResult:
    """The calibration of probabilities (n, C)."""
    curve = reliability_curve(labels, probs)
    bins = []
    for i, count in enumerate(curve.counts.tolist()):
        bins.append(
            CalibrationBin(
                low=100.0 * float(curve.edges[i]),
                high=100.0 * float(curve.edges[i + 1]),
                images=count,
                confidence=100.0 * float(curve.confidence[i]) if count else None,
                accuracy=100.0 * float(curve.accuracy[i]) if count else None,
            )
        )
    confidence = probs.max(axis=1)
    return CalibrationResult(
        ece=100.0 * curve.ece,
        chance_ece=100.0 * chance_ece(confidence),
        confidence=100.0 * float(confidence.mean()),
        brier=brier_score(labels, probs),
        log_loss=log_loss(labels, probs),
        bins=tuple(bins),
    )


def _group_statistics(predictions: FinalPredictions, word: str) -> GroupStatistics | None:
    if predictions.groups is None:
        return None
    labels, probs = predictions.labels, predictions.probs
    units = number_units(len(labels), predictions.groups)
    sizes = np.bincount(units)
    is_right = probs.argmax(axis=1) == labels
    accuracy = np.bincount(units, is_right) / sizes
    lowest = np.full(len(sizes), probs.shape[1])
    highest = np.full(len(sizes), -1)
    np.minimum.at(lowest, units, labels)
    np.maximum.at(highest, units, labels)
    has_one_label = lowest == highest
    group_probs = np.zeros((len(sizes), probs.shape[1]))
    np.add.at(group_probs, units, probs)
    f1 = None
    if has_one_label.any():
        predictions_by_group = group_probs[has_one_label].argmax(axis=1)
        f1 = scores(confusion(lowest[has_one_label], predictions_by_group, probs.shape[1])).f1
    return GroupStatistics(
        word=word,
        groups=len(sizes),
        images_per_group=float(np.median(sizes)),
        mean_accuracy=100.0 * float(accuracy.mean()),
        worst_tenth=100.0 * float(np.quantile(accuracy, 0.1)),
        all_wrong=int(np.count_nonzero(accuracy == 0)),
        same_label=int(np.count_nonzero(has_one_label)),
        f1=f1,
    )


# ---- test-probabilities.npz: what the final model says about every test image ----
# It is written once, when a run ends, on the machine that has the test images. All statistics of
# the result come from it, and anybody can compute others. It names images and groups: it stays
# there.


FILE = "test-probabilities.npz"


@dataclass(frozen=True)
class FinalPredictions:
    """The test images in the order of the data set."""

    ids: np.ndarray  # (n,) str
    labels: np.ndarray  # (n,) int64
    probs: np.ndarray  # (n, C) float64
    groups: np.ndarray | None = None  # (n,) str: patient, slide or video
    sites: np.ndarray | None = None  # (n,) str: hospital, where the source states it

    @property
    def is_finite(self) -> bool:
        """Whether every probability is a number; those of a diverged model are not."""
        return bool(np.isfinite(self.probs).all())


def label_predictions(experiment: Experiment, probs: np.ndarray) -> FinalPredictions:
    """Probabilities (n, C) of the experiment's test images, with what is known about these."""
    table = experiment.table
    rows = table.rows("test")
    return FinalPredictions(
        ids=np.asarray(table.ids[rows], dtype=str),
        labels=np.asarray(table.labels[rows], dtype=np.int64),
        probs=np.asarray(probs, dtype=np.float64),
        groups=None if table.groups is None else np.asarray(table.groups[rows], dtype=str),
        sites=None if table.site is None else np.asarray(table.site[rows], dtype=str),
    )


def encode_predictions(predictions: FinalPredictions) -> bytes:
    """The content of the file."""
    arrays = {name: array for name, array in vars(predictions).items() if array is not None}
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def read_predictions_file(folder: Path) -> FinalPredictions | None:
    """The content of the file; None if the run has none, or if it is damaged."""
    with contextlib.suppress(Exception), np.load(folder / FILE, allow_pickle=False) as arrays:
        predictions = FinalPredictions(
            ids=arrays["ids"],
            labels=arrays["labels"].astype(np.int64),
            probs=arrays["probs"].astype(np.float64),
            groups=arrays.get("groups"),
            sites=arrays.get("sites"),
        )
        return predictions if _is_consistent(predictions) else None
    return None


def _is_consistent(predictions: FinalPredictions) -> bool:
    """Whether the arrays belong together; a file that somebody edited may not."""
    probs, labels = predictions.probs, predictions.labels
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or not len(labels):
        return False
    columns = (predictions.ids, predictions.groups, predictions.sites)
    has_all_rows = all(column is None or column.shape == labels.shape for column in columns)
    is_in_range = labels.min() >= 0 and labels.max() < probs.shape[1]
    return bool(has_all_rows and is_in_range and predictions.is_finite)
