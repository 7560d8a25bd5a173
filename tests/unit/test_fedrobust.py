"""FedRobust: an adversary that stays within bounds, survives a restart, and can be disabled."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsca.methods.fedrobust import Affine, FedRobustOptions
from fedgsca.methods.train import batches, cross_entropy
from tests.helpers import Toy, toy_experiment

STILL = {"matrix_radius": 0.0, "shift_radius": 0.0}


def loss_of(toy: Toy, name: str, memory: dict[str, np.ndarray]) -> float:
    """Loss of the toy's model on all of a site's samples, seen through the map in `memory`."""
    site = toy.site(name)
    affine = Affine(FedRobustOptions(), site, memory)
    with torch.no_grad():
        model = site.model.eval()
        result = [
            cross_entropy(model, replace(batch, x=affine(batch.x))) for batch in batches(site, 0)
        ]
    return float(torch.stack(result).mean())


@pytest.mark.parametrize("images", [False, True])
def test_with_radii_zero_it_is_fedavg_to_the_byte(tmp_path: Path, images: bool) -> None:
    rounds = 2 if images else 4
    size: dict[str, Any] = {"images": images, "noise": (0.0, 0.5), "samples": 30}
    plain = toy_experiment(tmp_path / "a", "fedavg", **size).run(rounds)
    still = toy_experiment(tmp_path / "b", "fedrobust", options=STILL, **size).run(rounds)
    moved = toy_experiment(tmp_path / "c", "fedrobust", **size).run(rounds)
    for name, value in plain.weights.items():
        assert still.weights[name].tobytes() == value.tobytes(), name
    assert any(
        moved.weights[name].tobytes() != value.tobytes() for name, value in plain.weights.items()
    )


@pytest.mark.parametrize("images", [False, True])
def test_one_ascent_step_raises_the_loss_of_the_batch(tmp_path: Path, images: bool) -> None:
    site = toy_experiment(tmp_path, "fedrobust", images=images).site("site-1")
    options = FedRobustOptions(matrix_lr=0.01, shift_lr=0.01)
    affine, batch = Affine(options, site, {}), next(iter(batches(site, 0)))
    site.model.eval()

    def loss() -> torch.Tensor:
        return cross_entropy(site.model, replace(batch, x=affine(batch.x)))

    old = loss()
    torch.autograd.backward(old)
    affine.ascend()
    assert loss().item() > old.item()


def test_the_map_found_in_training_makes_the_sites_own_data_harder(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedrobust", noise=(0.0, 0.0), options={"feature_unit": 1.0})
    toy.run(6)
    for name in toy.sites:
        memory = dict(toy.site(name).recall(99))
        assert loss_of(toy, name, memory) > loss_of(toy, name, {}) + 0.005


def test_the_map_stays_within_its_radii_and_never_leaves(tmp_path: Path) -> None:
    strong = {"matrix_lr": 5.0, "shift_lr": 5.0, "matrix_penalty": 0.0, "shift_penalty": 0.0}
    toy = toy_experiment(
        tmp_path, "fedrobust", images=True, noise=(0.0, 0.4), samples=30, options=strong
    )
    state = toy.run(2)
    memory = toy.site("site-1").recall(99)
    assert memory["matrix"].shape == (3, 3) and memory["shift"].shape == (3,)
    assert float(np.linalg.norm(memory["matrix"])) == pytest.approx(0.4, rel=1e-4)
    assert float(np.linalg.norm(memory["shift"])) == pytest.approx(0.2, rel=1e-4)
    assert all(
        not update.extras and set(update.weights) == set(state.weights)
        for update in toy.updates.values()
    )


def test_the_map_survives_a_restart_and_matters(tmp_path: Path) -> None:
    everything = toy_experiment(tmp_path / "a", "fedrobust").run(4)
    half = toy_experiment(tmp_path / "b", "fedrobust").run(2)
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    restarted = toy_experiment(tmp_path / "b", "fedrobust").run(2, half)
    for site in (tmp_path / "c").iterdir():
        shutil.rmtree(site)
    forgot = toy_experiment(tmp_path / "c", "fedrobust").run(2, half)
    name = "head.weight"
    assert restarted.weights[name].tobytes() == everything.weights[name].tobytes()
    assert forgot.weights[name].tobytes() != everything.weights[name].tobytes()


def test_a_gradient_that_is_not_finite_leaves_the_map_alone(tmp_path: Path) -> None:
    affine = Affine(FedRobustOptions(), toy_experiment(tmp_path, "fedrobust").site("site-1"), {})
    affine.shift.grad = torch.full_like(affine.shift, torch.nan)
    affine.ascend()
    assert not affine.shift.any()


def test_equal_weights_ignore_the_number_of_samples(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedrobust", options={"weights": "equal"})
    state = toy.start()
    toy.round(state)
    updates = [
        replace(u, num_samples=n)
        for u, n in zip(toy.updates.values(), (1, 10, 100, 1000), strict=True)
    ]
    result = toy.method.aggregate(state, iter(updates)).weights["head.bias"]
    assert result == pytest.approx(
        np.mean([u.weights["head.bias"] for u in updates], axis=0), abs=1e-6
    )
