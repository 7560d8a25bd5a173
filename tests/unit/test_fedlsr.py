"""FedLSR: sharpened predictions, the agreement of two views, and its weight over the rounds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgsca.methods.fedlsr import (
    FedLSR,
    FedLSROptions,
    js_divergence,
    label_loss,
    mean_entropy,
    sharpen,
)
from tests.helpers import toy_experiment


def test_sharpening_by_hand() -> None:
    assert sharpen(torch.tensor([[0.5, 0.25, 0.25]]))[0].tolist() == pytest.approx(
        [2 / 3, 1 / 6, 1 / 6]
    )


def test_divergence_by_hand() -> None:
    p, q = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.25, 0.75]])
    assert js_divergence(p, p).item() == pytest.approx(0.0, abs=1e-7)
    kl = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert js_divergence(p, q).item() == pytest.approx(kl / 2, rel=1e-5)  # two classes
    assert mean_entropy(torch.full((3, 4), 0.25)).item() == pytest.approx(math.log(4))


def test_the_two_readings_of_the_loss() -> None:
    p = torch.tensor([[0.8, 0.2]])
    y = torch.tensor([0])
    assert label_loss(p, y, "ce").item() == pytest.approx(-math.log(0.8), rel=1e-5)
    double = math.log(math.exp(0.8) + math.exp(0.2)) - 0.8
    assert label_loss(p, y, "double_softmax").item() == pytest.approx(double, rel=1e-5)


def test_the_weight_of_the_agreement_rises_over_a_fifth_of_the_rounds() -> None:
    method = FedLSR(FedLSROptions(), 100)
    assert [method.agreement_weight(t) for t in (0, 10, 20, 99)] == pytest.approx(
        [0, 0.2, 0.4, 0.4]
    )


@pytest.mark.parametrize("images", [False, True])
def test_it_learns_from_two_views(images: bool, tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedlsr", images=images, noise=(0.0, 0.3), rounds=6)
    state = toy.run(6)
    assert all(np.isfinite(value).all() for value in state.weights.values())
    assert toy.accuracy(state.weights) > (0.25 if images else 0.8)
