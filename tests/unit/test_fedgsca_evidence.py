"""FedGSCA with evidence heads beside it, on clouds of points with known wrong labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsca.config import TrainConfig
from fedgsca.credal import rcl_loss, ucl_loss
from fedgsca.evidence import Heads, train_heads
from fedgsca.methods.fedgsca import FedGSCA
from fedgsca.methods.parts.evidence_heads import add_evidence_heads
from fedgsca.methods.parts.fedgsca_options import FedGSCAOptions
from fedgsca.methods.parts.fedgsca_steps import bound_rate
from fedgsca.rng import stream
from fedgsca.site import LabelEvidence
from fedgsca.wire import SMALLEST_GROUP
from tests.helpers import CLASSES, Toy, toy_experiment

COLLECTION_ROUNDS = range(4, 11, 5)  # the posterior exists from round 6 on


def toy_with_heads(folder: Path, samples: int = 120, **options: Any) -> Toy:
    toy = toy_experiment(folder, "fedgsca", samples=samples, rounds=16, options=options)
    toy.method = add_evidence_heads(toy.method, COLLECTION_ROUNDS)
    return toy


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    toy = toy_with_heads(tmp_path_factory.mktemp("toy"))
    toy.run(16)
    return toy


def test_noisy_sites_are_recognised_and_their_wrong_labels_flagged(finished: Toy) -> None:
    for name in ("site-1", "site-2"):
        assert finished.updates[name].extras["delta"] < 0.1
    for name in ("site-3", "site-4"):
        delta = float(finished.updates[name].extras["delta"])
        assert delta == pytest.approx(0.5, abs=0.1)
        wrong = finished.truth[name] != finished.sites[name].labels
        clean = finished.notes[name]["clean"]
        assert np.mean(clean == ~wrong) > 0.9


def test_pseudo_labels_are_the_true_classes(finished: Toy) -> None:
    for name in ("site-3", "site-4"):
        rows = finished.notes[name]["pseudo_rows"]
        assert len(rows) > 20
        labels = finished.notes[name]["pseudo_labels"]
        assert np.mean(labels == finished.truth[name][rows]) > 0.9


def test_training_counts_are_sent_and_come_back_as_a_sum(finished: Toy, tmp_path: Path) -> None:
    toy = toy_with_heads(tmp_path)
    state = toy.run(8)
    counts = [update.extras["evidence.training_counts"] for update in toy.updates.values()]
    assert all(np.nanmin(count) >= SMALLEST_GROUP for count in counts)
    payload = toy.method.broadcast(state, state.round)
    np.testing.assert_allclose(payload.extras["evidence.training_counts"], np.sum(counts, axis=0))


def test_before_the_first_posterior_all_labels_are_used(tmp_path: Path) -> None:
    toy = toy_with_heads(tmp_path)
    toy.run(COLLECTION_ROUNDS[0] + 2)
    for name, update in toy.updates.items():
        assert "clean" not in toy.notes[name]
        assert update.extras["clean"] == 120
        assert np.isnan(update.extras["selector"]).all()
        assert "evidence.training_counts" not in update.extras


def test_heads_are_sent_until_the_round_after_the_last_collection(tmp_path: Path) -> None:
    toy = toy_with_heads(tmp_path)
    state = toy.run(COLLECTION_ROUNDS[-1] + 2)
    assert all("evidence.weight" in update.extras for update in toy.updates.values())
    toy.run(1, state)
    assert not any("evidence.weight" in update.extras for update in toy.updates.values())


def test_where_the_images_say_nothing_all_labels_are_used(tmp_path: Path) -> None:
    toy = toy_with_heads(tmp_path, samples=400)
    for name, samples in toy.sites.items():
        order = stream(0, "order", name).permutation(len(samples))
        toy.sites[name] = replace(samples, inputs=samples.inputs[order])
    toy.run(14)
    for update in toy.updates.values():
        assert update.extras["fallback"] == 1
        assert update.extras["clean"] == 400
        assert update.extras["pseudo"] == 0


def test_where_the_images_say_something_the_fallback_is_not_used(finished: Toy) -> None:
    for update in finished.updates.values():
        assert update.extras.get("fallback", 0) == 0


def test_received_losses_ignore_the_heads(tmp_path: Path) -> None:
    options: dict[str, Any] = {"selector": {"losses_of": "received"}}
    with_heads = toy_with_heads(tmp_path / "on", **options)
    without = toy_experiment(tmp_path / "off", "fedgsca", samples=120, rounds=16, options=options)
    one, other = with_heads.run(9), without.run(9)
    for name, value in one.weights.items():
        assert np.array_equal(value, other.weights[name])


def test_class_balance_and_pseudo_labels_are_options(tmp_path: Path) -> None:
    plain = toy_with_heads(tmp_path / "a", class_balance=0.0)
    plain.run(8)
    bare = toy_with_heads(tmp_path / "b", pseudo_labels=False)
    bare.run(8)
    assert all(update.extras["pseudo"] == 0 for update in bare.updates.values())
    assert any(update.extras["pseudo"] > 0 for update in plain.updates.values())


@pytest.mark.parametrize("loss", [rcl_loss, ucl_loss])
def test_a_confident_model_may_only_add_classes_that_the_evidence_permits(loss: Any) -> None:
    logits = torch.zeros(2, CLASSES)
    logits[:, 1] = 6.0  # both samples look like class 1
    labels = torch.tensor([0, 0])
    permission = torch.ones(2, CLASSES, dtype=torch.bool)
    permission[1, 1] = False
    losses = loss(logits, labels, beta=0.75, reduction="none", permission=permission)
    assert losses[0] == 0
    only_given = loss(logits, labels, beta=2.0, reduction="none")
    assert losses[1] == only_given[1] > 1


@pytest.mark.parametrize(
    ("rounds", "num_sites", "lr", "momentum", "expected"),
    [
        (60, 4, 0.05, 0.0, 10 * 32 * 4 / 60),  # the upper bound
        (60, 2, 0.05, 0.0, 10 * 32 * 4 / 60),  # few sites count as four
        (60, 4, 0.001, 0.0, 5 * 32 * 4 / 60),  # the lower bound
        (60, 4, 0.012, 0.0, 0.012 * 1280),  # between them
        (120, 4, 0.05, 0.0, 10 * 32 * 4 / 120),  # twice as long, half as large
        (60, 16, 0.05, 0.0, 10 * 32 * 8 / 60),  # the mean of four times as many sites
        (60, 1000, 5.0, 0.0, 10 * 32 * 20 / 60),
        (10, 20, 0.001, 0.0, 40.0),  # never raised beyond this
        (60, 4, 0.05, 0.9, 10 * 32 * 4 / 60 * 0.1),
    ],
)
def test_the_steps_on_frozen_features_are_bounded(
    rounds: int, num_sites: int, lr: float, momentum: float, expected: float
) -> None:
    """`expected` is the learning rate times the number of features."""
    train = TrainConfig(rounds=rounds, lr=lr, momentum=momentum, batch_size=32)
    rate = bound_rate(train, rounds, width=1280, num_sites=num_sites)
    assert rate * 1280 == pytest.approx(expected)


def test_more_local_epochs_and_smaller_batches_mean_smaller_steps() -> None:
    train = TrainConfig(lr=0.05, momentum=0.0, batch_size=16, epochs=2)
    usual = TrainConfig(lr=0.05, momentum=0.0, batch_size=32, epochs=1)
    rates = [bound_rate(settings, 60, 1280, 4) for settings in (train, usual)]
    assert rates[0] == pytest.approx(rates[1] / 4)


def test_the_heads_of_many_sites_take_larger_steps() -> None:
    """The mean over the sites makes them smaller again."""
    features = np.eye(4, 8, dtype=np.float32)
    targets, weights = np.eye(2)[[0, 1, 0, 1]], np.ones(4)
    biases = {}
    for num_sites in (1, 4, 16, 100, 1000):
        heads = train_heads(
            Heads.zeros(8, 2),
            features,
            targets,
            weights,
            np.arange(4),
            np.arange(3),
            num_sites=num_sites,
        )
        biases[num_sites] = heads.bias
    assert np.array_equal(biases[1], biases[4])
    np.testing.assert_allclose(biases[16], 2 * biases[4], rtol=1e-6)
    assert np.array_equal(biases[100], biases[1000])


def test_a_site_whose_heads_explain_less_than_plain_training_did_uses_all_labels() -> None:
    method = FedGSCA(FedGSCAOptions(), 10)
    posterior = np.full((4, 2), 0.5)
    evidence = LabelEvidence(posterior, share_explained=0.20, plain_explained=0.21)
    assert not method._explains_too_little(evidence)
    assert method._explains_too_little(replace(evidence, plain_explained=0.25))
    assert method._explains_too_little(replace(evidence, share_explained=0.005))


@pytest.mark.parametrize("bounds", [(40.0, 20.0), (0.0, 1.0), (-1.0, 1.0)])
def test_bounds_of_the_step_are_positive_and_in_order(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="smaller one first"):
        FedGSCAOptions(step_bounds=bounds)
