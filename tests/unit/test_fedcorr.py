"""FedCorr: LID reveals noisy sites, their labels are corrected, and this decides who trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedgsca.methods.fedcorr import (
    FINE_TUNE,
    PRE_PROCESS,
    USUAL,
    FedCorr,
    FedCorrOptions,
    distance,
    noise_level,
    sample_losses,
)
from fedgsca.rng import stream
from fedgsca.wire import Payload
from tests.helpers import toy_experiment

QUICK = {"stage1": 0.4, "stage2": 0.3}  # of 10 rounds: 4, 3, 3
MIXED = (0.0, 0.0, 0.5, 0.5)


def softmax_of_rest(p_own: float, classes: int = 10) -> np.ndarray:
    return np.array([[p_own] + [(1 - p_own) / (classes - 1)] * (classes - 1)])


@pytest.mark.parametrize(("p_own", "loss"), [(1.0, 1.4612), (0.5, 1.9126), (0.0, 2.4031)])
def test_double_softmax_losses(p_own: float, loss: float) -> None:
    assert sample_losses(softmax_of_rest(p_own), np.array([0]), "double_softmax") == pytest.approx(
        [loss], abs=1e-4
    )


def test_double_softmax_is_bounded_where_cross_entropy_is_not() -> None:
    surely_wrong = np.eye(10)[[1]]
    assert sample_losses(surely_wrong, np.array([0]), "double_softmax") == pytest.approx(
        [np.log(np.e + 9)]
    )
    assert sample_losses(surely_wrong, np.array([0]), "ce")[0] > 20


def test_noise_level_is_the_share_of_the_upper_heap() -> None:
    rng = stream(0, "test", "losses")
    losses = np.concatenate([rng.normal(1.5, 0.05, 700), rng.normal(2.2, 0.1, 300)])
    assert noise_level(losses) == pytest.approx(0.3, abs=0.02)
    assert noise_level(np.full(100, 1.7)) == 0.0


def test_distance_has_a_gradient_where_training_starts() -> None:
    model = nn.Linear(2, 2)
    anchor = [parameter.detach().clone() for parameter in model.parameters()]
    torch.autograd.backward(distance(model, anchor))
    assert all(p.grad is not None and bool((p.grad == 0).all()) for p in model.parameters())
    with torch.no_grad():
        model.weight.add_(3.0)
        model.bias.add_(4.0)
    assert distance(model, anchor).item() == pytest.approx(np.sqrt(4 * 9 + 2 * 16))


@pytest.mark.parametrize("rounds", [3, 10, 40, 100])
def test_stages_come_in_order_whatever_the_number_of_rounds(rounds: int) -> None:
    method = FedCorr(FedCorrOptions(), rounds)
    stages = [method._stage(t) for t in range(rounds)]
    assert stages == sorted(stages) and set(stages) == {PRE_PROCESS, FINE_TUNE, USUAL}


def test_corrected_labels_are_closer_to_the_truth(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedcorr", noise=MIXED, samples=100, rounds=10, options=QUICK)
    state = toy.run(10)
    for name, share in zip(sorted(toy.sites), MIXED, strict=True):
        outputs = toy.metrics[name]
        if share:
            assert outputs["label_accuracy_before"] == pytest.approx(0.5)
            assert (outputs["label_accuracy_after"] or 0) > 0.85
        else:
            assert outputs["label_accuracy_after"] == 1.0, "a clean site keeps its labels"
    plain = toy_experiment(tmp_path / "fedavg", noise=MIXED, samples=100, rounds=10)
    assert toy.accuracy(state.weights) >= plain.accuracy(plain.run(10).weights) - 0.01


def test_without_the_verdict_nothing_is_corrected(tmp_path: Path) -> None:
    """The same run, but the server never finds two groups: the labels stay as given."""
    options = {**QUICK, "split_guard": 1e9, "one_group": "clean"}
    toy = toy_experiment(tmp_path, "fedcorr", noise=MIXED, rounds=10, options=options)
    toy.run(10)
    assert [int(u.extras["corrected"]) for u in toy.updates.values()] == [0, 0, 0, 0]


@pytest.mark.parametrize("noise", [MIXED, (0.5, 0.0, 0.0, 0.0), (0.4, 0.0, 0.5, 0.4)])
def test_lid_parts_the_noisy_sites_and_site_and_server_agree(
    tmp_path: Path, noise: tuple[float, ...]
) -> None:
    # with 100 samples a clean site's LID varies by 0.1 from site to site, half the gap;
    # with 200 the groups are well separated
    toy = toy_experiment(tmp_path, "fedcorr", noise=noise, samples=200, rounds=10, options=QUICK)
    state = toy.run(
        5
    )  # the verdict on the last pre-processing round is carried out in the round after it
    boundary = float(state.extras["lid_boundary"])
    by_server = [float(state.extras[f"lid/{name}"]) > boundary for name in sorted(toy.sites)]
    by_site = [float(toy.updates[name].extras["noise_level"]) > 0 for name in sorted(toy.sites)]
    assert by_server == by_site == [share > 0 for share in noise]


def test_only_clean_sites_fine_tune(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedcorr", noise=MIXED, samples=100, rounds=10, options=QUICK)
    old = toy.run(5)
    new = toy.round(old)
    trained = {name: bool(update.extras["trains"]) for name, update in toy.updates.items()}
    assert list(trained.values()) == [True, True, False, False]
    name = "head.weight"
    for site, update in toy.updates.items():
        assert np.array_equal(update.weights[name], old.weights[name]) != trained[site]
    mean = (toy.updates["site-1"].weights[name] + toy.updates["site-2"].weights[name]) / 2
    np.testing.assert_allclose(new.weights[name], mean, rtol=1e-6)
    assert all(update.num_samples == 100 for update in toy.updates.values())


def test_if_no_site_is_clean_all_fine_tune(tmp_path: Path) -> None:
    toy = toy_experiment(
        tmp_path,
        "fedcorr",
        noise=(0.5,) * 4,
        samples=100,
        rounds=10,
        options={**QUICK, "split_guard": 1e9, "one_group": "noisy"},
    )
    toy.run(7)
    assert all(float(u.extras["noise_level"]) > 0.1 for u in toy.updates.values()), (
        "one group: every site judges itself"
    )
    assert all(bool(u.extras["trains"]) for u in toy.updates.values())


def test_a_site_that_misses_the_relabelling_makes_up_for_it(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedcorr", noise=MIXED, samples=100, rounds=10, options=QUICK)
    state = toy.run(4)
    for _ in range(4):  # all of fine-tuning and the first round of usual training
        state = toy.round(state, absent=["site-4"])
    toy.run(2, state)
    assert (toy.metrics["site-4"]["label_accuracy_after"] or 0) > 0.8


def test_overrides_persist_and_the_given_labels_are_never_touched(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedcorr", noise=MIXED, samples=100, rounds=10, options=QUICK)
    given = toy.sites["site-3"].labels.copy()
    state = toy.run(9)
    old = toy.notes["site-3"]["corrected"]
    toy.run(1, state)
    np.testing.assert_array_equal(toy.notes["site-3"]["corrected"], old)
    np.testing.assert_array_equal(toy.sites["site-3"].labels, given)


def test_the_proximal_term_holds_noisy_sites_back(tmp_path: Path) -> None:
    def moved(**options: object) -> float:
        toy = toy_experiment(
            tmp_path / str(options), "fedcorr", noise=MIXED, rounds=10, options={**QUICK, **options}
        )
        state = toy.run(3)
        payload = toy.method.broadcast(state, state.round)
        return float(
            np.linalg.norm(
                toy.run_round("site-3", payload).weights["head.weight"]
                - payload.weights["head.weight"]
            )
        )

    free = moved(beta=0.0)
    assert moved(beta=5.0, prox="squared") < free
    # a step of more than twice the distance would double it each time; the guard then refuses it
    assert moved(beta=5000.0, prox="squared") < free
    assert (
        moved(beta=0.5, prox="norm") < free
    )  # a norm pulls with the same force however near: more would overshoot


def test_works_on_images(tmp_path: Path) -> None:
    toy = toy_experiment(
        tmp_path,
        "fedcorr",
        noise=MIXED,
        samples=24,
        rounds=4,
        images=True,
        options={"stage1": 0.25, "stage2": 0.25},
    )
    state = toy.run(4)
    assert int(state.extras["stage"]) == USUAL
    assert isinstance(toy.method.broadcast(state, 4), Payload)
