"""Sites that begin to lie, against quadratic losses; the sums behind the check by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedgsca.config import build, load_config
from fedgsca.engine.guard import UpdateGuard, is_blamed
from fedgsca.engine.guard_memory import EXTRAS, MODEL, GuardMemory
from fedgsca.engine.update_facts import PartFacts, RoundFacts, UpdateFacts
from fedgsca.errors import UpdateError
from fedgsca.rng import stream
from fedgsca.robust.anchor import TOLERANCE, SiteAnchor
from fedgsca.robust.motion import SKETCH_SIZE, SiteMotion
from fedgsca.wire import Payload, Update

SITES = ("site-1", "site-2", "site-3", "site-4")
LIAR = "site-2"
SIZE = 2000  # weights
ROUNDS = 12
NUM_SAMPLES = 300
Factors = Callable[[str, int], float]


class QuadraticFederation:
    """Each site takes a noisy step towards its own optimum; the server takes the mean."""

    def __init__(self, factor: Factors, *, memory: GuardMemory | None = None) -> None:
        self.guard = UpdateGuard(load_config(method="fedavg"), memory or GuardMemory(SITES))
        self.factor = factor  # on the change of a site in a round
        self.model = np.zeros(SIZE)
        self.codes: dict[tuple[str, int], str] = {}
        self.factors: dict[tuple[str, int], float] = {}

    def optimum(self, site: str, round_index: int) -> np.ndarray:
        common = 0.5 * stream(0, "common").standard_normal(SIZE)
        return common + stream(0, site).standard_normal(SIZE)

    def change(self, site: str, round_index: int) -> np.ndarray:
        noise = 0.2 * stream(0, site, round_index).standard_normal(SIZE)
        change = 0.4 * (self.optimum(site, round_index) - self.model) + noise
        return np.asarray(self.factor(site, round_index) * change)

    def run(self, first_round: int = 0, rounds: int = ROUNDS) -> QuadraticFederation:
        for round_index in range(first_round, rounds):
            self.run_round(round_index)
        return self

    def run_round(self, round_index: int) -> None:
        self.guard.start_round(Payload(round_index, {"w": self.model}), {})
        facts, changes, blame = [], {}, []
        for site in SITES:
            if self.guard.is_put_aside(site):
                continue
            changes[site] = self.change(site, round_index)
            weights = {"w": self.model + changes[site]}
            facts.append(self.guard.examine(Update(site, NUM_SAMPLES, weights, {})))
        round_facts = RoundFacts(facts)
        usable_changes = []
        for item in facts:
            is_usual = self.guard.is_usual(item, ())
            try:
                factor = self.guard.judge(item, round_facts).factors.get(MODEL, 1.0)
            except UpdateError as error:
                assert not is_usual, "a usual update is accepted, whatever the others send"
                self.codes[item.site, round_index] = error.code
                blame += [item.site] if is_blamed(error) else []
                continue
            self.factors[item.site, round_index] = factor
            usable_changes.append(factor * changes[item.site])
        accepted_sites = [site for site in changes if (site, round_index) not in self.codes]
        self.guard.remember(round_index, facts, accepted_sites, blame)
        self.model = self.model + np.mean(usable_changes, axis=0)


def honest(site: str, round_index: int) -> float:
    return 1.0


def reverse_from(start: int, factor: float) -> Factors:
    return lambda site, i: factor if site == LIAR and i >= start else 1.0


def reverse_every_second(site: str, round_index: int) -> float:
    return -3.0 if site == LIAR and round_index % 2 else 1.0


@pytest.mark.parametrize("start", [2, 4, 8])
@pytest.mark.parametrize("factor", [-3.0, -2.0])
def test_a_site_that_begins_to_reverse_its_change_is_refused_at_once(
    start: int, factor: float
) -> None:
    """The norm is within the limits, and the response of all rounds needs many more."""
    federation = QuadraticFederation(reverse_from(start, factor)).run(rounds=start + 7)
    assert {site for site, _ in federation.codes} == {LIAR}
    first_round = min(i for _, i in federation.codes)
    assert first_round <= start + 1
    assert federation.codes[LIAR, first_round] == "update.retreat"
    assert federation.guard.is_put_aside(LIAR)


def test_every_lie_of_a_site_that_is_honest_from_time_to_time_is_refused() -> None:
    federation = QuadraticFederation(reverse_every_second).run()
    lies = {(LIAR, i) for i in range(1, ROUNDS, 2)}
    assert set(federation.codes) <= lies, "only its lies"
    assert len(lies - set(federation.codes)) <= 1


def test_a_single_jump_of_a_site_is_refused_but_no_offence() -> None:
    federation = QuadraticFederation(lambda site, i: -3.0 if site == LIAR and i == 4 else 1.0).run()
    assert federation.codes == {(LIAR, 4): "update.retreat"}
    assert not federation.guard.memory.strikes


def test_honest_sites_are_not_refused_and_not_scaled() -> None:
    federation = QuadraticFederation(honest).run(rounds=60)
    assert not federation.codes
    assert set(federation.factors.values()) == {1.0}


class StageFederation(QuadraticFederation):
    """All sites want something else from round 6 on."""

    def optimum(self, site: str, round_index: int) -> np.ndarray:
        sign = -1.0 if round_index >= 6 else 1.0
        return sign * super().optimum(site, round_index)


def test_a_stage_that_turns_all_sites_is_nobodys_fault() -> None:
    assert not StageFederation(honest).run().codes


def test_after_a_strike_a_site_has_no_more_influence_than_the_others() -> None:
    """It is honest again, but its changes remain three times as large."""
    factors = {4: -3.0, 5: -3.0, 6: -3.0}
    federation = QuadraticFederation(
        lambda site, i: factors.get(i, 3.0 if i > 6 else 1.0) if site == LIAR else 1.0
    ).run()
    assert set(federation.codes) == {(LIAR, i) for i in factors}
    assert federation.guard.memory.strikes == {LIAR: 1}, "for the third one"
    assert all(federation.factors[LIAR, i] < 0.7 for i in range(7, ROUNDS))
    federation.guard.readmit([LIAR])
    assert not federation.guard.memory.strikes
    assert LIAR not in federation.guard.memory.parts[MODEL].anchors


def test_after_one_refused_retreat_a_site_has_no_more_influence_than_the_others() -> None:
    """It is no offence, but a liar may have hit a round in which its lie looks like training."""
    federation = QuadraticFederation(
        lambda site, i: (1.0, -3.0, 3.0)[(i >= 4) + (i > 4)] if site == LIAR else 1.0
    ).run()
    assert federation.codes == {(LIAR, 4): "update.retreat"}
    assert not federation.guard.memory.strikes
    assert all(federation.factors[LIAR, i] < 0.7 for i in range(5, ROUNDS))
    assert {federation.factors[site, i] for site, i in federation.factors if site != LIAR} == {1.0}
    arrays = federation.guard.memory.to_arrays()
    assert GuardMemory.from_arrays(SITES, arrays).retreats == {LIAR: 1}
    federation.guard.readmit([LIAR])
    assert not federation.guard.memory.retreats


def test_the_check_continues_after_a_restart() -> None:
    federation = QuadraticFederation(reverse_from(4, -2.0))
    federation.run(rounds=5)
    arrays = federation.guard.memory.to_arrays()
    copy = QuadraticFederation(reverse_from(4, -2.0), memory=GuardMemory.from_arrays(SITES, arrays))
    copy.model = federation.model
    copy.run(5)
    federation.run(5)
    assert {key: code for key, code in federation.codes.items() if key[1] >= 5} == copy.codes
    assert np.array_equal(federation.model, copy.model)


def test_evidence_adds_up_and_is_worked_off() -> None:
    way = np.zeros(SKETCH_SIZE)
    way[0] = 2.0
    zero = np.zeros(SKETCH_SIZE)
    anchor = SiteAnchor.start(way, zero)
    assert anchor.pull(way, zero).approach() == 1.0
    assert anchor.pull(-0.5 * way, zero).approach() == -0.5
    assert anchor.pull(way, zero).approach(other_length=4.0) == 0.25, "in steps of the others"
    assert anchor.evidence_with(-0.5) == 0.5 - TOLERANCE
    assert anchor.evidence_with(-0.5, common_loss=0.2) == pytest.approx(0.3 - TOLERANCE)
    later = anchor.add(-0.5 * way, zero, -0.5, 0.25)
    assert np.array_equal(later.model, anchor.model) and later.is_held
    assert later.evidence_with(-0.5) == 0.5
    assert later.evidence_with(0.5) == 0.0
    newest = later.add(-0.5 * way, zero, -0.5, 0.5)
    assert newest.model[0] == 0.5 * 2.0 + 0.5 * -1.0, "half-way to the newest model"
    assert not newest.is_held


def test_heads_whose_labels_are_judged_again_may_respond_a_little() -> None:
    """An honest site was refused in a run on grouped sites: its evidence heads had +0.11."""
    guard = UpdateGuard(load_config(method="fedavg"), GuardMemory(SITES))

    def refuses(part: str, response: float) -> bool:
        row = PartFacts(1.0, response=-0.5)
        facts = [UpdateFacts(site, NUM_SAMPLES, {part: row}, b"") for site in SITES[1:]]
        parts = {MODEL: PartFacts(1.0), part: replace(row, response=response)}
        suspect = UpdateFacts("site-1", NUM_SAMPLES, parts, b"")
        guard.memory.parts[part].motions["site-1"] = SiteMotion.zero()
        try:
            guard.judge(suspect, RoundFacts([suspect, *facts]))
        except UpdateError as error:
            assert error.code == "update.reversed-changes"
            return True
        return False

    assert refuses(MODEL, 0.15) and not refuses(EXTRAS, 0.15)
    assert refuses(EXTRAS, 0.35)


def test_the_usual_norm_falls_with_the_learning_rate() -> None:
    """A site that keeps the norm of its first rounds must not become stronger than the others."""
    train = {"rounds": 10, "lr_steps": [0.5], "lr_decay": 0.1}
    config = build({"method": "fedavg", "train": train, "model": {"frozen": True}})
    guard = UpdateGuard(config, GuardMemory(SITES))
    weights = {"w": np.zeros(SIZE)}
    for round_index in range(5):
        guard.start_round(Payload(round_index, weights), {})
        guard.memory.parts[MODEL].add_level(2.0)
        guard.memory.parts[MODEL].add_norm(LIAR, 3.0)
    assert guard.memory.parts[MODEL].usual_norm(LIAR) == pytest.approx(2.0)
    for _ in range(2):  # a round that is repeated counts once
        guard.start_round(Payload(5, weights), {})
        assert guard.memory.parts[MODEL].usual_norm(LIAR) == pytest.approx(0.2)
    copy = GuardMemory.from_arrays(SITES, guard.memory.to_arrays())
    assert copy.parts[MODEL].usual_norm(LIAR) == pytest.approx(0.2)
    assert copy.parts[MODEL].rate == guard.memory.parts[MODEL].rate
