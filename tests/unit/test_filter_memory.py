"""Parts of filters, by hand: sketches, norms, windows, and their memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgsca.config import AggregationConfig, load_config
from fedgsca.federation.base import Reply
from fedgsca.federation.filters.base import (
    RoundContext,
    UpdateContext,
    UpdateFilter,
    memory_of,
    restore_memory,
)
from fedgsca.federation.filters.claims import ClaimFilter, describe_aggregation
from fedgsca.federation.filters.distance import LOW, ROUNDS, SKETCH_SIZE, DistanceFilter, Sketcher
from fedgsca.federation.filters.form import RepetitionFilter, change_norm
from fedgsca.federation.filters.rules import Rule, load_rules
from fedgsca.rng import stream
from fedgsca.wire import Payload, Update

NAMES = ["a", "b", "c", "d"]


class FixedRule(Rule):
    """Gives the last site the weight that a test chooses, and the others the rest."""

    name = "fixed"
    weight = 0.0

    def coefficients(self, products: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        others = len(sizes) - 1
        return np.array([(1.0 - self.weight) / others] * others + [self.weight])


def run_round(filters: list[UpdateFilter], round_index: int) -> RoundContext:
    """One round in which all sites send something new; messages are thrown away."""
    received = {"w": np.zeros(5, np.float32)}
    context = RoundContext(Payload(round_index, received), Path(), lambda text: None, print)
    for item in filters:
        item.start(context)
    for name in NAMES:
        change = stream(round_index, "test", name).normal(size=5).astype(np.float32)
        update = Update(name, 10, {"w": change})
        for item in filters:
            update = item.examine(update, UpdateContext(Reply(name, update), context))
    for item in filters:
        item.remember(NAMES, context)
    return context


def make_filters() -> list[UpdateFilter]:
    settings = load_config(method="fedavg").aggregation
    return [
        ClaimFilter(settings, NAMES),
        RepetitionFilter(),
        DistanceFilter(FixedRule(), NAMES),
    ]


def test_memory_is_the_same_after_a_checkpoint() -> None:
    filters = make_filters()
    for round_index in range(ROUNDS + 2):
        run_round(filters, round_index)
        copies = make_filters()
        restore_memory(copies, memory_of(filters))
        first, second = memory_of(filters), memory_of(copies)
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[key], second[key]) for key in first)
        filters = copies


def test_a_site_is_distant_after_many_rounds_with_hardly_any_weight() -> None:
    rule = FixedRule()
    filters: list[UpdateFilter] = [DistanceFilter(rule, NAMES)]
    rule.weight = 0.9 * LOW / len(NAMES)  # of a site with a quarter of the images
    named = [run_round(filters, index).distant_sites for index in range(ROUNDS + 2)]
    assert named == [()] * (ROUNDS - 1) + [("d",)] * 3
    rule.weight = 1.1 * LOW / len(NAMES)
    assert run_round(filters, ROUNDS + 2).distant_sites == ()


def test_a_coefficient_is_relative_to_the_share_of_images() -> None:
    rule = FixedRule()
    rule.weight = 0.1
    context = run_round([DistanceFilter(rule, NAMES)], 0)
    values = {site: item["coefficient"] for site, item in context.site_values.items()}
    assert values == {"a": 1.2, "b": 1.2, "c": 1.2, "d": 0.4}


def test_a_sketch_keeps_inner_products() -> None:
    rng = stream(0, "test")
    reference = {"w": np.zeros((300, 200)), "b": np.zeros(77)}
    first = {name: rng.normal(size=value.shape) for name, value in reference.items()}
    second = {name: value + rng.normal(size=value.shape) for name, value in first.items()}
    sketcher = Sketcher()
    a, b = (sketcher.sketch(arrays, reference) for arrays in (first, second))
    assert a.shape == (SKETCH_SIZE,)
    exact = sum(float((first[name] * second[name]).sum()) for name in reference)
    norms = change_norm(first, reference) * change_norm(second, reference)
    assert abs(float(a @ b) - exact) < 5.0 / SKETCH_SIZE**0.5 * norms
    difference = sketcher.sketch(second, first)
    assert np.allclose(b - a, difference), "a sketch is linear"


def test_the_norm_of_a_change_does_not_overflow() -> None:
    received = {"w": np.zeros(2, np.float32)}
    assert change_norm({"w": np.array([3.0, 4.0], np.float32)}, received) == 5.0
    assert change_norm({"w": np.full(2, 3e38, np.float32)}, received) > 1e38


@pytest.mark.parametrize("rule", sorted(load_rules()))
def test_every_rule_says_what_it_can_and_cannot_stop(rule: str) -> None:
    config = load_config(
        method="fedavg", aggregation__rule=rule, aggregation__max_images={"a": 10, "b": 20}
    )
    text = describe_aggregation(config, ["a", "b", "c"])
    stops = load_rules()[rule].stops
    assert "not" in stops and stops in text
    assert "No number of images was agreed on with c:" in text
    assert "No number" not in describe_aggregation(config, ["a", "b"])


def test_a_site_that_never_answered_counts_with_its_agreed_images() -> None:
    """Otherwise the absence of one site would make every liar too large to be left out."""
    claims = ClaimFilter(AggregationConfig(max_images=100), NAMES)
    claims.sizes = {NAMES[0]: 80}
    assert claims.total_images() == 80 + 100 * (len(NAMES) - 1)
