"""Mixup: what is mixed with what, and with which share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedgsca.methods.parts.mixup import mixup, mixup_cross_entropy
from fedgsca.methods.train import Batch
from fedgsca.rng import stream


def batch(n: int = 6) -> Batch:
    return Batch(torch.eye(n), torch.arange(n) % 3, np.arange(n))


def test_inputs_and_labels_have_the_same_partner_and_share() -> None:
    labels = torch.arange(6)
    mixed, other, lam = mixup(torch.eye(6), labels, 1.0, stream(0, "test"))
    assert 0 < lam < 1
    expected = (
        lam * torch.eye(6) + (1 - lam) * torch.eye(6)[other]
    )  # rows of eye are named by their label
    torch.testing.assert_close(mixed, expected)
    assert sorted(other.tolist()) == labels.tolist(), "partners are a permutation of the batch"


def test_loss_is_the_mixture_of_both_labels_losses() -> None:
    model, data = nn.Linear(6, 3), batch()
    loss = mixup_cross_entropy(1.0, stream(0, "test"))(model, data)
    x, other, lam = mixup(data.x, data.y, 1.0, stream(0, "test"))
    soft = lam * F.one_hot(data.y, 3) + (1 - lam) * F.one_hot(other, 3)
    torch.testing.assert_close(loss, F.cross_entropy(model(x), soft))


def test_shares_vary_between_batches_and_repeat_between_runs() -> None:
    def shares() -> list[float]:
        rng = stream(3, "test")
        return [mixup(torch.eye(4), torch.arange(4), 1.0, rng)[2] for _ in range(5)]

    assert shares() == shares()
    assert len(set(shares())) == 5


def test_alpha_zero_is_plain_cross_entropy() -> None:
    model, data = nn.Linear(6, 3), batch()
    assert mixup_cross_entropy(0.0, stream(0, "test"))(model, data).item() == pytest.approx(
        F.cross_entropy(model(data.x), data.y).item()
    )
