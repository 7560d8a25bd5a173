"""Scores under weights, bootstrap intervals and calibration, against scikit-learn and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    f1_score,
    log_loss,
    precision_score,
    recall_score,
    roc_auc_score,
)

from fedgsca.federation import calibration
from fedgsca.federation.score_intervals import (
    ScoreDraws,
    WeightedScorer,
    average_macro,
    draw_weights,
    join_draws,
    number_units,
    quantile_interval,
)
from fedgsca.metrics import confusion, scores
from fedgsca.rng import stream

C = 4


def make_predictions(n: int, *, seed: int = 0, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Labels (n,) and probabilities (n, C) that know something about them."""
    rng = stream(seed, "statistics", n)
    labels = rng.integers(C, size=n)
    logits = rng.normal(size=(n, C)) + 1.5 * np.eye(C)[labels]
    if ties:
        logits = np.round(logits)
    odds = np.exp(logits)
    return labels, odds / odds.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_scores_agree_with_scikit_learn(ties: bool, is_weighted: bool) -> None:
    labels, probs = make_predictions(150, ties=ties)
    weights = np.ones(150)
    if is_weighted:
        weights = stream(1, "weights").integers(0, 4, 150).astype(float)
    draws = WeightedScorer(labels, probs).measure(np.stack([weights, np.ones(150)]))
    predictions = probs.argmax(axis=1)
    rates = {
        "f1": f1_score(labels, predictions, average=None, sample_weight=weights),
        "recall": recall_score(labels, predictions, average=None, sample_weight=weights),
        "precision": precision_score(labels, predictions, average=None, sample_weight=weights),
    }
    for name, values in rates.items():
        assert getattr(draws, name)[0] == pytest.approx(100 * values)
    for c in range(C):
        is_class = labels == c
        auroc = roc_auc_score(is_class, probs[:, c], sample_weight=weights)
        area = average_precision_score(is_class, probs[:, c], sample_weight=weights)
        assert draws.auroc[0, c] == pytest.approx(100 * auroc)
        assert draws.average_precision[0, c] == pytest.approx(100 * area)
    right = np.average(predictions == labels, weights=weights)
    assert draws.accuracy[0] == pytest.approx(100 * right)


def test_the_macro_average_is_the_score_of_the_log() -> None:
    labels, probs = make_predictions(80)
    labels[labels == 3] = 0  # a class without any image counts as 0 there
    draws = WeightedScorer(labels, probs).measure(np.ones((1, 80)))
    expected = scores(confusion(labels, probs.argmax(axis=1), C))
    absent = draws.support[0] == 0
    assert absent.tolist() == [False, False, False, True]
    assert average_macro(draws.f1, draws.support, absent)[0] == pytest.approx(expected.f1)
    # AUROC is not defined for it, so it is left out
    macro = average_macro(draws.auroc, draws.support, absent)[0]
    assert macro == pytest.approx(draws.auroc[0, :3].mean())


def test_a_draw_without_a_class_leaves_it_out() -> None:
    values = np.array([[80.0, 40.0], [80.0, 0.0]])
    support = np.array([[3.0, 2.0], [5.0, 0.0]])
    nothing = np.zeros(2, dtype=bool)
    assert average_macro(values, support, nothing).tolist() == [60.0, 80.0]
    is_empty = average_macro(values, np.zeros((2, 2)), nothing)
    assert np.isnan(is_empty).all()


def bootstrap(labels: np.ndarray, probs: np.ndarray, units: np.ndarray, draws: int) -> ScoreDraws:
    scorer = WeightedScorer(labels, probs)
    scores = join_draws([scorer.measure(weights) for weights in draw_weights(units, draws)])
    assert scores is not None
    return scores


