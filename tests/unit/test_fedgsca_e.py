"""FedGSCA-E on clouds of points with known wrong labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsca.config import load_config
from fedgsca.credal import rcl_loss, ucl_loss
from fedgsca.errors import ConfigError
from fedgsca.evidence import Heads, estimate_transition, train_heads
from fedgsca.methods.fedgsca_e import plausibility
from fedgsca.methods.parts.evidence_heads import MethodWithHeads
from fedgsca.methods.parts.evidence_store import NOTE_PREFIX, read_arrays
from fedgsca.methods.train import draw_weighted
from fedgsca.rng import stream
from tests.helpers import CLASSES, Toy, clouds, toy_experiment

RENEWAL_ROUNDS = range(4, 11, 5)  # the posterior exists from round 4 on


def toy_with_heads(folder: Path, samples: int = 120, **options: Any) -> Toy:
    toy = toy_experiment(folder, "fedgsca-e", samples=samples, rounds=16, options=options)
    toy.method = MethodWithHeads(toy.method, RENEWAL_ROUNDS)
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
        assert delta == pytest.approx(0.4, abs=0.15)
        wrong = finished.truth[name] != finished.sites[name].labels
        clean = finished.notes[name]["clean"]
        assert np.mean(clean == ~wrong) > 0.75


def test_before_the_first_posterior_all_labels_are_used(tmp_path: Path) -> None:
    toy = toy_with_heads(tmp_path)
    toy.run(RENEWAL_ROUNDS[0])
    for name, update in toy.updates.items():
        assert "clean" not in toy.notes[name]
        assert update.extras["clean"] == 120


def test_heads_are_sent_until_the_last_renewal(tmp_path: Path) -> None:
    toy = toy_with_heads(tmp_path)
    state = toy.run(RENEWAL_ROUNDS[-1] + 1)
    assert all("evidence.weight" in update.extras for update in toy.updates.values())
    toy.run(1, state)
    assert not any("evidence.weight" in update.extras for update in toy.updates.values())


def shifted_toy(folder: Path) -> Toy:
    """Four sites with correct labels; the images of the last one look more like class 0."""
    toy = toy_experiment(folder, "fedavg", noise=(0.0,) * 4, samples=120, rounds=16)
    toy.method = MethodWithHeads(toy.method, range(4, 5))
    offset = clouds(np.zeros(1, np.int64), stream(0, "offset"), spread=0.0) * 1.5
    samples = toy.sites["site-4"]
    toy.sites["site-4"] = replace(samples, inputs=samples.inputs + offset)
    return toy


def test_images_that_look_different_are_no_label_noise(tmp_path: Path) -> None:
    """The same opinions, divided by the mean opinion of all sites, would accuse the site."""
    toy = shifted_toy(tmp_path)
    toy.run(5)
    judgements = {}
    for name, notes in toy.notes.items():
        arrays = {key.removeprefix(NOTE_PREFIX): array for key, array in notes.items()}
        judgements[name] = read_arrays(arrays).judgements["federation"]
        assert judgements[name].transition(toy.sites[name].labels).wrong_share < 0.1
    labels = toy.sites["site-4"].labels
    shares = np.mean([judgement.opinion()[1] for judgement in judgements.values()], axis=0)
    opinion, _ = judgements["site-4"].opinion()
    assert estimate_transition(opinion, labels, shares).wrong_share > 0.12


def test_where_the_images_say_nothing_all_labels_are_used(tmp_path: Path) -> None:
    toy = toy_with_heads(tmp_path, samples=400)
    for name, samples in toy.sites.items():
        order = stream(0, "order", name).permutation(len(samples))
        toy.sites[name] = replace(samples, inputs=samples.inputs[order])
    toy.run(14)
    for update in toy.updates.values():
        assert update.extras["fallback"] == 1
        assert update.extras["clean"] == 400


def test_where_the_images_say_something_the_fallback_is_not_used(finished: Toy) -> None:
    for update in finished.updates.values():
        assert update.extras.get("fallback", 0) == 0


def test_a_run_too_short_for_heads_trains_on_the_given_labels(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedgsca-e", samples=120, rounds=5)
    state = toy.run(5)
    assert all(update.extras["clean"] == 120 for update in toy.updates.values())
    assert toy.accuracy(state.weights) > 0.5


def test_under_privacy_it_is_refused_with_a_fix() -> None:
    with pytest.raises(ConfigError) as error:
        load_config(method="fedgsca-e", privacy__clip=1.0)
    assert [problem.code for problem in error.value.problems] == ["config.privacy-without-evidence"]
    assert "method=fedgsca" in error.value.problems[0].message


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


def test_plausibility_by_hand() -> None:
    """A label is doubted if it is implausible both as classes are and if they were equal."""
    posterior = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.6, 0.4]])
    shares = np.array([0.9, 0.1]) + 0.25
    balanced = (0.4 / shares[1]) / (0.6 / shares[0] + 0.4 / shares[1])
    assert balanced > 0.5
    weights = plausibility(posterior, np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(weights, [1, 1, 0, balanced], atol=1e-9)
    assert plausibility(posterior, np.array([0, 0, 0, 0]))[3] == pytest.approx(0.6)
    assert weights.min() > 0


def test_implausible_labels_are_hardly_ever_drawn() -> None:
    """And the others keep the balance of classes that they have by themselves."""
    labels = np.repeat([0, 1], [800, 200])
    weights = np.ones(1000)
    weights[:400] = 1e-6
    order = stream(0, "order").permutation(1000)
    drawn = draw_weighted(labels, order, 0.0, stream(0, "balance"), weights)
    repeats = np.bincount(drawn, minlength=1000)
    assert len(drawn) == 1000
    assert repeats[:400].sum() <= 1
    assert repeats[400:800].sum() == pytest.approx(2 * repeats[800:].sum(), abs=2)
    assert np.ptp(repeats[400:]) <= 1
