"""Aggregation rules against numbers worked out by hand, and the spool of waiting updates."""

from __future__ import annotations

import time

import numpy as np
import pytest
from fedgsca.engine.guard import UpdateGuard
from fedgsca.engine.guard_memory import MODEL, GuardMemory, PartMemory
from fedgsca.engine.norm_limits import lower_median
from fedgsca.engine.update_checks import change_norm
from fedgsca.engine.update_facts import OtherValues, PartFacts, RoundFacts, UpdateFacts
from fedgsca.robust.motion import SKETCH_SIZE, SiteMotion, Sketcher
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsca.config import load_config
from fedgsca.errors import UpdateError
from fedgsca.rng import stream
from fedgsca.robust.base import RuleSettings, make_rule
from fedgsca.robust.combine import combine_extras, combine_models, scale_change
from fedgsca.robust.spool import UpdateSpool
from fedgsca.wire import Extra, Payload, Update

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
        ("a", "b"),
        sizes={"a": 7},
        strikes={"b": 2},
        digests={0: [b"x" * 16, b"y" * 16], 11: [b"z" * 16]},
    )
    part = memory.parts[MODEL]
    part.add_level(2.0)
    part.add_level(1.0)
    part.add_norm("b", 3.0)
    change = np.arange(SKETCH_SIZE) / 7
    part.motions["b"] = SiteMotion.zero().add(change, -change)
    part.origin = change
    arrays = memory.to_arrays()
    copy = GuardMemory.from_arrays(("a", "b"), arrays)
    assert (copy.sizes, copy.strikes, copy.digests) == ({"a": 7}, {"b": 2}, memory.digests)
    assert copy.parts[MODEL].levels == [2.0, 1.0] and copy.parts[MODEL].peak == 2.0
    again = copy.to_arrays()
    assert arrays.keys() == again.keys()
    assert all(np.array_equal(arrays[key], again[key]) for key in arrays)
    assert GuardMemory.from_arrays(("a", "b"), {}) == GuardMemory(("a", "b"))


def test_a_site_that_trains_responds_against_the_movement_of_the_model() -> None:
    """A gradient step towards an own optimum, and the same step reversed."""
    rng = stream(0, "response")
    optimum = rng.standard_normal(SKETCH_SIZE)
    model = np.zeros(SKETCH_SIZE)
    honest, reversed_site = SiteMotion.zero(), SiteMotion.zero()
    assert honest.add(optimum, model).response() is None, "one round says nothing"
    for _ in range(4):
        change = 0.3 * (optimum - model)
        honest, reversed_site = honest.add(change, model), reversed_site.add(-change, model)
        model = model + 0.5 * change + 0.05 * rng.standard_normal(SKETCH_SIZE)
    response, opposite = honest.response(), reversed_site.response()
    assert response is not None and response < -0.5
    assert opposite == pytest.approx(-response)


def test_a_sketch_keeps_inner_products_and_is_linear() -> None:
    rng = stream(0, "sketch test")
    a = {"w": rng.standard_normal((300, 40)), "b": rng.standard_normal(5)}
    b = {name: value + rng.standard_normal(value.shape) for name, value in a.items()}
    sketcher = Sketcher()
    x, y = sketcher.sketch(a), sketcher.sketch(b)
    exact = sum(float((a[name] * b[name]).sum()) for name in a)
    assert float(x @ y) == pytest.approx(exact, rel=0.15)
    total = sketcher.sketch({name: a[name] + b[name] for name in a})
    assert np.allclose(total, x + y)
    assert np.array_equal(Sketcher().sketch(a), x), "the signs are the same in every process"
    counters = {**a, "steps": np.array(7)}
    assert np.array_equal(sketcher.sketch(counters), x), "counters are left out"


def make_facts(site: str, norm: float = 1.0, num_samples: int = 10) -> UpdateFacts:
    return UpdateFacts(site, num_samples, {MODEL: PartFacts(norm)}, site.encode())


def refused_sites(norms: list[float], levels: list[float]) -> list[str]:
    """Sites whose change is too large among changes with these norms."""
    names = tuple(f"site-{i}" for i in range(len(norms)))
    memory = GuardMemory(names)
    for level in levels:
        memory.parts[MODEL].add_level(level)
    guard = UpdateGuard(load_config(method="fedavg"), memory)
    facts = [make_facts(name, norm) for name, norm in zip(names, norms, strict=True)]
    sites = []
    for item in facts:
        try:
            guard.judge(item, RoundFacts(facts))
        except UpdateError as error:
            assert error.code == "update.change-too-large"
            sites.append(item.site)
    return sites


