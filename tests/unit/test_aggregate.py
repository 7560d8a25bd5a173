"""The weighted mean of models: correct, ordered, in the original types, and in one pass."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from fedgsca.methods.aggregate import WeightedMean, weighted_mean
from fedgsca.rng import stream
from fedgsca.wire import Update


def updates(count: int, size: int = 5) -> Iterator[Update]:
    for k in range(count):
        rng = stream(0, "update", k)
        weights: dict[str, np.ndarray] = {
            "w": rng.normal(size=size).astype(np.float32),
            "n": np.array(k % 3, np.int64),
            "s": np.array(k + 0.5, np.float32),
        }
        yield Update(f"site-{k:03d}", int(rng.integers(1, 50)), weights)


def test_hand_example() -> None:
    one = Update("a", 1, {"w": np.array([0.0, 4.0], np.float32)})
    three = Update("b", 3, {"w": np.array([8.0, 0.0], np.float32)})
    assert weighted_mean([one, three], {})["w"].tolist() == [6.0, 1.0]


def test_types_and_shapes_stay() -> None:
    mean = weighted_mean(updates(4), {})
    assert (
        mean["w"].dtype == np.float32
        and mean["n"].dtype == np.int64
        and mean["s"].dtype == np.float32
    )
    assert mean["n"].shape == () and mean["s"].shape == ()
    assert mean["n"] == 2  # a counter takes the maximum


def test_a_site_without_weight_changes_nothing() -> None:
    alone = next(updates(1))
    others = [Update(u.site, 0, u.weights) for u in updates(4)]
    mean = weighted_mean([*others, alone], {})
    assert all(np.array_equal(mean[name], alone.weights[name]) for name in mean)


@pytest.mark.parametrize("copies", [2, 3, 7])
def test_the_mean_of_equal_models_is_that_model(copies: int) -> None:
    one = next(updates(1))
    mean = weighted_mean([one] * copies, {})
    assert np.allclose(mean["w"], one.weights["w"], rtol=0, atol=1e-7)


def test_nothing_usable_leaves_the_model_as_it_was() -> None:
    old = {"w": np.ones(2, np.float32)}
    assert weighted_mean([], old)["w"] is old["w"]
    assert WeightedMean().result() is None


def test_against_the_formula_in_float64() -> None:
    batch, total = list(updates(9)), sum(u.num_samples for u in updates(9))
    expected = sum(u.weights["w"].astype(np.float64) * u.num_samples for u in batch) / total
    assert np.abs(weighted_mean(batch, {})["w"] - expected).max() < 1e-7


def test_arrays_that_were_added_are_not_changed() -> None:
    batch = list(updates(3))
    old = [u.weights["w"].copy() for u in batch]
    weighted_mean(batch, {})
    assert all(np.array_equal(u.weights["w"], w) for u, w in zip(batch, old, strict=True))


def test_memory_does_not_grow_with_the_number_of_sites() -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        weighted_mean(updates(count, size=20_000), {})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak(2)
    assert peak(60) < 1.2 * peak(6)
