"""FedNoRo: verdicts shared without names, weights by distance, distillation at noisy sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgsca.methods.fednoro import FedNoRo, FedNoRoOptions
from fedgsca.methods.parts.two_stages import distance_weights, grouping, is_noisy
from fedgsca.methods.site import Samples
from fedgsca.methods.train import Batch
from tests.helpers import CLASSES, Toy, toy_experiment

QUICK = {"warmup": 4}


def verdicts(toy: Toy) -> list[int]:
    return [int(update.extras["noisy"]) for _, update in sorted(toy.updates.items())]


def test_weight_of_the_teacher_over_the_rounds() -> None:
    method = FedNoRo(FedNoRoOptions(), 100)
    weights = [method.teacher_weight(t) for t in (10, 30, 49)]
    assert weights == pytest.approx([0.0054, 0.2442, 0.8], abs=5e-5)


def test_weights_with_one_noisy_site_of_four() -> None:
    models = [{"w": np.array([float(k), 0.0])} for k in (0, 1, 2, 9)]
    weights = np.array(distance_weights(models, [50] * 4, [False, False, False, True]))
    assert weights[:3] / weights.sum() == pytest.approx(1 / (3 + np.exp(-1)))


def test_the_nearer_of_two_noisy_sites_weighs_more() -> None:
    models = [{"w": np.array([float(k)])} for k in (0, 1, 3, 9)]
    weights = distance_weights(models, [10, 10, 10, 10], [False, False, True, True], "flat")
    assert weights == pytest.approx([10, 10, 10 * np.exp(-2 / 8), 10 * np.exp(-1)])


@pytest.mark.parametrize("noisy", [[True] * 3, [False] * 3])
def test_with_one_kind_of_site_the_weights_are_fedavgs(noisy: list[bool]) -> None:
    assert distance_weights([{"w": np.array([float(k)])} for k in range(3)], [1, 2, 3], noisy) == [
        1.0,
        2.0,
        3.0,
    ]


def test_equal_models_do_not_divide_by_zero() -> None:
    assert distance_weights([{"w": np.ones(3)}] * 2, [5, 5], [False, True]) == [5.0, 5.0]


def test_grouping_fills_absent_classes_and_survives_classes_that_say_nothing() -> None:
    losses = np.array(
        [
            [0.1, 0.2, 0.5, np.nan],
            [0.2, np.nan, 0.5, np.nan],  # an absent class counts as the lowest loss of that class
            [0.9, 1.1, 0.5, np.nan],  # class 2 is the same everywhere, class 3 is nowhere
        ]
    )
    rule = grouping(losses)
    assert all(np.isfinite(value).all() for value in rule.values())
    assert [is_noisy(row, rule) for row in losses] == [False, False, True]


@pytest.mark.parametrize(
    "losses", [np.full((4, 3), 0.7), np.array([[0.2, 0.9, 0.1]]), np.full((4, 3), np.nan)]
)
def test_sites_that_cannot_be_told_apart_are_all_clean(losses: np.ndarray) -> None:
    rule = grouping(losses)
    assert not any(is_noisy(row, rule) for row in losses)


@pytest.mark.parametrize(
    "noise", [(0.0, 0.0, 0.5, 0.5), (0.5, 0.0, 0.0, 0.0), (0.4, 0.5, 0.0, 0.4)]
)
def test_it_flags_the_noisy_sites(tmp_path: Path, noise: tuple[float, ...]) -> None:
    toy = toy_experiment(tmp_path, "fednoro", noise=noise, options=QUICK)
    toy.run(6)
    assert verdicts(toy) == [int(share > 0) for share in noise]


def test_site_and_server_come_to_the_same_verdict_and_keep_it(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fednoro", options=QUICK)
    state = toy.run(5)  # the fifth round is the switch
    at_server = [
        int(is_noisy(u.extras["class_losses"], state.extras)) for u in toy.updates.values()
    ]
    for _ in range(3):
        state = toy.round(state)
        assert verdicts(toy) == at_server


def test_what_is_sent_carries_no_site_and_no_sample(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fednoro", options=QUICK)
    state, sent = toy.start(), []
    for _ in range(6):
        state = toy.round(state)
        sent.append(set(next(iter(toy.updates.values())).extras))
    assert sent == [set()] * 4 + [{"class_losses"}, {"noisy"}]
    assert {name: value.shape for name, value in state.extras.items()} == {
        "low": (4,),
        "high": (4,),
        "centres": (2, 4),
    }


def test_a_site_that_was_away_at_the_switch_judges_itself_later(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fednoro", noise=(0.0, 0.0, 0.5, 0.5), options=QUICK)
    state = toy.round(toy.run(4), absent=["site-1", "site-4"])
    toy.run(2, state)
    assert verdicts(toy) == [0, 0, 1, 1]


def test_nobody_at_the_switch_postpones_it(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fednoro", options=QUICK)
    state = toy.round(toy.run(4), absent=list(toy.sites))
    assert not state.extras
    toy.run(2, state)
    assert verdicts(toy) == [0, 0, 1, 1]


def test_noisy_sites_count_less_from_the_switch_on(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fednoro", noise=(0.0, 0.0, 0.0, 0.5), options=QUICK)
    state = toy.run(5)
    models = [u.weights["head.weight"].astype(np.float64) for u in toy.updates.values()]
    shares = np.array([1.0, 1.0, 1.0, np.exp(-1)])
    assert state.weights["head.weight"] == pytest.approx(
        np.tensordot(shares / shares.sum(), models, axes=1), abs=1e-6
    )


def test_distillation_acts_at_noisy_sites_only(tmp_path: Path) -> None:
    """A heavy teacher holds a noisy site near the received model; a clean site does not notice."""
    moved = {}
    for strength in (0.0, 1.0):
        toy = toy_experiment(
            tmp_path / str(strength),
            "fednoro",
            rounds=10,
            options={"warmup": 4, "strength": strength},
        )
        state = toy.run(5)
        toy.round(replace(state, round=8))  # beyond the end of the ramp
        moved[strength] = {
            name: float(np.linalg.norm(u.weights["head.weight"] - state.weights["head.weight"]))
            for name, u in toy.updates.items()
        }
    for name in ("site-3", "site-4"):
        assert moved[1.0][name] < 0.7 * moved[0.0][name]
    for name in ("site-1", "site-2"):
        assert moved[1.0][name] == moved[0.0][name]


def test_the_adjusted_loss_counts_a_rare_class_more(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fednoro")
    labels = np.array([0] * 57 + [1] * 3)
    toy.sites["site-1"] = Samples(toy.sites["site-1"].inputs, labels, CLASSES)
    site = toy.site("site-1")
    objective = toy.method._objective(site, 0.0)  # type: ignore[attr-defined]
    undecided = torch.nn.Linear(16, CLASSES)
    torch.nn.init.zeros_(undecided.weight)
    torch.nn.init.zeros_(undecided.bias)
    one = torch.zeros(1, 16)
    losses = [
        objective(undecided, Batch(one, torch.tensor([c]), np.array([0]))).item() for c in (0, 1)
    ]
    assert losses[1] - losses[0] == pytest.approx(np.log(57 / 3), rel=1e-5)


@pytest.mark.parametrize(
    "labels", [np.full(20, 2), np.array([0, 1, 1, 3, 3]), np.array([], dtype=np.int64)]
)
def test_odd_sites_pass_through_all_stages(tmp_path: Path, labels: np.ndarray) -> None:
    toy = toy_experiment(tmp_path, "fednoro", options=QUICK)
    first = toy.sites["site-1"]
    toy.sites["site-1"] = Samples(first.inputs[: len(labels)], labels.astype(np.int64), CLASSES)
    toy.truth["site-1"] = labels
    state = toy.run(7)
    assert all(np.isfinite(value).all() for value in state.weights.values())
    assert [int(toy.updates[name].extras["noisy"]) for name in ("site-3", "site-4")] == [1, 1]


def test_says_nothing_about_a_class_with_a_few_images(tmp_path: Path) -> None:
    """The mean over one image would be that image's own loss."""
    toy = toy_experiment(tmp_path, "fednoro", options={"warmup": 0})
    everything = toy.sites["site-1"]
    rows = np.flatnonzero((everything.labels != 2) | (np.cumsum(everything.labels == 2) <= 4))
    toy.sites["site-1"] = replace(
        everything, inputs=everything.inputs[rows], labels=everything.labels[rows]
    )
    toy.truth["site-1"] = toy.truth["site-1"][rows]
    sent = toy.run_round("site-1", toy.method.broadcast(toy.start(), 0)).extras["class_losses"]
    assert np.isfinite(sent).tolist() == [True, True, False, True]
