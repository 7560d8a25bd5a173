"""Our FedCorr against the published main loop, written again, on the same arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.oracles.fedcorr_loop import Client, Hyper, MainLoop, Outcome, lid_terms
from fedgsca.methods.parts.statistics import mean_lid
from fedgsca.rng import stream
from tests.helpers import CLASSES, Toy, toy_experiment

NOISE = (0.0, 0.0, 0.5, 0.5)
ROUNDS = 10
STAGES = {"stage1": 0.4, "stage2": 0.3}


def run_loop(toy: Toy, clients_at_once: int) -> Outcome:
    clients = []
    for name in sorted(toy.sites):
        samples = toy.sites[name]
        clients.append(Client(torch.from_numpy(samples.inputs), samples.labels.copy()))
    head = nn.Linear(toy.width, CLASSES)
    weights = toy.start().weights
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weights["head.weight"]))
        head.bias.copy_(torch.from_numpy(weights["head.bias"]))
    train = toy.hyper
    hyper = Hyper(4, 3, 3, lr=train.rate, batch=train.batch_size, clients_at_once=clients_at_once)
    loop = MainLoop(clients, head, hyper, seed=0)
    return loop.run(torch.from_numpy(toy.test.inputs), toy.test.labels)


def test_lids_agree_with_the_published_estimate() -> None:
    """The published constants of 1e-6 change the mean by a few percent at most."""
    probs = stream(0, "softmax").dirichlet(np.ones(6), 300)
    assert mean_lid(probs) == pytest.approx(lid_terms(probs).mean(), rel=0.03)


def test_verdicts_and_corrections_are_those_of_the_published_loop(tmp_path: Path) -> None:
    """On an easy problem both find the noisy sites and correct nearly all of their labels."""
    toy = toy_experiment(
        tmp_path, "fedcorr", noise=NOISE, samples=200, rounds=ROUNDS, options=STAGES
    )
    theirs = run_loop(toy, clients_at_once=4)
    state = toy.run(ROUNDS)
    ours = [float(toy.updates[name].extras["noise_level"]) for name in sorted(toy.sites)]
    assert [level > 0 for level in ours] == [bool(level > 0) for level in theirs.levels[-1]]
    for name, labels in zip(sorted(toy.sites), theirs.labels, strict=True):
        accuracy = float(np.mean(labels == toy.truth[name]))
        our_accuracy = toy.metrics[name]["label_accuracy_after"]
        assert our_accuracy == pytest.approx(accuracy, abs=0.08)
    assert 100 * toy.accuracy(state.weights) == pytest.approx(theirs.score, abs=5)


def test_one_after_the_other_a_clean_site_can_look_noisy(tmp_path: Path) -> None:
    """As published: the LID of a site then depends on its position, and here on nothing else."""
    toy = toy_experiment(tmp_path, "fedcorr", noise=NOISE, samples=200, rounds=ROUNDS)
    theirs = run_loop(toy, clients_at_once=1)
    is_noisy = np.array(NOISE) > 0
    assert any(((levels > 0) != is_noisy).any() for levels in theirs.levels)
