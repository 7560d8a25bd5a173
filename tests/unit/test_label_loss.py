"""Robust losses: numbers by hand, ELR's memory, and methods that have a loss of their own."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgsca.config import load_config
from fedgsca.errors import ConfigError
from fedgsca.federation.rounds import run
from fedgsca.methods.base import load_methods
from fedgsca.methods.label_loss import (
    LabelLoss,
    early_learning_penalty,
    generalised_cross_entropy,
    symmetric_cross_entropy,
)
from fedgsca.methods.train import Batch
from tests.helpers import toy_experiment
from tests.toys import outcome, toy_config

# p = 1/2 for class 0, 1/4 each for two others
LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
LABEL = torch.tensor([0])


def test_symmetric_cross_entropy_by_hand() -> None:
    loss = symmetric_cross_entropy(LOGITS, LABEL, alpha=0.1, beta=1.0)
    assert loss.item() == pytest.approx(0.1 * math.log(2) - math.log(1e-4) * 0.5, rel=1e-6)


def test_generalised_cross_entropy_by_hand_and_at_its_limits() -> None:
    assert generalised_cross_entropy(LOGITS, LABEL, 0.7).item() == pytest.approx(
        (1 - 0.5**0.7) / 0.7, rel=1e-6
    )
    assert generalised_cross_entropy(LOGITS, LABEL, 1.0).item() == pytest.approx(0.5)
    assert generalised_cross_entropy(LOGITS, LABEL, 1e-4).item() == pytest.approx(
        math.log(2), abs=1e-3
    )


def test_early_learning_penalty_by_hand() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25]])
    targets = torch.tensor([[0.0, 0.8, 0.0]])
    assert early_learning_penalty(p, targets).item() == pytest.approx(math.log(0.8))


def test_elr_remembers_the_models_opinion_of_every_sample(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, loss="elr", elr_memory=0.7, elr_strength=3.0)
    site = toy.site("site-1")
    loss = LabelLoss(site, 0)
    rows = np.array([5, 2])
    logits = torch.log(torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]]))
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), rows)
    first = loss.of(logits, batch)
    targets = 0.3 * np.array([[0.7, 0.1, 0.1, 0.1], [0.25] * 4])
    assert loss.targets[rows] == pytest.approx(targets, abs=1e-5)
    assert not loss.targets[[0, 1, 3]].any(), "other samples have no opinion yet"
    inner = (targets * np.array([[0.7, 0.1, 0.1, 0.1], [0.25] * 4])).sum(axis=1)
    expected = -np.log([0.7, 0.25]).mean() + 3.0 * np.log(1 - inner).mean()
    assert first.item() == pytest.approx(expected, abs=1e-4)
    loss.save()
    assert LabelLoss(site, 1).targets[rows] == pytest.approx(targets, abs=1e-5)
    assert not LabelLoss(site, 0).targets.any(), "a repeated round sees the memory before it"


@pytest.mark.parametrize("loss", ["sce", "gce", "elr"])
def test_a_run_that_is_stopped_and_resumed_ends_in_the_same_bytes(
    loss: str, tmp_path: Path
) -> None:
    config = toy_config("fedavg", frozen=True, train__loss=loss)
    run(config, tmp_path / "whole")
    run(config, tmp_path / "parts", stop_after=3)
    run(config, tmp_path / "parts")
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "parts")


@pytest.mark.parametrize("method", [n for n, m in load_methods().items() if m.takes_loss])
def test_every_method_that_takes_a_loss_uses_it(method: str, tmp_path: Path) -> None:
    """One round with another loss ends in another model."""
    weights = []
    for loss in ("ce", "gce", "elr"):
        toy = toy_experiment(tmp_path / loss, method, rounds=1, loss=loss)
        weights.append(toy.run(1).weights["head.weight"])
    assert not np.array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])


def test_a_method_with_a_loss_of_its_own_refuses_another_one() -> None:
    with pytest.raises(ConfigError) as error:
        load_config(method="fednoro", train__loss="gce")
    assert error.value.problems[0].code == "config.loss-not-used"
    assert "fedavg" in error.value.problems[0].message
