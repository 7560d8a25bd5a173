"""LID against its definition, and the cut of a handful of numbers in two."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedgsca.methods.parts.groups import best_cut
from fedgsca.methods.parts.statistics import lid_from_distances, mean_lid, nearest_distances
from fedgsca.rng import stream


@pytest.mark.parametrize("dimension", [1.0, 2.0, 7.5])
def test_lid_of_ideal_distances_is_the_dimension(dimension: float) -> None:
    m = 20_000
    distances = 3.0 * (np.arange(1, m + 1) / m) ** (1 / dimension)
    assert lid_from_distances(distances[None]) == pytest.approx([dimension], rel=2e-3)


def test_nearest_distances_agree_with_all_pairs_also_where_points_nearly_coincide() -> None:
    rng = stream(0, "test", "lid")
    points = rng.random((700, 4))  # more rows than one block
    points[1] = points[0] + 1e-10  # the digits that |a|^2 + |b|^2 - 2ab loses
    direct = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(direct, np.inf)
    np.testing.assert_allclose(
        nearest_distances(points, 20), np.sort(direct, axis=1)[:, :20], rtol=1e-12
    )


def test_points_on_a_line_have_a_smaller_lid_than_points_in_space() -> None:
    rng = stream(1, "test", "lid")
    line = rng.random((300, 1)) * np.ones(5)
    assert mean_lid(line) == pytest.approx(1.0, abs=0.35)
    assert mean_lid(rng.random((300, 5))) > 2.5


def test_distances_that_are_equal_up_to_rounding_have_no_dimension() -> None:
    """A site's mean was 8e11 because of one such sample, and its update was refused."""
    distances = 0.7 * (1.0 + 1e-11 * np.arange(20.0))[None]
    assert np.isnan(lid_from_distances(distances)).all()
    ordinary = np.linspace(0.1, 1.0, 20)[None]
    assert np.isfinite(lid_from_distances(np.concatenate([distances, ordinary]))[1])


def test_duplicates_are_survived() -> None:
    points = np.repeat(np.eye(3), 10, axis=0)
    assert math.isnan(mean_lid(points, 5))  # nothing but duplicates: no dimension
    assert math.isfinite(mean_lid(np.concatenate([points, stream(2, "test").random((40, 3))]), 20))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_too_few_samples_have_no_lid(n: int) -> None:
    assert math.isnan(mean_lid(np.eye(3)[:n]))


def test_best_cut_finds_the_widest_cut_whatever_the_order() -> None:
    for values in ([3.2, 4.0, 3.1, 3.3], [4.0, 3.3, 3.2, 3.1]):
        assert best_cut(np.array(values)) == pytest.approx(3.65)


def test_best_cut_ignores_sites_without_a_number() -> None:
    assert best_cut(np.array([1.0, np.nan, 2.0, 2.1])) == pytest.approx(1.5)


@pytest.mark.parametrize("values", [[], [2.0], [2.0, 2.0, 2.0], [np.nan, 1.0], [2.0, 2.05, 2.09]])
def test_one_group_is_not_cut(values: list[float]) -> None:
    assert best_cut(np.array(values), guard=0.05) is None


def test_without_the_guard_any_difference_is_cut() -> None:
    assert best_cut(np.array([2.0, 2.05, 2.09])) is not None
