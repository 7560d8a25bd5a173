"""ATP on tables small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsca.pseudo_label import (
    assign,
    class_thresholds,
    distribution_shift,
    guard_reason,
    is_noisy_client,
    noise_level,
    training_set,
)
from fedgsca.rng import stream

PROBS = np.array(
    [
        [0.9, 0.1, 0.0],  # clean, predicted 0
        [0.7, 0.2, 0.1],  # clean, predicted 0
        [0.8, 0.1, 0.1],  # clean, predicted 0
        [0.2, 0.6, 0.2],  # clean, predicted 1
        [0.1, 0.5, 0.4],  # noisy, predicted 1
        [0.79, 0.11, 0.1],  # noisy, predicted 0
        [0.05, 0.15, 0.8],  # noisy, predicted 2
        [0.2, 0.05, 0.75],  # noisy, predicted 2
    ]
)
CLEAN = np.array([True] * 4 + [False] * 4)
GIVEN = np.array([0, 0, 1, 1, 2, 2, 0, 1])


def clean_mask(n: int, flagged: int) -> np.ndarray:
    return np.arange(n) >= flagged


@pytest.mark.parametrize(
    ("n", "flagged", "noisy"),
    [
        (10, 1, True),
        (10, 0, False),
        (2536, 253, False),
        (2536, 254, True),
        (30, 3, True),
        (0, 0, False),
        (1, 1, True),
    ],
)
def test_a_tenth_is_exact(n: int, flagged: int, noisy: bool) -> None:
    assert is_noisy_client(clean_mask(n, flagged)) is noisy


@given(n=st.integers(1, 3000), percent=st.integers(0, 100))
def test_the_noise_level_is_never_off_by_rounding(n: int, percent: int) -> None:
    smallest = -(-n * percent // 100)  # ceiling: the fewest flags that reach the level
    assert is_noisy_client(clean_mask(n, smallest), percent / 100)
    if smallest > 0:
        assert not is_noisy_client(clean_mask(n, smallest - 1), percent / 100)


def test_literal_thresholds_follow_the_share_of_a_class() -> None:
    # Avg = (0.9 + 0.7 + 0.8) / 4, 0.6 / 4, 0: a quarter of the best class's sum
    np.testing.assert_allclose(class_thresholds(PROBS, CLEAN), [0.8, 0.8 * 0.6 / 2.4, 0.8])


def test_per_class_thresholds_follow_the_confidence_of_a_class() -> None:
    np.testing.assert_allclose(
        class_thresholds(PROBS, CLEAN, average="per_class"), [0.8, 0.8 * 0.6 / 0.8, 0.8]
    )


def test_without_clean_evidence_the_base_threshold_holds() -> None:
    nobody = np.zeros(8, dtype=bool)
    for average in ("literal", "per_class"):
        np.testing.assert_array_equal(
            class_thresholds(PROBS, nobody, base=0.7, average=average), [0.7] * 3
        )  # type: ignore[arg-type]


def test_unknown_average_is_an_error() -> None:
    with pytest.raises(ValueError, match="median"):
        class_thresholds(PROBS, CLEAN, average="median")  # type: ignore[arg-type]


@given(seed=st.integers(0, 10**6), classes=st.integers(2, 12), n=st.integers(1, 80))
def test_thresholds_lie_between_zero_and_the_base(seed: int, classes: int, n: int) -> None:
    rng = stream(seed, "probs")
    probs, clean = rng.dirichlet(np.ones(classes), n), rng.random(n) < 0.6
    literal = class_thresholds(probs, clean)
    assert np.all((literal > 0) & (literal <= 0.8))
    assert literal.max() == 0.8
    assert class_thresholds(probs, clean, average="per_class").max() == 0.8


def test_only_confident_noisy_samples_are_relabelled() -> None:
    labels, keep = assign(PROBS, CLEAN, class_thresholds(PROBS, CLEAN))
    np.testing.assert_array_equal(labels, [0, 0, 0, 1, 1, 0, 2, 2])
    np.testing.assert_array_equal(
        keep, [False] * 4 + [True, False, True, False]
    )  # 0.5 >= 0.2, 0.79 < 0.8, 0.8 >= 0.8


def test_training_set_of_a_noisy_site() -> None:
    rows, labels = training_set(GIVEN, PROBS, CLEAN, class_thresholds(PROBS, CLEAN))
    np.testing.assert_array_equal(rows, [0, 1, 2, 3, 4, 6])
    np.testing.assert_array_equal(
        labels, [0, 0, 1, 1, 1, 2]
    )  # given where clean (rows 0-3), the model's elsewhere
    np.testing.assert_array_equal(GIVEN, [0, 0, 1, 1, 2, 2, 0, 1])  # never overwritten


def test_training_set_of_a_clean_site_is_everything_as_given() -> None:
    probs, given_labels = np.tile(PROBS, (5, 1)), np.tile(GIVEN, 5)
    rows, labels = training_set(given_labels, probs, clean_mask(40, 3), np.zeros(3))
    np.testing.assert_array_equal(rows, np.arange(40))
    np.testing.assert_array_equal(labels, given_labels)


def test_total_variation() -> None:
    assert distribution_shift(np.array([0, 0, 1, 1]), np.array([1, 0]), 3) == 0.0
    assert distribution_shift(np.array([0, 0]), np.array([2]), 3) == 1.0
    assert distribution_shift(np.array([0, 1]), np.array([0]), 2) == 0.5
    assert distribution_shift(np.array([0, 1]), np.array([], dtype=int), 2) == 1.0


def test_guard_speaks_only_when_something_is_wrong() -> None:
    given_labels = np.repeat([0, 1, 2], [100, 50, 10])
    assert guard_reason(given_labels, given_labels, 0.4, 3) is None
    assert guard_reason(given_labels, given_labels, 0.8, 3) is None  # the limit itself passes
    assert "86%" in str(guard_reason(given_labels, given_labels, 0.86, 3))
    assert "class 2 (10 given)" in str(guard_reason(given_labels, given_labels[:150], 0.3, 3))
    assert (
        guard_reason(given_labels[:159], given_labels[:150], 0.3, 3) is None
    )  # nine given: too few to judge
    towards_one = np.concatenate([given_labels, np.full(1000, 2)])
    assert "moved by 0.8" in str(guard_reason(given_labels, towards_one, 0.3, 3))


def test_the_noise_level_is_the_share_of_flagged_labels() -> None:
    assert noise_level(np.array([True, False, True, True])) == 0.25
    assert noise_level(np.zeros(0, bool)) == 0.0


def test_a_class_without_clean_predictions_gets_zero_as_printed_or_zeta() -> None:
    probs = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.3, 0.3, 0.4]])
    clean = np.array([True, True, False])
    printed = class_thresholds(probs, clean, unseen="zero")
    assert printed == pytest.approx([0.8, 0.8 * 0.8 / 0.9, 0.0])
    assert assign(probs, clean, printed)[1].tolist() == [False, False, True]
    careful = class_thresholds(probs, clean)
    assert careful[2] == 0.8 and not assign(probs, clean, careful)[1].any()
    nothing = np.zeros(3, bool)  # 0 / 0
    assert class_thresholds(probs, nothing, unseen="zero").tolist() == [0.8] * 3