@pytest.mark.parametrize(
    ("norms", "levels", "sites"),
    [
        ([1.0, 1.2, 8.0], [], ["site-2"]),
        ([1.0, 1.2, 3.0], [], []),
        ([0.1, 0.1, 5.0], [1.0, 0.1, 0.1, 0.1], ["site-2"]),  # usual only long ago
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
    facts = [make_facts("a", 1e-9), make_facts("b")]
    guard.remember(0, facts, ["a", "b"], [])
    assert guard.level() is None
    guard.remember(1, [*facts, make_facts("c", 1.5)], ["a", "b", "c"], [])
    assert guard.level() == 1.0


def test_what_is_usual_for_a_site() -> None:
    memory = PartMemory()
    assert memory.usual_norm("a", 3.0) is None, "in the first round, only the others count"
    for level in (3.2, 1.0, 1.0, 1.0):
        memory.add_level(level)
    assert memory.usual_norm("a") == 1.0
    memory.add_norm("a", 3.0)
    assert memory.usual_norm("a") == 3.0, "a site that always moves more"
    memory.norms["a"] = [50.0]
    assert memory.usual_norm("a") == 3.2, "but not more than was ever usual"
    assert memory.usual_norm("a", 9.0) == 9.0, "unless all others move more in this round"


@pytest.mark.parametrize(
    ("sizes", "sites"),
    [
        ([100, 100, 100, 250], []),
        ([100, 100, 100, 10**9], [3]),
        ([100, 100, 100, 100, 10**9, 10**9], [4, 5]),  # both together have less than 75 % each
        ([100, 100, 9000, 9000], []),
        ([10, 10**6], []),  # of two sites, one may have almost all images
        ([300, 300, 2100, 1], []),  # a liar that claims one image cannot make an honest site large
        ([300, 300, 2800, 1], [2]),
    ],
)
def test_a_claim_is_compared_with_the_other_sites(sizes: list[int], sites: list[int]) -> None:
    guard = UpdateGuard(load_config(method="fedavg"), GuardMemory(()))
    facts = [make_facts(str(i), num_samples=size) for i, size in enumerate(sizes)]
    blamed_sites = []
    for i, item in enumerate(facts):
        try:
            guard.judge(item, RoundFacts(facts))
        except UpdateError as error:
            assert error.code == "update.share-too-large"
            blamed_sites.append(i)
    assert blamed_sites == sites


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


def test_a_change_that_is_scaled_down_again_and_again_is_one_offence() -> None:
    """An honest site of ten with other classes was put aside for it; to limit it is enough."""
    names = ("a", "b", "c", "d")
    guard = UpdateGuard(load_config(method="fedavg"), GuardMemory(names))
    for round_index in range(4):
        facts = [make_facts(name) for name in names[:3]]
        large = make_facts("d", 5.0)
        scaling = guard.judge(large, RoundFacts([*facts, large]))
        assert scaling.factors == {MODEL: pytest.approx(0.2)} and scaling.is_offence
        assert guard.memory.strikes.get("d", 0) == min(1, max(0, round_index - 1))
        guard.remember(round_index, [*facts, large.scaled(scaling)], names, [])
    assert guard.memory.strikes == {"d": 1}, "the first time was free"
    assert guard.norms.is_bounded(make_facts("d"), MODEL)
    assert guard.sites_put_aside() == []
    guard.readmit(["d"])
    assert guard.memory.scalings == {} and guard.memory.strikes == {}


# ---- a site that always exaggerates a little ----


def judge_round(
    guard: UpdateGuard, round_index: int, norms: list[float], sizes: list[int] | None = None
) -> list[float]:
    """The factors on the changes of one round, which the guard then remembers."""
    facts = []
    for name, norm, size in zip("abcd", norms, sizes or [200] * 4, strict=True):
        facts.append(make_facts(name, norm, size))
    round_facts = RoundFacts(facts)
    factors = []
    for i, item in enumerate(facts):
        scaling = guard.judge(item, round_facts)
        factors.append(scaling.factors.get(MODEL, 1.0))
        if scaling.factors:
            facts[i] = item.scaled(scaling)
    guard.remember(round_index, facts, "abcd", [])
    return factors


def make_guard() -> UpdateGuard:
    return UpdateGuard(load_config(method="fedavg"), GuardMemory(tuple("abcd")))


def test_a_site_that_always_exaggerates_is_used_with_the_norm_of_the_others() -> None:
    guard = make_guard()
    for round_index in range(2):
        assert judge_round(guard, round_index, [1.0, 1.1, 0.9, 3.6]) == [1.0] * 4
    for round_index in range(2, 9):
        *factors, factor = judge_round(guard, round_index, [1.0, 1.1, 0.9, 3.6])
        assert factors == [1.0] * 3
        assert factor == pytest.approx(1 / 3.6), "what it sent counts, not what was used of it"
    assert guard.sites_put_aside() == [], "its influence is bounded, so nobody has to decide"
    arrays = guard.memory.to_arrays()
    copy = GuardMemory.from_arrays(tuple("abcd"), arrays)
    assert copy.parts[MODEL].excesses == guard.memory.parts[MODEL].excesses
    guard.readmit(["d"])
    assert judge_round(guard, 9, [1.0, 1.1, 0.9, 3.6]) == [1.0] * 4


def test_a_site_may_exaggerate_now_and_then() -> None:
    guard = make_guard()
    for round_index in range(12):
        norm = 3.6 if round_index % 3 == 0 else 1.0
        assert judge_round(guard, round_index, [1.0, 1.1, 0.9, norm]) == [1.0] * 4


def test_a_site_with_more_images_moves_the_model_further() -> None:
    guard = make_guard()
    for round_index in range(6):
        norms = [1.0, 1.1, 0.9, 5.0]
        assert judge_round(guard, round_index, norms, [200, 220, 190, 1000]) == [1.0] * 4
    assert judge_round(make_guard(), 0, norms, [200, 220, 190, 200])[3] < 1.0


def test_a_site_with_few_images_is_judged_after_more_rounds() -> None:
    guard = make_guard()
    factors = []
    for round_index in range(6):
        factors.append(judge_round(guard, round_index, [1.0, 1.1, 0.9, 3.6], [20] * 4)[3])
    assert factors[:4] == [1.0] * 4 and factors[4] < 1.0


def test_a_change_near_zero_is_compared_without_an_error() -> None:
    guard = make_guard()
    for round_index in range(4):
        assert judge_round(guard, round_index, [1e8, 1e8, 1e8, 5e-324]) == [1.0] * 4


# ---- the end of a training ----


def test_a_change_is_not_large_only_because_the_others_have_stopped() -> None:
    memory = PartMemory()
    for norm in (10.0, 8.0, 1.0, 0.1, 0.02, 0.02, 0.02, 0.02):
        memory.add_level(norm)
    usual_norm = memory.usual_norm("a", 0.02)
    assert usual_norm == pytest.approx(3.0)  # 30 % of the largest round
    assert memory.usual_norm("a", 12.0) == 12.0


def test_weight_decay_alone_makes_no_copies() -> None:
    """Sites whose samples have no loss left all scale the model by the same factor."""
    guard = UpdateGuard(load_config(method="fedavg"), GuardMemory(("a", "b", "c")))
    received = {"head.weight": np.linspace(1.0, 2.0, 6, dtype=np.float32)}
    guard.start_round(Payload(0, received), {})
    scaled_model = {"head.weight": received["head.weight"] * np.float32(0.999)}
    other_model = {"head.weight": received["head.weight"][::-1].copy()}
    for model, is_refused in ((scaled_model, False), (other_model, True)):
        facts = [guard.examine(Update(site, 10, model, {})) for site in "ab"]
        if is_refused:
            with pytest.raises(UpdateError) as error:
                guard.judge(facts[1], RoundFacts(facts))
            assert error.value.code == "update.copy"
        else:
            guard.judge(facts[1], RoundFacts(facts))


# ---- many sites ----


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=3, max_size=9), st.integers(0, 90))
def test_statistics_of_the_others_are_those_of_the_list_without_one(
    values: list[int], limit: int
) -> None:
    numbers = OtherValues([float(value) for value in values])
    for position, value in enumerate(values):
        others = sorted(values[:position] + values[position + 1 :])
        assert numbers.count(value) == len(others)
        assert numbers.median(value) == np.median(others)
        assert numbers.upper_median(value) == others[len(others) // 2]
        bounded_values = [min(max(other, 2), limit + 2) for other in others]
        assert numbers.bounded_sum(value, 2, limit + 2) == sum(bounded_values)
    assert numbers.median(None) == np.median(values)
    assert numbers.count(None) == len(values)


def judge_seconds(num_sites: int) -> float:
    """CPU seconds of the guard for the first round of so many sites."""
    names = tuple(f"site-{i}" for i in range(num_sites))
    guard = UpdateGuard(load_config(method="fedavg"), GuardMemory(names))
    facts = []
    for i, name in enumerate(names):
        part = PartFacts(1.0 + i / num_sites, resemblance=0.5 + 0.1 * (i % 3), response=-0.5)
        facts.append(UpdateFacts(name, 10 + i % 7, {MODEL: part}, name.encode()))
    start = time.process_time()
    digests: set[bytes] = set()
    for item in facts:
        guard.is_usual(item, digests)
        digests.add(item.digest)
    round_facts = RoundFacts(facts)
    for item in facts:
        guard.judge(item, round_facts)
    guard.remember(0, facts, set(names), [])
    for item in facts:
        guard.memory.round_of(item.digest[::-1])
    return time.process_time() - start


def test_the_time_of_a_first_round_grows_with_the_number_of_sites() -> None:
    """Not with its square: 16 times as many sites would then take 256 times as long."""
    small = min(judge_seconds(250) for _ in range(5))
    large = min(judge_seconds(4000) for _ in range(3))
    assert large < 60 * small
