"""Two models on the same test images: an interval, a test, and silence where it says nothing."""

from __future__ import annotations

import numpy as np

from fedgsca.report.paired_scores import describe_difference, paired_difference
from fedgsca.rng import stream


def predictions(true: np.ndarray, accuracy: float, name: str) -> np.ndarray:
    rng = stream(3, name)
    return np.where(rng.random(len(true)) < accuracy, true, rng.integers(0, 3, len(true)))


def test_noise_of_a_small_test_set_is_not_called_an_effect() -> None:
    true = np.arange(121) % 3
    before, after = predictions(true, 0.55, "a"), predictions(true, 0.5, "b")
    difference = paired_difference(true, before, after, 3, name="old", draws=500)
    assert not difference.is_clear
    assert difference.low < difference.new_f1 - difference.old_f1 < difference.high
    text = describe_difference(difference)
    assert "no difference" in text and f"{difference.old_f1:.1f}" not in text


def test_large_effect_is_said() -> None:
    true = np.arange(400) % 3
    before, after = predictions(true, 0.4, "a"), predictions(true, 0.9, "b")
    difference = paired_difference(true, before, after, 3, name="old", draws=500)
    assert difference.is_clear and 0 < difference.low < difference.high
    assert "old" in describe_difference(difference)


def test_equal_models_have_no_difference() -> None:
    true = np.arange(60) % 3
    same = predictions(true, 0.6, "a")
    difference = paired_difference(true, same, same, 3, draws=200)
    assert (difference.low, difference.high, difference.p) == (0.0, 0.0, 1.0)


def test_images_of_one_patient_are_not_independent() -> None:
    true = np.arange(240) % 3
    before, after = predictions(true, 0.5, "a"), predictions(true, 0.6, "b")
    single = paired_difference(true, before, after, 3, draws=400)
    patients = np.repeat(np.arange(8), 30)
    order = np.argsort(after == true, kind="stable")  # patients that are all right or all wrong
    groups = np.empty(240, dtype=np.int64)
    groups[order] = patients
    grouped = paired_difference(true, before, after, 3, groups=groups, draws=400)
    assert grouped.high - grouped.low > single.high - single.low
