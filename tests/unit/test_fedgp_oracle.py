"""Our FedGP against the published main loop, written again, on the same arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.oracles import fedgp_loop
from benchmarks.oracles.fedgp_loop import CentroidGraph, Client, Hyper, MainLoop
from fedgsca.methods.fedgp import DIM, core_set
from fedgsca.methods.parts import graph
from fedgsca.methods.parts.centroid_network import CentroidGNN
from fedgsca.methods.parts.graph import initial_gnn
from fedgsca.models.build import build_head_only
from fedgsca.rng import stream
from tests.helpers import CLASSES, Toy, toy_experiment

NOISE = (0.4, 0.4, 0.4, 0.4)
ROUNDS = 10


def samples(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings (60, DIM), probabilities (60, 4) and labels (60,), float32 and int64."""
    rng = stream(seed, "oracle")
    f = np.maximum(rng.normal(0.3, 1.0, (60, DIM)), 0.0).astype(np.float32)
    probs = rng.dirichlet(np.ones(4), 60).astype(np.float32)
    return f, probs, np.arange(60) % 4


def test_the_graph_network_is_the_published_one() -> None:
    """In float64: in float32 the published comparison loses the smallest link that it keeps."""
    arrays = initial_gnn(DIM, stream(0, "gnn"))
    ours = CentroidGNN(arrays, keep=0.5)
    theirs = CentroidGraph(DIM, 0.5, torch.Generator())
    with torch.no_grad():
        theirs.weights[0].copy_(ours.w1)
        theirs.weights[1].copy_(ours.w2)
    stack = torch.from_numpy(stream(1, "stack").random((3, 4, DIM)))
    torch.testing.assert_close(ours.double()(stack), theirs.double()(stack))


def test_core_and_its_centroids_are_the_published_ones() -> None:
    f, probs, given = samples()
    losses = -np.log(probs[np.arange(60), given])
    core = core_set(losses, given, 0.2)
    tensor = torch.from_numpy(f)
    cosine = fedgp_loop.cosines(tensor, tensor)
    links = fedgp_loop.core_links(
        torch.from_numpy(losses), torch.from_numpy(given), cosine, ratio=0.2
    )
    np.testing.assert_array_equal(core, (links.sum(dim=(0, 2)) > 0).numpy())
    ours = graph.degree_centroids(f[core], given[core], np.zeros((4, DIM)))
    np.testing.assert_allclose(ours, fedgp_loop.centroids_of(links, tensor), rtol=1e-4)


def test_complementary_classes_are_the_published_ones() -> None:
    f, probs, given = samples()
    means = graph.neighbour_probs(f, probs, given, neighbours=5)
    ours = graph.complementary(means, given)
    tensor = torch.from_numpy(f)
    labels = torch.from_numpy(given)
    links = fedgp_loop.cosines(tensor, tensor) * (labels[:, None] == labels)
    theirs = fedgp_loop.complementary(torch.from_numpy(probs), links, labels, 5)
    np.testing.assert_array_equal(ours, theirs.numpy())


def make_loop(toy: Toy, rounds: int = ROUNDS, *, graph_in_turn: bool = True) -> MainLoop:
    clients = []
    for name in sorted(toy.sites):
        site = toy.sites[name]
        given = torch.from_numpy(site.labels.copy())
        clients.append(Client(torch.from_numpy(site.inputs), given, torch.tensor(toy.truth[name])))
    model = build_head_only(toy.width, CLASSES, seed=0, head="centroid")
    train = toy.hyper
    hyper = Hyper(
        rounds,
        4,
        lr=train.rate,
        momentum=train.momentum,
        batch=train.batch_size,
        # a single round is the first of many
        lr_steps=() if rounds == 1 else (0.7, 0.9),
        graph_in_turn=graph_in_turn,
    )
    return MainLoop(clients, model, hyper, seed=0)


def test_both_purify_an_easy_problem(tmp_path: Path) -> None:
    """As published: 0.6 of the given labels are correct, and nearly all of the purified ones."""
    options = {"warmup": 0.4, "official": True}
    toy = toy_experiment(
        tmp_path, "fedgp", noise=NOISE, samples=80, rounds=ROUNDS, spread=0.8, options=options
    )
    theirs = make_loop(toy).run(torch.from_numpy(toy.test.inputs), toy.test.labels)
    state = toy.run(ROUNDS)
    assert theirs.score > 80
    assert 100 * toy.accuracy(state.weights) > 80
    assert theirs.purified[-1] < 1.0 or theirs.correct[-1] > 0.5


def graph_change(folder: Path, graph_rate: float) -> float:
    """How far the scales of our graph network move in one round; they begin at 1."""
    options = {"warmup": 0.4, "official": True, "graph_rate": graph_rate}
    toy = toy_experiment(
        folder, "fedgp", noise=NOISE, samples=80, rounds=ROUNDS, spread=0.8, options=options
    )
    return float(np.linalg.norm(toy.run(1).extras["gnn_norm2"][0] - 1))


def test_a_higher_rate_of_the_graph_network_makes_up_for_its_mean(tmp_path: Path) -> None:
    """Trained by all sites in turn it moves further than the mean of sites at the same time."""
    toy = toy_experiment(
        tmp_path / "theirs", "fedgp", noise=NOISE, samples=80, rounds=ROUNDS, spread=0.8
    )
    changes = []
    for graph_in_turn in (True, False):
        loop = make_loop(toy, 1, graph_in_turn=graph_in_turn)
        loop.run(torch.from_numpy(toy.test.inputs), toy.test.labels)
        scales = loop.graph.norms[1].weight
        assert isinstance(scales, torch.Tensor)
        changes.append(float((scales.detach() - 1).norm()))
    in_turn, mean = changes
    slow = graph_change(tmp_path / "slow", 1.0)
    fast = graph_change(tmp_path / "fast", 4.0)
    assert in_turn > 2.5 * mean
    assert 0.5 * mean < slow < 2 * mean
    assert 0.5 * in_turn < fast < 2 * in_turn
