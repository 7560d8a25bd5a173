"""Properties of aggregation rules, what they do with extras, and the spool of waiting updates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsca.federation.filters.base import UpdateSpool
from fedgsca.federation.filters.rule import combine_extras, combine_models
from fedgsca.federation.filters.rules import MixingRule, geometric_median, load_rules
from fedgsca.rng import stream
from fedgsca.wire import Extra, Update

ROBUST_RULES = sorted(name for name, rule in load_rules().items() if rule.needs_all)


def coefficients(
    name: str,
    changes: np.ndarray,
    sizes: list[float] | None = None,
    *,
    liars: float = 0.25,
    images: float = 0.0,
) -> np.ndarray:
    numbers = np.ones(len(changes)) if sizes is None else np.array(sizes, dtype=np.float64)
    rule = load_rules()[name](liars)
    rule.images = images
    return rule.coefficients(changes @ changes.T, numbers)


def random_changes(seed: int, num_sites: int, dim: int = 40) -> np.ndarray:
    """Sites that agree on a direction and differ around it."""
    return 1.0 + stream(seed, "changes").standard_normal((num_sites, dim))


# ---- every rule ----


@pytest.mark.parametrize("rule", sorted(load_rules()))
def test_a_rule_says_what_it_can_and_cannot_stop(rule: str) -> None:
    assert 1 <= load_rules()[rule].stops.count(". ") + 1 <= 3
    assert load_rules()[rule].description


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(ROBUST_RULES), st.integers(0, 10**6), st.integers(3, 9))
def test_the_order_of_sites_does_not_matter(rule: str, seed: int, num_sites: int) -> None:
    rng = stream(seed, "order")
    changes = random_changes(seed, num_sites)
    sizes = rng.integers(1, 1000, num_sites).astype(np.float64)
    order = rng.permutation(num_sites)
    weights = coefficients(rule, changes, list(sizes))
    permuted_weights = coefficients(rule, changes[order], list(sizes[order]))
    assert permuted_weights == pytest.approx(weights[order], abs=1e-6)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(ROBUST_RULES), st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_coefficients_add_up_to_one_whatever_the_scale(rule: str, seed: int, scale: float) -> None:
    changes = random_changes(seed, 6)
    weights = coefficients(rule, changes)
    assert weights.sum() == pytest.approx(1.0) and weights.min() >= 0.0
    assert coefficients(rule, scale * changes) == pytest.approx(weights, abs=1e-6)


@pytest.mark.parametrize("rule", ROBUST_RULES)
@pytest.mark.parametrize("factor", [-1e6, -5.0, 100.0])
def test_a_far_site_does_not_move_the_model(rule: str, factor: float) -> None:
    changes = random_changes(3, 8)
    others = changes[:-1].mean(axis=0)
    changes[-1] *= factor
    model = coefficients(rule, changes) @ changes
    spread = np.linalg.norm(changes[:-1] - others, axis=1).max()
    assert np.linalg.norm(model - others) < spread


@pytest.mark.parametrize("rule", ROBUST_RULES)
def test_one_site_alone_is_the_model(rule: str) -> None:
    assert coefficients(rule, random_changes(0, 1)).tolist() == [1.0]


# ---- mixing ----


def test_equal_updates_make_the_plain_weighted_mean() -> None:
    sizes = [2728.0, 1200.0, 44.0, 28.0]
    weights = coefficients("mixing", np.ones((4, 5)), sizes)
    assert weights == pytest.approx(np.array(sizes) / 4000)


def test_liars_within_the_budget_have_hardly_any_weight() -> None:
    changes = random_changes(1, 10)
    changes[7:] = -4.0 * changes[7:]
    assert coefficients("mixing", changes, liars=0.3)[7:].max() < 1e-3
    assert coefficients("mixing", changes, liars=3.0)[7:].max() < 1e-3
    assert coefficients("mixing", changes, liars=0.1)[7:].max() > 1e-2, "more than were expected"


def test_a_site_with_more_images_than_the_budget_is_never_left_out() -> None:
    """By the agreement it cannot be the liar, however far it is from the small ones."""
    changes = random_changes(2, 4)
    changes[1] *= -20.0
    weights = coefficients("mixing", changes, [2728, 1200, 44, 28], liars=0.25)
    assert weights[1] == pytest.approx(0.3, abs=0.02)
    assert coefficients("mixing", changes, [2728, 900, 44, 28], liars=0.25)[1] < 1e-3


def test_without_liars_it_is_the_mean() -> None:
    sizes = [5.0, 3.0, 2.0]
    weights = coefficients("mixing", random_changes(4, 3), sizes, liars=0.0)
    assert weights == pytest.approx(np.array(sizes) / 10)


def test_the_budget_counts_the_images_of_sites_that_did_not_answer() -> None:
    """Three of four equal sites: the liar has a third of what is there, a quarter of all."""
    changes = random_changes(5, 3)
    changes[2] *= -20.0
    assert coefficients("mixing", changes, [300] * 3)[2] > 1e-2
    assert coefficients("mixing", changes, [300] * 3, images=1200)[2] < 1e-3


def test_the_geometric_median_of_a_line_is_its_median() -> None:
    points = np.array([0.0, 1.0, 1e6])
    weights = geometric_median(np.outer(points, points), np.full(3, 1 / 3))
    assert weights @ points == pytest.approx(1.0, abs=0.01)


# ---- models and extras ----


def make_updates(values: list[float], sizes: list[int]) -> UpdateSpool:
    spool = UpdateSpool()
    for i, (value, size) in enumerate(zip(values, sizes, strict=True)):
        weights = {"w": np.array([value], np.float32), "steps": np.array(i + 1)}
        spool.add(Update(f"site-{i}", size, weights, {"extra": np.array(0.5)}))
    return spool


def test_updates_come_back_from_the_spool_as_they_were() -> None:
    with make_updates([1.0, 2.0], [5, 6]) as spool:
        update = spool.updates[1]
        weights = {name: array.read() for name, array in update.weights.items()}
        extra = update.extras["extra"].read()
    assert update.site == "site-1"
    assert update.num_samples == 6
    assert weights["w"].dtype == np.float32
    assert weights["steps"].shape == ()
    assert float(weights["w"][0]) == 2.0
    assert float(extra) == 0.5


def test_types_stay_and_integers_are_what_a_site_sent() -> None:
    received = {"w": np.zeros(1, np.float32), "steps": np.array(0)}
    rule = MixingRule()
    with make_updates([1.0, 1.0, 1.0, 1.0, 9.0], [10] * 5) as spool:
        model = combine_models(rule, spool.updates, received)
    assert float(model["w"][0]) == pytest.approx(1.0)
    assert model["w"].dtype == np.float32
    assert int(model["steps"]) == 3


def test_a_site_that_did_not_train_has_no_vote() -> None:
    received = {"w": np.zeros(1, np.float32), "steps": np.array(0)}
    rule = MixingRule()
    with make_updates([0.0, 0.0, 4.0], [10, 10, 10]) as spool:
        assert float(combine_models(rule, spool.updates, received)["w"][0]) == 4.0
    with make_updates([0.0, 0.0], [10, 10]) as spool:
        assert float(combine_models(rule, spool.updates, received)["w"][0]) == 0.0


def test_extras_that_are_averaged_pass_through_the_rule() -> None:
    uploads = {
        "head": Extra((2,), "averaged", vote="mean"),
        "selector": Extra((1,), "a statistic", nan=True, vote="mean"),
        "count": Extra((), "nobody votes"),
    }
    heads = [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0], [900.0, -900.0]]
    selectors = [0.2, np.nan, 0.4, 1e6]
    rule = MixingRule()
    rule.images = 40.0
    with UpdateSpool() as spool:
        for i in range(4):
            extras = {
                "head": np.array(heads[i], np.float32),
                "selector": np.array([selectors[i]]),
                "count": np.array(i),
            }
            spool.add(Update(f"site-{i}", 10, {}, extras))
        results = combine_extras(rule, spool.updates, uploads, {"head": np.array([1.0, 0.0])})
    for result in results:
        assert result["head"] == pytest.approx([1.0, 2.0], abs=0.6)
        assert result["head"].dtype == np.float32
    votes = [float(result["selector"][0]) for result in results]
    assert 0.2 <= votes[0] == votes[2] == votes[3] <= 0.4
    assert np.isnan(votes[1]), "a site without a fit stays without one"
    assert [int(result["count"]) for result in results] == [0, 1, 2, 3]


def test_a_reference_that_is_nan_means_that_there_was_none(tmp_path: Path) -> None:
    """FedGSCA sends a selector of NaN before the first fit; first fits must survive the rule."""
    uploads = {"fit": Extra((2,), "two numbers; NaN: none", nan=True, vote="mean")}
    with UpdateSpool(tmp_path) as spool:
        for k in range(4):
            weights = {"w": np.full(3, float(k), dtype=np.float32)}
            spool.add(Update(f"site-{k}", 10, weights, {"fit": np.array([1.0, 2.0 + 0.1 * k])}))
        rule = MixingRule()
        extras = combine_extras(rule, spool.updates, uploads, {"fit": np.full(2, np.nan)})
    assert all(np.isfinite(item["fit"]).all() for item in extras)
    assert 2.0 <= extras[0]["fit"][1] <= 2.3
