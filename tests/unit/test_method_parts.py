"""The parts that methods share, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgsca.methods.aggregate import WeightedMean
from fedgsca.methods.base import rounds_of
from fedgsca.methods.fednoro import rampup
from fedgsca.methods.parts.groups import nearer_second, two_means
from fedgsca.methods.parts.statistics import class_means, log_prior
from fedgsca.methods.parts.two_stages import model_distance
from fedgsca.methods.train import Batch, cross_entropy, proximal
from fedgsca.rng import stream


def test_rampup_goes_from_e_to_the_minus_five_to_one() -> None:
    assert rampup(0, 10, 49) == pytest.approx(np.exp(-5))
    assert rampup(29.5, 10, 49) == pytest.approx(np.exp(-1.25))
    assert rampup(49, 10, 49) == rampup(500, 10, 49) == 1.0


def test_rampup_of_no_length_is_a_step() -> None:
    assert rampup(9, 10, 10) == pytest.approx(np.exp(-5))
    assert rampup(10, 10, 10) == 1.0


def test_a_stage_never_vanishes_from_a_short_run() -> None:
    assert [rounds_of(0.49, rounds) for rounds in (1, 40, 100)] == [1, 20, 49]


def test_class_means_mark_absent_classes_and_skip_what_is_not_finite() -> None:
    means = class_means(np.array([1.0, 3.0, np.inf, 5.0]), np.array([0, 0, 0, 2]), 4)
    assert means[[0, 2]].tolist() == [2.0, 5.0]
    assert np.isnan(means[[1, 3]]).all()


def test_log_prior_is_finite_for_absent_classes_and_for_no_samples() -> None:
    assert np.exp(log_prior(np.array([0, 0, 0, 1]), 3)) == pytest.approx([0.75, 0.25, 0.25])
    assert np.isfinite(log_prior(np.array([], dtype=np.int64), 3)).all()


def test_two_means_finds_two_clouds_whatever_the_order() -> None:
    rng = stream(0, "two-means")
    points = np.concatenate([rng.normal(0, 0.1, (3, 10)), rng.normal(1, 0.1, (5, 10))])
    for _ in range(20):
        order = rng.permutation(8)
        second = nearer_second(points[order], two_means(points[order]))
        assert len({*second[order < 3]}) == len({*second[order >= 3]}) == 1
        assert second[order < 3][0] != second[order >= 3][0]


def test_two_means_finds_the_best_division_not_the_first() -> None:
    points = np.array([[0.0], [0.4], [1.0], [1.1]])
    assert sorted(two_means(points).ravel().tolist()) == pytest.approx([0.2, 1.05])


@pytest.mark.parametrize("points", [np.ones((4, 3)), np.ones((1, 3))])
def test_two_means_of_what_cannot_be_divided_is_one_centre_twice(points: np.ndarray) -> None:
    centres = two_means(points)
    assert np.array_equal(centres[0], centres[1])
    assert not nearer_second(points, centres).any()


def test_model_distance_ignores_counters() -> None:
    a = {
        "w": np.array([3.0, 0.0], np.float32),
        "b": np.array(4.0, np.float32),
        "count": np.array(7),
    }
    b = {"w": np.zeros(2, np.float32), "b": np.array(0.0, np.float32), "count": np.array(0)}
    assert model_distance(a, b) == pytest.approx(7.0)
    assert model_distance(a, b, "flat") == pytest.approx(5.0)


def test_proximal_term_has_no_gradient_at_its_anchor() -> None:
    model = torch.nn.Linear(5, 3)
    batch = Batch(
        torch.randn(8, 5, generator=torch.Generator().manual_seed(0)),
        torch.arange(8) % 3,
        np.arange(8),
    )
    anchor = [parameter.detach().clone() for parameter in model.parameters()]
    plain = torch.autograd.grad(cross_entropy(model, batch), list(model.parameters()))
    both = torch.autograd.grad(
        cross_entropy(model, batch) + proximal(model, anchor, 10.0), list(model.parameters())
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, both, strict=True))


def test_weighted_mean_keeps_integers_and_reproduces_a_single_site() -> None:
    rng = stream(0, "mean")
    mean = WeightedMean()
    models: list[dict[str, np.ndarray]] = [
        {"w": rng.normal(size=5).astype(np.float32), "count": np.array(k, np.int64)}
        for k in range(4)
    ]
    for model, weight in zip(models, (1, 0, 0, 0), strict=True):
        mean.add(model, weight)
    result = mean.result()
    assert result is not None
    assert result["w"].tobytes() == models[0]["w"].tobytes()
    assert result["count"].dtype == np.int64 and result["count"] == 0
