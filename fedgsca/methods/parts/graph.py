"""FedGP's graphs (Chen et al., Medical Image Analysis 2023).

Cosine neighbourhoods and label propagation; the GNN is in centroid_network.py. Embeddings f are
outputs of a ReLU, so all cosines are >= 0, and the cosine matrix of n samples is a product of two
thin matrices with unit rows. Degrees and propagation therefore need no n x n matrix:
M u = F (F^T u). Only the search for nearest neighbours compares pairs, and only pairs of one class.
"""

from __future__ import annotations

import numpy as np

from fedgsca.support.lazy_torch import Tensor, torch

# the parameters of the GNN on the wire: (d, d) twice, (2, d) twice (scale, shift)
GNN_NAMES = ("gnn_w1", "gnn_w2", "gnn_norm1", "gnn_norm2")


def initial_gnn(dim: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The parameters of the GNN before training, by name: W1 and W2 are N(0, 0.01^2)."""
    w1 = rng.normal(0.0, 0.01, (dim, dim)).astype(np.float32)
    w2 = rng.normal(0.0, 0.01, (dim, dim)).astype(np.float32)
    norm = np.stack([np.ones(dim), np.zeros(dim)]).astype(np.float32)
    return dict(zip(GNN_NAMES, (w1, w2, norm, norm.copy()), strict=True))


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows of length 1; a row of zeros stays zero: it has no direction and no neighbours."""
    x = np.asarray(x, dtype=np.float64)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(np.divide(x, length, out=np.zeros_like(x), where=length > 0))


def embedding_means(features: np.ndarray, labels: np.ndarray, fallback: np.ndarray) -> np.ndarray:
    """(C, d): mean embedding of every class; a class without samples takes its `fallback` row."""
    one_hot = np.eye(len(fallback))[labels]  # (n, C)
    count = one_hot.sum(axis=0)[:, None]
    return np.where(count > 0, (one_hot.T @ features) / np.maximum(count, 1), fallback)


def degree_centroids(features: np.ndarray, labels: np.ndarray, fallback: np.ndarray) -> np.ndarray:
    """(C, d): mean embedding weighted by degree in the class's cosine graph.

    An outlier has few neighbours and little weight. The degree of i is sum_j cos(f_i, f_j) over its
    class, itself included: its direction times the sum of all directions.
    """
    direction = unit_rows(features)
    one_hot = np.eye(len(fallback))[labels]
    total = one_hot.T @ direction  # (C, d)
    degree = np.einsum("nd,nd->n", direction, total[labels])
    weight = one_hot * degree[:, None]
    mass = weight.sum(axis=0)[:, None]
    return np.where(mass > 0, (weight.T @ features) / np.where(mass > 0, mass, 1.0), fallback)


def nearest_centroid(features: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """(n,): index of the centroid with the largest cosine."""
    return np.asarray((unit_rows(features) @ unit_rows(centroids).T).argmax(axis=1))


def neighbour_probs(
    features: np.ndarray,
    probs: np.ndarray,
    labels: np.ndarray,
    neighbours: int = 20,
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """(len(rows), C): predictions averaged over the most similar samples of the same label.

    Similarity is the cosine; a sample is one of its own neighbours.
    """
    rows = np.arange(len(labels)) if rows is None else rows
    direction = unit_rows(features).astype(np.float32)
    mean = np.empty((len(rows), probs.shape[1]))
    for c in np.unique(labels[rows]):
        positions = np.flatnonzero(labels[rows] == c)
        members = np.flatnonzero(labels == c)
        m = min(neighbours, len(members))
        cosine = direction[rows[positions]] @ direction[members].T
        nearest = np.argpartition(cosine, len(members) - m, axis=1)[:, len(members) - m :]
        mean[positions] = probs[members[nearest]].mean(axis=1)
    return mean


def complementary(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(n, C) bool, Ybar: the C - 2 classes that the neighbours consider least likely.

    probs (n, C) are the neighbours' means. The label and one rival are never in Ybar.
    """
    n, num_classes = probs.shape
    ranking = probs.copy()
    ranking[np.arange(n), labels] = np.inf
    order = np.argsort(ranking, axis=1, kind="stable")[:, : max(num_classes - 2, 0)]
    mask = np.zeros((n, num_classes), bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask


def negative_loss(logits: Tensor, mask: Tensor) -> Tensor:
    """L_NE = mean_i sum_{c in Ybar_i} -log(1 - p_ic + 1e-8): push down what a sample is not.

    mask (n, C) is Ybar.
    """
    return -(torch.log(1.0 - logits.float().softmax(dim=1) + 1e-8) * mask).sum(dim=1).mean()


def propagate(
    remaining: np.ndarray,
    clean: np.ndarray,
    votes: np.ndarray,
    clean_votes: np.ndarray,
    alpha: float = 0.5,
) -> np.ndarray:
    """(n_r,): labels by propagation over the bipartite cosine graph of remaining and clean samples.

    remaining (n_r, d) and clean (n_p, d) are embeddings; votes (n_r, C) and clean_votes (n_p, C)
    count, per class, how many of the two classifiers (client and server centroids) vote for it.
    Solves 2 (I - a Mn) U = (1 - a) votes with Mn = D^-1/2 (M + I) D^-1/2, clips at 0 and takes the
    largest. a Mn has a norm <= a, so the fixed-point iteration U <- a Mn U + b shrinks its error by
    a in every step; it runs until 1e-12 of the first error is left.
    """
    if len(remaining) == 0:
        return np.empty(0, np.int64)
    r = unit_rows(remaining)
    p = unit_rows(clean)
    # D^-1/2: edges to the other side, and the loop
    scale_r = 1.0 / np.sqrt(1.0 + r @ p.sum(axis=0))[:, None]
    scale_p = 1.0 / np.sqrt(1.0 + p @ r.sum(axis=0))[:, None]
    r_scaled = r * scale_r
    p_scaled = p * scale_p
    b_r = 0.5 * (1.0 - alpha) * votes
    b_p = 0.5 * (1.0 - alpha) * clean_votes
    u_r = b_r
    u_p = b_p
    steps = 1 if alpha == 0 else int(np.ceil(np.log(1e-12) / np.log(alpha)))
    for _ in range(steps):
        u_r, u_p = (
            alpha * (r_scaled @ (p_scaled.T @ u_p) + scale_r**2 * u_r) + b_r,
            alpha * (p_scaled @ (r_scaled.T @ u_r) + scale_p**2 * u_p) + b_p,
        )
    return np.asarray(np.maximum(u_r, 0.0).argmax(axis=1))
