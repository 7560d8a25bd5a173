"""FedELC and MaskedOptim: labels that are learned, the mask, and the geometric median."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgsca.methods.fedelc import (
    CorrectionSettings,
    correction_loss,
    initial_logits,
    merged_logits,
)
from fedgsca.methods.maskedoptim import (
    geometric_median,
    median_model,
    pull_towards,
    small_loss_mask,
)
from tests.helpers import Toy, toy_experiment

QUICK = {"warmup": 6}
SETTINGS = CorrectionSettings(scale=10.0, rate=1000.0, given_weight=0.5, entropy_weight=0.2)


def test_the_loss_by_hand() -> None:
    """p = (3/4, 1/4), d = (1/2, 1/2), given label 0."""
    logits = torch.log(torch.tensor([[0.75, 0.25]]))
    labels = torch.zeros(1, 2)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    agreement = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    for weight in (1.0, 0.0):
        loss = correction_loss(
            logits, labels, torch.tensor([0]), SETTINGS, torch.full((1,), weight)
        )
        given = weight * math.log(2)
        assert loss.item() == pytest.approx(
            agreement / 2 + 0.5 * given + 0.2 * entropy / 2, rel=1e-5
        )


def test_labels_move_towards_a_confident_prediction() -> None:
    """The gradient of the agreement with u is d - p; that of the given label is d - y."""
    p = torch.tensor([[0.9, 0.1]])
    u = torch.zeros(1, 2, requires_grad=True)
    loss = correction_loss(torch.log(p), u, torch.tensor([1]), SETTINGS, torch.ones(1))
    (gradient,) = torch.autograd.grad(loss, u)
    d = torch.full((1, 2), 0.5)
    expected = (d - p) / 2 + 0.5 * (d - torch.tensor([[0.0, 1.0]]))
    assert gradient.numpy() == pytest.approx(expected.numpy(), abs=1e-6)


def test_initial_and_merged_labels() -> None:
    u = initial_logits(np.array([1, 0]), 2, 10.0)
    assert u.tolist() == [[0.0, 10.0], [10.0, 0.0]]
    merged = merged_logits(np.zeros((1, 2), np.float32), np.array([[0.8, 0.2]]), 10.0)
    assert merged[0] == pytest.approx([6.5, 3.5])


def test_the_mask_keeps_the_smallest_losses() -> None:
    logits = torch.tensor([[4.0, 0.0], [3.0, 0.0], [-2.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    mask = small_loss_mask(logits, torch.zeros(5, dtype=torch.int64), 0.8)
    assert mask.tolist() == [1.0, 1.0, 0.0, 1.0, 1.0]


def test_the_geometric_median_ignores_one_far_model() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [100.0, 100.0]])
    median = geometric_median(points, np.full(4, 0.25))
    assert np.linalg.norm(median) < 1.5
    assert geometric_median(points[:1], np.ones(1)) == pytest.approx(points[0])


def test_the_median_keeps_types_and_takes_the_largest_counter() -> None:
    models = []
    for value in (1.0, 2.0, 3.0):
        weights = {"w": np.full((2, 2), value, np.float32), "n": np.array(int(value))}
        models.append(weights)
    for scope in ("tensors", "model"):
        model = median_model(models, np.full(3, 1 / 3), scope)  # type: ignore[arg-type]
        assert model["w"].dtype == np.float32 and model["w"].shape == (2, 2)
        assert model["w"] == pytest.approx(np.full((2, 2), 2.0), abs=1e-3)
        assert int(model["n"]) == 3


def test_a_noisy_site_is_pulled_towards_the_received_model() -> None:
    weights = {"w": np.array([1.0], np.float32), "n": np.array(5)}
    received = {"w": np.array([0.0], np.float32), "n": np.array(1)}
    result = pull_towards(weights, received, 0.2)
    assert result["w"] == pytest.approx([0.8]) and int(result["n"]) == 5


def noisy_sites(toy: Toy) -> list[int]:
    return [int(update.extras["noisy"]) for _, update in sorted(toy.updates.items())]


@pytest.mark.parametrize("method", ["fedelc", "maskedoptim"])
def test_noisy_sites_correct_labels_and_clean_ones_do_not(method: str, tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, method, options=QUICK, rounds=20, lr=0.2)
    state = toy.run(20)
    assert noisy_sites(toy) == [0, 0, 1, 1]
    corrections = [int(update.extras["corrected"]) for _, update in sorted(toy.updates.items())]
    assert corrections[:2] == [0, 0] and min(corrections[2:]) > 0
    for name in ("site-3", "site-4"):
        before = np.mean(toy.sites[name].labels == toy.truth[name])
        after = np.mean(toy.notes[name]["corrected"] == toy.truth[name])
        assert after > before + 0.1, "learned labels are better than the given ones"
    assert toy.accuracy(state.weights) > 0.95
