"""Aggregation rules against numbers worked out by hand, and the spool of waiting updates."""

from __future__ import annotations

import numpy as np
import pytest

from fedgsca.robust.base import RuleSettings, make_rule
from fedgsca.robust.combine import combine_extras, combine_models
from fedgsca.robust.spool import UpdateSpool
from fedgsca.wire import Extra, Update

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


def test_multi_krum_leaves_out_the_most_distant_sites() -> None:
    points = np.array([1.0, 1.1, 1.3, 50.0, -40.0])
    rule = make_rule("multi-krum", RuleSettings(liars=2))
    sizes = np.array([1.0, 1.0, 2.0, 9.0, 9.0])
    weights = rule.coefficients(np.outer(points, points), sizes)
    assert weights.tolist() == [0.25, 0.25, 0.5, 0.0, 0.0]
    one = make_rule("multi-krum", RuleSettings(liars=9)).coefficients(np.eye(2), np.ones(2))
    assert one.sum() == 1.0 and np.count_nonzero(one) == 1


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


def test_integers_stay_what_a_site_sent() -> None:
    received = {"w": np.zeros(1, np.float32), "steps": np.array(0)}
    rule = make_rule("median", RuleSettings())
    with make_updates([1.0, 1.0, 1.0, 1.0, 9.0], [10, 10, 10, 10, 10]) as spool:
        model = combine_models(rule, spool, range(5), received)
    assert float(model["w"][0]) == 1.0
    assert int(model["steps"]) == 3, "an integer, and one that a site sent"
    assert model["w"].dtype == np.float32


def test_a_site_that_did_not_train_has_no_vote() -> None:
    received = {"w": np.zeros(1, np.float32), "steps": np.array(0)}
    rule = make_rule("median", RuleSettings())
    with make_updates([0.0, 0.0, 4.0], [10, 10, 10]) as spool:
        assert float(combine_models(rule, spool, range(3), received)["w"][0]) == 4.0


def test_extras_are_voted_on_as_they_are_declared() -> None:
    uploads = {
        "head": Extra((2,), "averaged", vote="mean"),
        "selector": Extra((1,), "a statistic", nan=True, vote="median"),
        "losses": Extra((1,), "compared", vote="clip"),
        "count": Extra((), "nobody votes"),
    }
    heads = [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0], [900.0, -900.0]]
    selectors = [0.2, np.nan, 0.4, 1e6]
    losses = [1.0, 1.2, 2.0, 1e6]
    rule = make_rule("median", RuleSettings())
    with UpdateSpool() as spool:
        for i in range(4):
            extras = {
                "head": np.array(heads[i]),
                "selector": np.array([selectors[i]]),
                "losses": np.array([losses[i]], np.float32),
                "count": np.array(i),
            }
            spool.add(Update(f"site-{i}", 10, {}, extras))
        results = combine_extras(rule, spool, range(4), uploads, {"head": np.array([1.0, 0.0])})
    assert all(result["head"].tolist() == [1.0, 1.5] for result in results)
    selector_votes = [float(result["selector"][0]) for result in results]
    assert selector_votes[0] == selector_votes[2] == selector_votes[3] == 0.4
    assert np.isnan(selector_votes[1]), "a site without a fit stays without one"
    loss_votes = [float(result["losses"][0]) for result in results]
    assert loss_votes[:3] == [1.0, pytest.approx(1.2), 2.0]
    assert 2.0 < loss_votes[3] < 10.0, "still the largest one, but no longer out of proportion"
    assert results[0]["losses"].dtype == np.float32
    assert [int(result["count"]) for result in results] == [0, 1, 2, 3]
