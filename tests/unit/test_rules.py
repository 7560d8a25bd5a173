"""Aggregation rules against numbers worked out by hand, and the spool of waiting updates."""

from __future__ import annotations

import numpy as np
import pytest

from fedgsca.config import load_config
from fedgsca.engine.guard import (
    GuardMemory,
    UpdateFacts,
    UpdateGuard,
    change_norm,
    lower_median,
)
from fedgsca.errors import UpdateError
from fedgsca.robust.base import RuleSettings, make_rule
from fedgsca.robust.combine import combine_models, scale_change
from fedgsca.robust.spool import UpdateSpool
from fedgsca.wire import Update

EQUAL = np.ones(4)


def combine(rule: str, values: list[float], sizes: np.ndarray, **settings: float) -> float:
    changes = np.array(values)[:, None]
    result = make_rule(rule, RuleSettings(**settings)).combine(changes, sizes)  # type: ignore[arg-type]
    return float(result[0])


def test_the_median_of_four_is_the_mean_of_the_middle_two() -> None:
    assert combine("median", [9.0, 1.0, 2.0, 3.0], EQUAL) == 2.5


def test_the_median_is_weighted_by_images() -> None:
    assert combine("median", [1.0, 2.0, 9.0], np.array([1.0, 1.0, 3.0])) == 9.0


def test_the_trimmed_mean_leaves_out_both_ends() -> None:
    assert combine("trimmed-mean", [-100.0, 1.0, 2.0, 100.0], EQUAL, trim=0.25) == 1.5
    sizes = np.array([1.0, 1.0, 3.0, 1.0])
    assert combine("trimmed-mean", [-100.0, 1.0, 2.0, 100.0], sizes, trim=0.25) == 1.75


def test_the_trimmed_mean_keeps_at_least_one_site() -> None:
    assert combine("trimmed-mean", [1.0, 3.0], np.ones(2), trim=0.4) == 2.0


def test_the_norm_bound_scales_down_only_what_is_larger() -> None:
    rule = make_rule("norm-bound", RuleSettings(bound=2.0))
    assert rule.bound_change(10.0, 1.0) == pytest.approx(0.2)
    assert rule.bound_change(1.9, 1.0) == 1.0
    assert rule.bound_change(0.0, 0.0) == 1.0


def test_the_geometric_median_of_a_line_is_its_median() -> None:
    points = np.array([0.0, 1.0, 100.0])
    rule = make_rule("geometric-median", RuleSettings())
    weights = rule.coefficients(np.outer(points, points), np.ones(3))
    assert weights.sum() == pytest.approx(1.0)
    assert weights @ points == pytest.approx(1.0, abs=0.05)


def test_krum_takes_the_site_nearest_to_its_neighbours() -> None:
    points = np.array([1.0, 1.1, 1.3, 50.0, -40.0])
    rule = make_rule("krum", RuleSettings(liars=2))
    assert rule.coefficients(np.outer(points, points), np.ones(5)).tolist() == [1, 0, 0, 0, 0]


def make_updates(values: list[float], sizes: list[int]) -> UpdateSpool:
    spool = UpdateSpool()
    for i, (value, size) in enumerate(zip(values, sizes, strict=True)):
        weights = {"w": np.array([value], np.float32), "steps": np.array(i + 1)}
        spool.add(Update(f"site-{i}", size, weights, {"extra": np.array(0.5)}))
    return spool


def test_updates_come_back_from_the_spool_as_they_were() -> None:
    with make_updates([1.0, 2.0], [5, 6]) as spool:
        update = spool.update(1)
    assert update.site == "site-1"
    assert update.num_samples == 6
    assert update.weights["w"].dtype == np.float32
    assert update.weights["steps"].shape == ()
    assert float(update.weights["w"][0]) == 2.0
    assert float(update.extras["extra"]) == 0.5


def test_a_claim_of_many_images_does_not_buy_the_median() -> None:
    received = {"w": np.zeros(1, np.float32), "steps": np.array(0)}
    rule = make_rule("median", RuleSettings())
    with make_updates([1.0, 1.0, 1.0, 1.0, 9.0], [10, 10, 10, 10, 10**9]) as spool:
        model = combine_models(rule, spool, range(5), received)
    assert float(model["w"][0]) == 1.0
    assert int(model["steps"]) == 3, "an integer, and one that a site sent"
    assert model["w"].dtype == np.float32


def test_a_site_that_did_not_train_has_no_vote() -> None:
    received = {"w": np.zeros(1, np.float32), "steps": np.array(0)}
    rule = make_rule("median", RuleSettings())
    with make_updates([0.0, 0.0, 4.0], [10, 10, 10]) as spool:
        assert float(combine_models(rule, spool, range(3), received)["w"][0]) == 4.0


