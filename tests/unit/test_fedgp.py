"""FedGP: the purified set, propagation, the stack of centroids, and the GNN over it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsca.methods.base import ServerState
from fedgsca.methods.fedgp import (
    DIM,
    PURIFY,
    SLOTS,
    FedGP,
    FedGPOptions,
    core_set,
    graph_rate,
    purify,
)
from fedgsca.methods.parts.centroid_network import CentroidGNN, Embedded
from fedgsca.methods.parts.graph import GNN_NAMES, initial_gnn
from fedgsca.methods.train import Evaluation, evaluate
from fedgsca.rng import stream
from fedgsca.wire import Update
from tests.helpers import CLASSES, Toy, toy_experiment

NOISY = (0.4, 0.4, 0.4, 0.4)
QUICK = {"warmup": 0.4}  # of 10 rounds


def toy(folder: Path, noise: tuple[float, ...] = NOISY, **changes: object) -> Toy:
    options = {**QUICK, **changes}
    return toy_experiment(
        folder, "fedgp", noise=noise, samples=80, rounds=10, spread=0.8, options=options
    )


def members(run: Toy, name: str) -> tuple[np.ndarray, np.ndarray]:
    stored = run.site(name).recall(99)
    return stored["clean"], stored["labels"]


def test_the_purified_set_is_cleaner_than_the_given_labels(tmp_path: Path) -> None:
    run = toy(tmp_path)
    assert graph_rate(FedGPOptions(), run.site("site-1")) == 1.0
    state = run.run(10)
    for name in run.sites:
        clean, labels = members(run, name)
        assert clean.mean() > 0.5
        assert (
            np.mean(labels[clean] == run.truth[name][clean]) > 0.85
        )  # 0.6 of the given ones are right
        assert (run.metrics[name]["label_accuracy_after"] or 0) > 0.8
    assert run.accuracy(state.weights) > 0.85


def test_it_only_grows(tmp_path: Path) -> None:
    run = toy(tmp_path)
    state = run.run(5)
    for _ in range(3):
        old = {name: members(run, name) for name in run.sites}
        state = run.round(state)
        for name, (clean, labels) in old.items():
            now, new_labels = members(run, name)
            assert bool(now[clean].all())
            np.testing.assert_array_equal(
                new_labels[clean], labels[clean], err_msg="members keep their label"
            )


def test_core_set_takes_the_smallest_losses_of_every_class() -> None:
    given = np.array([0] * 10 + [1] * 4 + [3])
    core = core_set(np.arange(15.0)[::-1], given, 0.2)
    assert np.flatnonzero(core).tolist() == [7, 8, 9, 13, 14]


def look(seed: int = 0) -> tuple[Evaluation, np.ndarray, np.ndarray]:
    """Two well separated classes; the first five samples of class 0 were given label 1."""
    truth = np.repeat([0, 1], 20)
    features = np.abs(stream(seed, "test").normal(0, 0.1, (40, 3)))
    features[np.arange(40), truth] += 1.0
    given = np.where(np.arange(40) < 5, 1, truth)
    probs = np.where(truth[:, None] == np.arange(2), 0.9, 0.1)
    return Evaluation(probs, -np.log(probs[np.arange(40), given]), features), given, truth


def test_wrong_labels_stay_out_at_first_and_come_back_corrected() -> None:
    outputs, given, truth = look()
    w_bar = np.array([[1.0, 0.1, 0.1], [0.1, 1.0, 0.1]])
    first = purify(outputs, given, {}, w_bar, FedGPOptions())
    assert not first.clean[:5].any() and bool(first.clean[5:].all())
    np.testing.assert_array_equal(first.labels, truth)  # propagation has relabelled the five
    memory = {"clean": first.clean, "labels": first.labels, "centroids": first.centroids}
    second = purify(outputs, given, memory, w_bar, FedGPOptions())
    assert bool(second.clean.all())


def test_joining_needs_agreement_of_both_centroids_and_confidence() -> None:
    outputs, given, _ = look()
    w_bar = np.array([[1.0, 0.1, 0.1], [0.1, 1.0, 0.1]])
    core = core_set(outputs.losses, given, 0.2)
    swapped = purify(outputs, given, {}, w_bar[::-1].copy(), FedGPOptions())
    np.testing.assert_array_equal(
        swapped.clean, core
    )  # server and client disagree about everything
    unsure = purify(outputs, given, {}, w_bar, FedGPOptions(confidence=0.95))
    np.testing.assert_array_equal(unsure.clean, core)


def test_the_gnn_turns_the_stack_into_a_classifier(tmp_path: Path) -> None:
    run = toy(tmp_path, noise=(0.0, 0.3, 0.3, 0.3))
    first, state = run.start(), run.run(6)
    payload = run.method.broadcast(state, state.round)
    stack = payload.extras["stack"][: len(run.sites)]
    assert np.isfinite(stack).all() and np.isnan(payload.extras["stack"][len(run.sites) :]).all()
    run.site("site-1").load(state.weights)
    f = evaluate(Embedded(run.model), run.test, torch.device("cpu"), features=True).features
    assert f is not None

    def accuracy(extras: dict[str, np.ndarray]) -> float:
        network = CentroidGNN({name: np.asarray(extras[name]) for name in GNN_NAMES})
        with torch.no_grad():
            centroids = network(torch.from_numpy(stack)).numpy()
        return float(np.mean((f @ centroids.T).argmax(axis=1) == run.test.labels))

    assert accuracy(dict(payload.extras)) > 0.85
    assert any(not np.array_equal(first.extras[name], state.extras[name]) for name in GNN_NAMES), (
        "the GNN is trained"
    )


def test_the_other_sites_centroids_mend_a_broken_classifier_through_the_gnn(tmp_path: Path) -> None:
    """A site receives W with its rows in the wrong order.

    One round with S = G(stack) repairs it; the site's own labels do not. W is evaluated on the
    embedding as received: the embedding, too, would adapt to a wrong W.
    """

    def mended(folder: str, turn_stack: int = 0, **options: float) -> float:
        run, w = (
            toy(tmp_path / folder, noise=(0.0, 0.0, 0.0, 0.0), warmup=1.0, **options),
            "head.centroids.weight",
        )
        state = run.run(4)
        payload = run.method.broadcast(
            replace(state, weights={**state.weights, w: np.roll(state.weights[w], 1, axis=0)}), 4
        )
        stack = np.roll(payload.extras["stack"], turn_stack, axis=1)
        returned = run.run_round(
            "site-1", replace(payload, extras={**payload.extras, "stack": stack})
        )
        return run.accuracy({**state.weights, w: returned.weights[w]})

    assert mended("with") > 0.9
    assert mended("without", rho=0.0, w_pull=0.0) < 0.5
    assert mended("misled", turn_stack=1) < 0.5, "it is the stack that mends it"


def test_a_class_that_a_site_does_not_have_takes_the_servers_centroid(tmp_path: Path) -> None:
    run = toy(tmp_path)
    blind = run.sites["site-1"]
    outputs = blind.labels != 3
    run.sites["site-1"] = replace(blind, inputs=blind.inputs[outputs], labels=blind.labels[outputs])
    run.truth["site-1"] = run.truth["site-1"][outputs]
    state = run.start()
    payload = run.method.broadcast(state, 0)
    np.testing.assert_array_equal(
        run.run_round("site-1", payload).extras["centroids"][3],
        state.weights["head.centroids.weight"][3],
    )
    run.run(6)  # into purification
    assert np.isfinite(run.updates["site-1"].extras["centroids"]).all()


def uneven(folder: Path, **options: Any) -> np.ndarray:
    run = toy(folder, **options)
    small = run.sites["site-1"]
    run.sites["site-1"] = replace(small, inputs=small.inputs[:40], labels=small.labels[:40])
    run.truth["site-1"] = run.truth["site-1"][:40]
    return run.run(6).weights["head.centroids.weight"]


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return uneven(tmp_path_factory.mktemp("default"))


@pytest.mark.parametrize(
    "change",
    [
        {"w_update": "ema"},
        {"clean_label": "given"},
        {"weighting": "uniform"},
        {"negative": 0.0},
        {"rho": 0.0},
        {"graph_rate": 4.0},
    ],
)
def test_every_switch_makes_a_difference(
    tmp_path: Path, change: dict[str, object], default: np.ndarray
) -> None:
    assert not np.array_equal(uneven(tmp_path, **change), default)


def update(site: str, value: float) -> Update:
    gnn = initial_gnn(DIM, stream(0, "test"))
    extras = {
        "centroids": np.full((CLASSES, DIM), value, np.float32),
        "purified": np.array(3),
        **gnn,
    }
    return Update(site, 10, {"head.centroids.weight": np.zeros((CLASSES, DIM), np.float32)}, extras)


def start() -> tuple[FedGP, ServerState]:
    method = FedGP(FedGPOptions(), 10)
    return method, method.start(
        {"head.centroids.weight": np.ones((CLASSES, DIM), np.float32)}, seed=0
    )


def test_the_stack_keeps_absent_sites_and_stands_in_the_order_of_names() -> None:
    method, state = start()
    assert "stack" not in method.broadcast(state, 0).extras, "nobody has answered yet"
    state = method.aggregate(state, iter([update("b", 2.0), update("c", 3.0)]))
    state = method.aggregate(state, iter([update("a", 1.0), update("c", 4.0)]))
    stack = method.broadcast(state, 2).extras["stack"]
    assert stack.shape == (SLOTS, CLASSES, DIM)
    np.testing.assert_array_equal(stack[:4, 0, 0], [1.0, 2.0, 4.0, np.nan])


def test_more_sites_than_places_share() -> None:
    method, state = start()
    names = [f"site-{i:02d}" for i in range(SLOTS + 1)]
    state = method.aggregate(state, iter([update(name, float(i)) for i, name in enumerate(names)]))
    stack = method.broadcast(state, 1).extras["stack"]
    np.testing.assert_array_equal(stack[:, 0, 0], [SLOTS / 2, *range(1, SLOTS)])


def test_a_diverged_site_does_not_spoil_the_stack() -> None:
    method, state = start()
    state = method.aggregate(state, iter([update("a", 1.0), update("b", np.nan)]))
    stack = method.broadcast(state, 1).extras["stack"]
    assert np.isfinite(stack[:, 0, 0]).sum() == 1
    assert all(np.isfinite(state.extras[name]).all() for name in GNN_NAMES)


def test_the_gnn_begins_the_same_for_the_same_experiment_only() -> None:
    method = FedGP(FedGPOptions(), 10)
    begin = [
        method.start({"head.centroids.weight": np.full((2, DIM), v, np.float32)}, seed=0).extras[
            "gnn_w1"
        ]
        for v in (1.0, 1.0, 2.0)
    ]
    np.testing.assert_array_equal(begin[0], begin[1])
    assert not np.array_equal(begin[0], begin[2])
    assert float(begin[0].std()) == pytest.approx(0.01, rel=0.1)


def test_works_on_images(tmp_path: Path) -> None:
    run = toy_experiment(
        tmp_path, "fedgp", noise=NOISY, samples=24, rounds=3, images=True, options={"warmup": 0.34}
    )
    assert graph_rate(FedGPOptions(), run.site("site-1")) == 4.0
    assert graph_rate(FedGPOptions(graph_rate=2.0), run.site("site-1")) == 2.0
    state = run.run(3)
    assert int(state.extras["stage"]) == PURIFY
    assert all(np.isfinite(u.extras["centroids"]).all() for u in run.updates.values())


def test_the_centroid_of_a_few_images_stays_at_the_site(tmp_path: Path) -> None:
    """It would be those images' embeddings, and the coordinator sends centroids to all sites."""
    run = toy(tmp_path)
    everything = run.sites["site-1"]
    rows = np.flatnonzero((everything.labels != 3) | (np.cumsum(everything.labels == 3) <= 4))
    run.sites["site-1"] = replace(
        everything, inputs=everything.inputs[rows], labels=everything.labels[rows]
    )
    run.truth["site-1"] = run.truth["site-1"][rows]
    state = run.start()
    sent = run.run_round("site-1", run.method.broadcast(state, 0)).extras["centroids"]
    received = state.weights["head.centroids.weight"]
    np.testing.assert_array_equal(sent[3], received[3])
    assert not np.isclose(sent[:3], received[:3]).all(axis=1).any(), (
        "the others are this site's own"
    )
