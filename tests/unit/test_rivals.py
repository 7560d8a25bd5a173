"""Rankings of labels by others (benchmarks/rivals.py), against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.rivals import (
    RIVALS,
    log_density,
    margins,
    other_class_share,
    rank_by_knn,
    rank_by_selfclean,
    rank_by_simifeat,
    robust_gaussian,
)
from fedgsca.metrics import auroc


def make_clouds(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (n, 16) of three classes, given labels, and which of them are wrong."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, n)
    wrong = rng.random(n) < 0.2
    return rng.normal(size=(n, 16)) + 3.0 * np.eye(16)[truth], (truth + wrong) % 3, wrong


@pytest.mark.parametrize("name", RIVALS)
def test_wrong_labels_of_clear_classes_are_suspicious(name: str) -> None:
    features, given, wrong = make_clouds(150, seed=1)
    suspicion = RIVALS[name](features, given, 3, 0)
    assert suspicion.shape == (150,) and np.isfinite(suspicion).all()
    assert (auroc(suspicion, wrong) or 0.0) > 0.85


@pytest.mark.parametrize("name", RIVALS)
def test_a_class_with_one_label_is_ranked(name: str) -> None:
    features, given, _ = make_clouds(40, seed=2)
    given[given == 2] = 0
    given[0] = 2
    assert np.isfinite(RIVALS[name](features, given, 4, 0)).all()


def test_margin_is_own_score_minus_the_best_other() -> None:
    scores = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    assert margins(scores, np.array([0, 2])).tolist() == [1.0, -1.0]


def on_a_circle(degrees: list[float]) -> np.ndarray:
    """Unit vectors: their cosine distance is 1 - cos of the angle between them."""
    angles = np.radians(degrees)
    return np.column_stack([np.cos(angles), np.sin(angles)])


def test_selfclean_compares_the_nearest_distances() -> None:
    suspicion = rank_by_selfclean(on_a_circle([0, 60, 90]), np.array([0, 0, 1]), 2, 0)
    # image 0: the same class is at 1 - cos 60 = 0.5, the other at 1
    assert suspicion[0] == pytest.approx(0.25 / 1.25)
    # image 2: no other of its class, so 2; the other class is at 1 - cos 30
    assert suspicion[2] == pytest.approx(4.0 / (4.0 + (1 - np.cos(np.pi / 6)) ** 2))


def test_knn_counts_and_simifeat_adds_the_image_itself() -> None:
    features = on_a_circle([0, 1, 2, 3])
    given = np.array([0, 0, 0, 1])
    assert rank_by_knn(features, given, 2, 0).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0])
    # votes with the image itself: 3 and 1 for the first three, 3 and 1 against the last
    expected = [1 - 3 / np.sqrt(10)] * 3 + [1 - 1 / np.sqrt(10)]
    assert rank_by_simifeat(features, given, 2, 0).tolist() == pytest.approx(expected)


def test_log_density_is_that_of_a_gaussian() -> None:
    values = log_density(np.array([[0.0], [2.0]]), np.array([0.0]), np.array([[4.0]]))
    # -(x^2 / 4 + log 4 + log 2 pi) / 2
    expected = [-0.5 * np.log(8 * np.pi), -0.5 * (1.0 + np.log(8 * np.pi))]
    np.testing.assert_allclose(values, expected)


def test_far_points_do_not_move_the_robust_gaussian() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(400, 2)) * [1.0, 3.0]
    points[:80] += 50.0
    mean, covariance = robust_gaussian(points)
    np.testing.assert_allclose(mean, [0.0, 0.0], atol=0.5)
    assert 0.6 < np.sqrt(covariance[0, 0]) < 1.6 and 2.0 < np.sqrt(covariance[1, 1]) < 4.8


def test_a_point_between_two_equal_classes_has_even_chances() -> None:
    line = np.linspace(-1.0, 1.0, 41)
    features = np.concatenate([line - 1.0, line + 1.0, [0.0]])[:, None] * [[1.0, 0.0]]
    is_first = np.arange(83) < 41
    # no random direction: only the line between the means
    share = other_class_share(features, is_first, np.zeros((1, 2, 0)))
    assert share[-1] == pytest.approx(0.5, abs=0.05)
    assert share[0] < 0.01 and share[81] < 0.01


def test_rankings_depend_on_the_seed_alone() -> None:
    features, given, _ = make_clouds(60, seed=3)
    functions: list[Callable[..., np.ndarray]] = list(RIVALS.values())
    for rank in functions:
        np.testing.assert_array_equal(rank(features, given, 3, 5), rank(features, given, 3, 5))