def test_draws_are_whole_groups_and_always_the_same() -> None:
    groups = np.array(["b", "a", "b", "c", "c", "c", "d", "a"])
    units = number_units(8, groups)
    weights = np.concatenate(list(draw_weights(units, 50)))
    assert weights.shape == (50, 8)
    for name in "abcd":
        columns = weights[:, groups == name]
        assert (columns == columns[:, :1]).all(), "images of a group are drawn together"
    firsts = [0, 1, 3, 6]  # one image of every group
    assert (weights[:, firsts].sum(axis=1) == 4).all(), "as many groups as there are"
    # four groups can be drawn in 35 ways, of which 50 draws show about 20
    assert len(np.unique(weights, axis=0)) > 10
    assert (np.concatenate(list(draw_weights(units, 50))) == weights).all()
    longer = np.concatenate(list(draw_weights(units, 70)))
    assert (longer[:50] == weights).all(), "more draws begin with the same ones"


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Accuracy 0.8 with 150 images: of 300 intervals, 95 % hold it, give or take."""
    rng = stream(3, "coverage")
    hits = 0
    weights = np.concatenate(list(draw_weights(np.arange(150), 400)))
    for _ in range(300):
        is_right = rng.random(150) < 0.8
        interval = quantile_interval(100 * (weights @ is_right) / 150)
        assert interval is not None
        hits += interval[0] <= 80 <= interval[1]
    assert 0.91 <= hits / 300 <= 0.98


def test_patients_make_the_interval_wider_than_images() -> None:
    """Ten copies of every image are no more information than one."""
    labels, probs = make_predictions(60)
    labels, probs = np.repeat(labels, 10), np.repeat(probs, 10, axis=0)
    groups = np.repeat(np.arange(60), 10)
    images = bootstrap(labels, probs, number_units(600, None), 300)
    patients = bootstrap(labels, probs, number_units(600, groups), 300)
    single = bootstrap(labels[::10], probs[::10], number_units(60, None), 300)
    assert patients.accuracy.std() > 2.5 * images.accuracy.std()
    assert patients.accuracy == pytest.approx(single.accuracy), "the same draws of 60 units"
    assert patients.auroc == pytest.approx(single.auroc, nan_ok=True)


def test_an_interval_without_values_is_none() -> None:
    assert quantile_interval(np.array([np.nan, np.nan])) is None
    assert quantile_interval(np.array([np.nan, 4.0])) == (4.0, 4.0)


# ---- calibration ----


def test_the_curve_agrees_with_scikit_learn() -> None:
    labels, probs = make_predictions(400)
    curve = calibration.reliability_curve(labels, probs)
    is_right = probs.argmax(axis=1) == labels
    right, sure = calibration_curve(is_right, probs.max(axis=1), n_bins=calibration.BINS)
    has_images = curve.counts > 0
    assert curve.counts.sum() == 400
    assert curve.accuracy[has_images] == pytest.approx(right)
    assert curve.confidence[has_images] == pytest.approx(sure)
    gaps = np.abs(right - sure) * curve.counts[has_images]
    assert curve.ece == pytest.approx(gaps.sum() / 400)


def test_losses_agree_with_scikit_learn() -> None:
    labels, probs = make_predictions(90)
    expected = brier_score_loss(labels, probs, labels=range(C), scale_by_half=False)
    assert calibration.brier_score(labels, probs) == pytest.approx(expected)
    expected = log_loss(labels, probs, labels=range(C))
    assert calibration.log_loss(labels, probs) == pytest.approx(expected)


def test_a_probability_on_an_edge_is_in_the_lower_bin() -> None:
    assert calibration.find_bins(np.array([0.2, 0.2000001, 1.0, 0.0])).tolist() == [1, 2, 9, 0]


def test_a_perfect_model_stays_below_the_chance_ece() -> None:
    rng = stream(5, "perfect")
    below = 0
    for _ in range(100):
        sure = rng.uniform(0.5, 1.0, 200)
        is_right = rng.random(200) < sure
        probs = np.stack([sure, 1.0 - sure], axis=1)
        curve = calibration.reliability_curve(np.where(is_right, 0, 1), probs)
        below += curve.ece <= calibration.chance_ece(sure)
    assert 88 <= below <= 100
    labels, probs = make_predictions(200)
    sharp = calibration.scale_probabilities(probs, 0.3)
    curve = calibration.reliability_curve(labels, sharp)
    assert curve.ece > 1.5 * calibration.chance_ece(sharp.max(axis=1)), "overconfident"


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_the_temperature_is_the_minimum_of_the_loss(factor: float) -> None:
    labels, probs = make_predictions(300, seed=7)
    probs = calibration.scale_probabilities(probs, factor)

    def loss(temperature: float) -> float:
        scaled_probs = calibration.scale_probabilities(probs, temperature)
        return float(log_loss(labels, scaled_probs, labels=range(C)))

    best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-7}).x
    temperature = calibration.fit_temperature(labels, probs)
    assert temperature == pytest.approx(best, rel=1e-4)
    scaled_probs = calibration.scale_probabilities(probs, temperature)
    assert (scaled_probs.argmax(axis=1) == probs.argmax(axis=1)).all(), "no class changes"
    assert scaled_probs.sum(axis=1) == pytest.approx(1.0)


def test_temperature_agrees_with_scikit_learn() -> None:
    from sklearn.calibration import _TemperatureScaling

    labels, probs = make_predictions(300, seed=8)
    probs = calibration.scale_probabilities(probs, 0.5)
    logits = np.log(probs)
    expected = _TemperatureScaling().fit(logits, labels).predict(logits)
    scaled_probs = calibration.scale_probabilities(
        probs, calibration.fit_temperature(labels, probs)
    )
    assert scaled_probs == pytest.approx(expected, abs=1e-4)


def test_a_model_that_is_always_right_or_wrong_gets_an_end_of_the_range() -> None:
    labels = np.array([0, 1, 2])
    probs = np.full((3, 3), 0.1) + 0.7 * np.eye(3)
    assert calibration.fit_temperature(labels, probs) == pytest.approx(0.05)
    assert calibration.fit_temperature((labels + 1) % 3, probs) == pytest.approx(20.0)


def test_certain_probabilities_stay_numbers() -> None:
    probs = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert np.isfinite(calibration.scale_probabilities(probs, 0.05)).all()
    assert np.isfinite(calibration.log_loss(np.array([1, 1]), probs))
