"""The one statistic: a paired interval over seeds and images, Holm over rows, one sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedgsca.federation.final_statistics import FinalPredictions
from fedgsca.federation.score_intervals import DRAWS
from fedgsca.lab.records import PairedDifference
from fedgsca.lab.statistic import (
    RunScore,
    correct,
    describe,
    find_winner,
    holm,
    measure_difference,
    score_run,
    two_sided_p,
)
from fedgsca.rng import stream

NAMES = {"noise": "S40", "method": "a", "reference": "b"}


def make_predictions(n: int, accuracy: float, seed: int = 0) -> FinalPredictions:
    rng = stream(seed, "statistic test", n)
    labels = np.arange(n) % 3
    is_right = rng.random(n) < accuracy
    predictions = np.where(is_right, labels, (labels + 1) % 3)
    ids = np.array([f"image {i}" for i in range(n)])
    return FinalPredictions(ids, labels, np.eye(3)[predictions])


def quiet_run(f1: float) -> RunScore:
    """A run whose score does not depend on the images."""
    return RunScore(f1, np.zeros(DRAWS), 100)


def measure(a: dict[int, RunScore], b: dict[int, RunScore]) -> PairedDifference:
    difference = measure_difference(a, b, **NAMES)
    assert difference is not None
    return difference


def test_over_seeds_the_interval_has_the_variance_of_a_mean() -> None:
    """Where images do not matter, the interval is that of Student's t with three degrees."""
    values = {0: 2.0, 1: 6.0, 2: 11.0, 3: 5.0}
    difference = measure(
        {seed: quiet_run(50 + value) for seed, value in values.items()},
        {seed: quiet_run(50.0) for seed in values},
    )
    assert difference.points == pytest.approx(6.0) and difference.seeds == 4
    assert difference.low is not None and difference.high is not None
    standard_error = np.std(list(values.values()), ddof=1) / 2
    width = difference.high - difference.low
    assert width == pytest.approx(2 * 3.18 * standard_error, rel=0.25)


@pytest.mark.parametrize(("num_seeds", "limit"), [(2, 0.07), (3, 0.07), (5, 0.08)])
def test_equally_good_methods_are_rarely_told_apart(num_seeds: int, limit: float) -> None:
    """Trainings that vary more than images: how often one of two equal methods "wins"."""
    rng = stream(0, "false wins", num_seeds)
    num_wins = 0
    for _ in range(400):
        errors = rng.normal(0, 3, num_seeds) + rng.normal(0, 0.5)
        deviations = rng.normal(0, 0.5, DRAWS)
        runs = {seed: RunScore(50 + error, deviations, 100) for seed, error in enumerate(errors)}
        num_wins += measure(runs, {seed: quiet_run(50.0) for seed in runs}).is_clear
    assert num_wins / 400 < limit


def test_a_winner_is_better_than_every_other_method() -> None:
    strong = {seed: quiet_run(80.0 + 0.1 * seed) for seed in range(3)}
    weak = {seed: quiet_run(70.0) for seed in range(3)}
    close = {seed: quiet_run(79.0 + 2 * (seed == 1)) for seed in range(3)}
    assert find_winner({"a": strong, "b": weak}, "S40") == "a"
    assert find_winner({"a": strong, "b": weak, "c": close}, "S40") is None
    assert find_winner({"a": strong}, "S40") is None
    assert find_winner({"a": strong, "b": {0: RunScore(60.0)}}, "S40") is None


def test_the_difference_is_that_of_the_printed_means() -> None:
    """The last model's predictions say how sure it is, not how large it is."""
    predictions = make_predictions(200, 0.8)
    better = make_predictions(200, 0.9)
    difference = measure({0: score_run(70.0, better)}, {0: score_run(73.0, predictions)})
    assert difference.points == pytest.approx(-3.0) and difference.images == 200
    assert difference.low is not None and difference.high is not None
    assert difference.low < -3.0 < difference.high


def test_what_two_models_share_cancels() -> None:
    first = make_predictions(300, 0.8)
    probs = first.probs.copy()
    wrong = np.flatnonzero(probs.argmax(axis=1) != first.labels)[:3]
    probs[wrong] = np.eye(3)[first.labels[wrong]]
    second = FinalPredictions(first.ids, first.labels, probs)
    paired = measure({0: score_run(81.0, second)}, {0: score_run(80.0, first)})
    other = make_predictions(300, 0.8, seed=7)
    other = FinalPredictions(np.char.add("other ", other.ids), other.labels, other.probs)
    unpaired = measure({0: score_run(81.0, other)}, {0: score_run(80.0, first)})
    assert paired.low is not None and paired.high is not None
    assert unpaired.low is not None and unpaired.high is not None
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)
    assert paired.is_clear and not unpaired.is_clear


def test_no_common_seed_no_difference_and_few_images_no_interval() -> None:
    assert measure_difference({0: quiet_run(1.0)}, {1: quiet_run(1.0)}, **NAMES) is None
    few = measure({0: score_run(70.0, make_predictions(3, 1.0))}, {0: quiet_run(60.0)})
    assert (few.points, few.low, few.p, few.is_clear) == (10.0, None, None, False)


def test_p_is_twice_the_share_on_the_other_side_and_never_zero() -> None:
    values = np.array([1.0] * 98 + [-1.0, -2.0])
    assert two_sided_p(values) == pytest.approx(2 * 3 / 101)
    assert two_sided_p(np.ones(99)) == pytest.approx(0.02)
    assert two_sided_p(np.zeros(10)) == 1.0


def test_holm_corrects_for_the_number_of_rows() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    rows = [PairedDifference("", "a", "b", 3, 10, 5.0, 1.0, 9.0, 0.03)] * 2
    assert [row.is_clear for row in rows] == [True, True]
    assert [row.is_clear for row in correct(rows)] == [False, False]


def test_the_sentence_agrees_with_the_verdict_and_names_the_better_one() -> None:
    clear = PairedDifference("", "a", "b", 3, 10, 5.0, 1.0, 9.0, 0.01, 0.004)
    worse = replace(clear, points=-5.0, low=-9.0, high=-1.0)
    unclear = replace(clear, low=-1.0, p=0.2)
    assert describe(clear, "A", "B").startswith("A is better than B by 5.0 points")
    assert describe(worse, "A", "B").startswith("B is better than A by 5.0 points")
    assert "+1.0 to +9.0" in describe(worse, "A", "B")
    assert "cannot be told apart" in describe(unclear, "A", "B")
    assert "over test images only" in describe(replace(clear, seeds=1), "A", "B")
    assert "over test images only" not in describe(clear, "A", "B")
    assert "probability that this is false 0.004" in describe(clear, "A", "B")
    assert "false" not in describe(unclear, "A", "B")
