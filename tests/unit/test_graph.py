"""FedGP's graph mathematics against the dense matrices that it avoids."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgsca.methods.parts.centroid_network import CentroidGNN
from fedgsca.methods.parts.graph import (
    complementary,
    degree_centroids,
    embedding_means,
    initial_gnn,
    nearest_centroid,
    negative_loss,
    neighbour_probs,
    propagate,
    unit_rows,
)
from fedgsca.rng import stream


def embeddings(n: int, d: int = 6, seed: int = 0) -> np.ndarray:
    return np.maximum(stream(seed, "test", "graph").normal(0.3, 1.0, (n, d)), 0.0)


def dense_propagation(
    remaining: np.ndarray, clean: np.ndarray, votes: np.ndarray, clean_votes: np.ndarray, a: float
) -> np.ndarray:
    """The published formula, written with the full matrix and a solver."""
    r = len(remaining)
    both = np.concatenate([remaining, clean])
    cosine = unit_rows(both) @ unit_rows(both).T
    m = np.zeros_like(cosine)
    m[:r, r:] = cosine[:r, r:]
    m = m + m.T + np.eye(len(both))
    scale = 1 / np.sqrt(m.sum(axis=1))
    system = 2 * (np.eye(len(both)) - a * scale[:, None] * m * scale)
    u = np.linalg.solve(system, (1 - a) * np.concatenate([votes, clean_votes]))
    return np.asarray(np.maximum(u[:r], 0).argmax(axis=1))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_propagation_solves_the_published_system(alpha: float) -> None:
    rng = stream(5, "test")
    remaining, clean = embeddings(40), embeddings(25, seed=1)
    votes, anchors = rng.random((40, 4)), rng.random((25, 4))  # no ties
    np.testing.assert_array_equal(
        propagate(remaining, clean, votes, anchors, alpha),
        dense_propagation(remaining, clean, votes, anchors, alpha),
    )


def test_neighbours_decide_where_the_two_classifiers_disagree() -> None:
    clean = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    anchors = 2.0 * np.eye(2)[[0, 0, 1, 1]]
    remaining = np.array([[0.1, 1.0], [1.0, 0.1]])
    split = np.ones((2, 2))  # one vote for either class
    assert propagate(remaining, clean, split, anchors, 0.5).tolist() == [1, 0]
    assert propagate(remaining, clean, split, anchors, 0.0).tolist() == [0, 0], (
        "without the graph there is nothing to decide by"
    )


def test_propagation_with_nobody_on_one_side() -> None:
    votes = np.eye(3)[[2, 0]]
    assert propagate(embeddings(2), np.empty((0, 6)), votes, np.empty((0, 3))).tolist() == [2, 0]
    assert propagate(np.empty((0, 6)), embeddings(2), np.empty((0, 3)), votes).shape == (0,)


def test_degree_centroids_weigh_by_friends() -> None:
    features, labels = embeddings(30), np.arange(30) % 2
    fallback = np.full((3, 6), 7.0)
    result = degree_centroids(features, labels, fallback)
    for c in (0, 1):
        members = features[labels == c]
        degree = (unit_rows(members) @ unit_rows(members).T).sum(axis=1)
        np.testing.assert_allclose(
            result[c], (degree[:, None] * members).sum(axis=0) / degree.sum()
        )
    np.testing.assert_array_equal(result[2], fallback[2])


def test_an_outlier_moves_the_degree_centroid_less_than_the_mean() -> None:
    features = np.array([[1.0, 0.0]] * 5 + [[0.0, 1.0]])
    labels, fallback = np.zeros(6, int), np.zeros((1, 2))
    assert (
        degree_centroids(features, labels, fallback)[0, 1]
        < embedding_means(features, labels, fallback)[0, 1]
    )


def test_class_means_fall_back_for_an_absent_class() -> None:
    result = embedding_means(
        np.array([[1.0, 3.0], [3.0, 5.0]]), np.array([1, 1]), np.array([[9.0, 9.0], [0.0, 0.0]])
    )
    np.testing.assert_array_equal(result, [[9.0, 9.0], [2.0, 4.0]])


def test_neighbour_probs_average_the_most_similar_of_the_same_label() -> None:
    features, probs, labels = (
        embeddings(50),
        stream(2, "test").dirichlet(np.ones(3), 50),
        np.arange(50) % 2,
    )
    rows = np.array([4, 11, 30])
    result = neighbour_probs(features, probs, labels, 5, rows)
    cosine = unit_rows(features) @ unit_rows(features).T
    for i, row in enumerate(rows):
        same = np.flatnonzero(labels == labels[row])
        near = same[np.argsort(-cosine[row, same])[:5]]
        assert row in near
        np.testing.assert_allclose(result[i], probs[near].mean(axis=0))
    np.testing.assert_allclose(
        neighbour_probs(features, probs, labels, 1),
        probs,
        err_msg="the nearest is the sample itself",
    )


def test_complementary_spares_the_label_and_one_rival() -> None:
    averaged = np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.15, 0.05]])
    mask = complementary(averaged, np.array([0, 0]))
    np.testing.assert_array_equal(mask, [[False, True, True, False], [False, True, False, True]])
    assert not complementary(np.array([[0.4, 0.6]]), np.array([0])).any(), (
        "two classes: nothing left to exclude"
    )


def test_negative_loss_counts_only_excluded_classes() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]])
    loss = negative_loss(p.log(), torch.tensor([[False, True, True]]))
    assert loss.item() == pytest.approx(-np.log(0.7) - np.log(0.8), abs=1e-6)
    sure = negative_loss(torch.tensor([[0.0, 200.0]]), torch.tensor([[False, True]]))
    assert bool(torch.isfinite(sure))


def test_nearest_centroid_ignores_length() -> None:
    assert nearest_centroid(
        np.array([[3.0, 1.0], [0.1, 0.2]]), np.array([[0.1, 0.0], [0.0, 90.0]])
    ).tolist() == [0, 1]


def gnn(dim: int = 6, keep: float = 0.5, **changes: np.ndarray) -> CentroidGNN:
    return CentroidGNN({**initial_gnn(dim, stream(0, "test", "gnn")), **changes}, keep)


def test_gnn_adjacency_keeps_half_of_the_links_and_is_normalised() -> None:
    x = torch.from_numpy(stream(4, "test").random((12, 6)).astype(np.float32))
    result = gnn().adjacency(x)
    assert int((result > 0).sum()) == 12 * 12 // 2  # the diagonal is among the largest cosines
    cosine = unit_rows(x.numpy()) @ unit_rows(x.numpy()).T
    stored = np.where(cosine >= np.sort(cosine.ravel())[-72], cosine, 0.0) + np.eye(12)
    degree = stored.sum(axis=1)
    np.testing.assert_allclose(
        result.numpy(), stored / np.sqrt(np.outer(degree, degree)), rtol=1e-5
    )


def test_gnn_has_no_negative_links() -> None:
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.1]])
    assert bool((gnn(2, keep=1.0).adjacency(x) >= 0).all())


def test_gnn_averages_over_sites_and_ignores_their_order() -> None:
    stack = torch.from_numpy(stream(6, "test").random((3, 4, 6)).astype(np.float32))
    network = gnn()
    out = network(stack)
    assert out.shape == (4, 6)
    torch.testing.assert_close(out, network(stack[[2, 0, 1]]), rtol=1e-5, atol=1e-6)


def test_centroids_hear_each_other_through_the_graph_only() -> None:
    """Without the two layers a class depends on its own rows of the stack; with them, on others."""

    def influence_of_another_class(network: CentroidGNN) -> float:
        stack = torch.from_numpy(
            stream(8, "test").random((3, 4, 6)).astype(np.float32)
        ).requires_grad_()
        network(stack)[0].square().sum().backward()
        assert stack.grad is not None
        return float(stack.grad[:, 1:].abs().sum())

    assert influence_of_another_class(gnn(gnn_w1=np.zeros((6, 6)), gnn_w2=np.zeros((6, 6)))) == 0.0
    assert influence_of_another_class(gnn()) > 0.0


def test_gnn_gradients_reach_every_parameter_and_survive_the_wire() -> None:
    network = gnn()
    network(
        torch.from_numpy(stream(6, "test").random((2, 3, 6)).astype(np.float32))
    ).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in network.parameters())
    again = CentroidGNN(network.arrays())
    assert all(
        torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True)
    )
    assert sum(a.size for a in initial_gnn(64, stream(0)).values()) == 8448