def test_a_change_is_scaled_around_the_received_model() -> None:
    received = {"w": np.array([1.0], np.float32)}
    model = scale_change({"w": np.array([5.0], np.float32)}, received, 0.25)
    assert float(model["w"][0]) == 2.0


def test_the_norm_of_a_change_does_not_overflow() -> None:
    received = {"w": np.zeros(2, np.float32)}
    assert change_norm({"w": np.array([3.0, 4.0], np.float32)}, received) == 5.0
    assert change_norm({"w": np.full(2, 3e38, np.float32)}, received) > 1e38


def test_the_lower_median_is_one_of_the_values() -> None:
    assert lower_median([4.0, 1.0]) == 1.0
    assert lower_median([3.0, 1.0, 2.0]) == 2.0


def test_the_memory_of_the_guard_survives_a_checkpoint() -> None:
    memory = GuardMemory(
        ("a", "b"), [1.0, 2.0], {"a": 7}, {"b": 2}, {0: [b"x" * 16, b"y" * 16], 11: [b"z" * 16]}
    )
    assert GuardMemory.from_arrays(("a", "b"), memory.to_arrays()) == memory
    assert GuardMemory.from_arrays(("a", "b"), {}) == GuardMemory(("a", "b"))


def refused_sites(norms: list[float], levels: list[float]) -> list[str]:
    """Sites whose change is too large among changes with these norms."""
    names = tuple(f"site-{i}" for i in range(len(norms)))
    guard = UpdateGuard(load_config(method="fedavg"), GuardMemory(names, levels))
    facts = []
    for i, norm in enumerate(norms):
        facts.append(UpdateFacts(names[i], 10, norm, bytes([i])))
    sites = []
    for item in facts:
        try:
            guard.judge(item, [row for row in facts if row is not item])
        except UpdateError as error:
            assert error.code == "update.change-too-large"
            sites.append(item.site)
    return sites


@pytest.mark.parametrize(
    ("norms", "levels", "sites"),
    [
        ([1.0, 1.2, 30.0], [], ["site-2"]),
        ([1.0, 1.2, 9.0], [], []),  # honest sites reach 7.8 times the usual norm
        ([1.0, 1.2, 3.0], [], []),
        ([1e-9, 1.0, 1.2], [], []),  # a tiny change expels nobody
        ([1e-9, 1.0, 1.2, 0.9], [], []),
        ([1.0, 50.0], [], []),  # of two sites, nobody knows which one lies
        ([1.0, 50.0], [1.0], ["site-1"]),  # unless earlier rounds tell
        ([0.0, 0.0, 50.0], [], []),  # the only site that trains
        ([0.1, 0.1, 2.0], [1.0], []),  # usual a round ago
        ([1.0] * 7 + [30.0] * 3, [], ["site-7", "site-8", "site-9"]),
    ],
)
def test_a_change_is_compared_with_other_sites_and_earlier_rounds(
    norms: list[float], levels: list[float], sites: list[str]
) -> None:
    assert refused_sites(norms, levels) == sites


def test_two_sites_do_not_make_a_usual_norm() -> None:
    guard = UpdateGuard(load_config(method="fedavg"), GuardMemory(("a", "b")))
    facts = [UpdateFacts("a", 10, 1e-9, b"a"), UpdateFacts("b", 10, 1.0, b"b")]
    guard.remember(0, facts, ["a", "b"], [])
    assert guard.level() is None
    guard.remember(1, [*facts, UpdateFacts("c", 10, 1.5, b"c")], ["a", "b", "c"], [])
    assert guard.level() == 1.0


@pytest.mark.parametrize(
    ("sizes", "sites"),
    [
        ([100, 100, 100, 250], []),
        ([100, 100, 100, 10**9], [3]),
        ([100, 100, 100, 100, 10**9, 10**9], [4, 5]),  # both together have less than 75 % each
        ([100, 100, 9000, 9000], []),
        ([10, 10**6], []),  # of two sites, one may have almost all images
    ],
)
def test_a_claim_is_compared_with_the_other_sites(sizes: list[int], sites: list[int]) -> None:
    guard = UpdateGuard(load_config(method="fedavg"), GuardMemory(()))
    facts = [UpdateFacts(str(i), size, 1.0, bytes([i])) for i, size in enumerate(sizes)]
    blamed_sites = []
    for i, item in enumerate(facts):
        try:
            guard.judge(item, [row for row in facts if row is not item])
        except UpdateError as error:
            assert error.code == "update.share-too-large"
            blamed_sites.append(i)
    assert blamed_sites == sites
