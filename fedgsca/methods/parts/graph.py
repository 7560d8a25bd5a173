"""FedGP's graphs (Chen et al., Medical Image Analysis 2023): cosine neighbourhoods, label propagation, and the centroid GNN.

Embeddings f are outputs of a ReLU, so all cosines are >= 0, and the cosine matrix of n samples is a product of two thin
matrices with unit rows. Degrees and propagation therefore need no n x n matrix: M u = F (F^T u). Only the search for nearest
neighbours looks at pairs, and only at pairs of one class.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows of length 1 (a row of zeros stays zero: it has no direction and no neighbours)."""
    x = np.asarray(x, dtype=np.float64)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(np.divide(x, length, out=np.zeros_like(x), where=length > 0))


def class_means(features: np.ndarray, labels: np.ndarray, fallback: np.ndarray) -> np.ndarray:
    """(C, d) mean embedding of every class; a class without samples takes its row of `fallback`."""
    one_hot = np.eye(len(fallback))[labels]  # (n, C)
    count = one_hot.sum(axis=0)[:, None]
    return np.where(count > 0, (one_hot.T @ features) / np.maximum(count, 1), fallback)


def degree_centroids(features: np.ndarray, labels: np.ndarray, fallback: np.ndarray) -> np.ndarray:
    """(C, d) mean embedding weighted by degree in the class's cosine graph: an outlier has few friends and little weight.

    The degree of i is sum_j cos(f_i, f_j) over its class, itself included: its direction times the sum of all directions.
    """
    direction = unit_rows(features)
    one_hot = np.eye(len(fallback))[labels]
    total = one_hot.T @ direction  # (C, d)
    degree = np.einsum("nd,nd->n", direction, total[labels])
    weight = one_hot * degree[:, None]
    mass = weight.sum(axis=0)[:, None]
    return np.where(mass > 0, (weight.T @ features) / np.where(mass > 0, mass, 1.0), fallback)


def nearest_centroid(features: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """(n,) index of the centroid with the largest cosine."""
    return np.asarray((unit_rows(features) @ unit_rows(centroids).T).argmax(axis=1))


def neighbour_probs(
    features: np.ndarray,
    probs: np.ndarray,
    labels: np.ndarray,
    neighbours: int = 20,
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """(len(rows), C): predictions averaged over the most cosine-similar samples of the same label, a sample itself included."""
    rows = np.arange(len(labels)) if rows is None else rows
    direction, mean = unit_rows(features).astype(np.float32), np.empty((len(rows), probs.shape[1]))
    for c in np.unique(labels[rows]):
        asking, members = np.flatnonzero(labels[rows] == c), np.flatnonzero(labels == c)
        m = min(neighbours, len(members))
        similar = direction[rows[asking]] @ direction[members].T
        near = np.argpartition(similar, len(members) - m, axis=1)[:, len(members) - m :]
        mean[asking] = probs[members[near]].mean(axis=1)
    return mean


def complementary(averaged: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(n, C) bool, Ybar: the C - 2 classes that the neighbours find least likely; the label and one rival are spared."""
    n, num_classes = averaged.shape
    ranked = averaged.copy()
    ranked[np.arange(n), labels] = np.inf
    order = np.argsort(ranked, axis=1, kind="stable")[:, : max(num_classes - 2, 0)]
    mask = np.zeros((n, num_classes), bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask


def negative_loss(logits: Tensor, excluded: Tensor) -> Tensor:
    """L_NE: mean_i sum_{c in Ybar_i} -log(1 - p_ic + 1e-8): push down what a sample surely is not."""
    return -(torch.log(1.0 - logits.float().softmax(dim=1) + 1e-8) * excluded).sum(dim=1).mean()


def propagate(
    rest: np.ndarray,
    clean: np.ndarray,
    votes: np.ndarray,
    clean_votes: np.ndarray,
    alpha: float = 0.5,
) -> np.ndarray:
    """(n_rest,) labels by propagation over the bipartite cosine graph between the remaining and the clean samples.

    rest (n_rest, d) and clean (n_clean, d) embeddings; votes (n_rest, C) and clean_votes (n_clean, C) count, per class, how
    many of the two classifiers (client and server centroids) say so. Solves 2 (I - a Mn) U = (1 - a) votes with
    Mn = D^-1/2 (M + I) D^-1/2, clips at 0, takes the largest. a Mn has norm <= a, so the fixed point U <- a Mn U + b shrinks
    its error by a in every step; it is run until 1e-12 of the first error is left.
    """
    if len(rest) == 0:
        return np.empty(0, np.int64)
    r, p = unit_rows(rest), unit_rows(clean)
    scale_r = (
        1.0 / np.sqrt(1.0 + r @ p.sum(axis=0))[:, None]
    )  # D^-1/2: edges to the other side and the loop
    scale_p = 1.0 / np.sqrt(1.0 + p @ r.sum(axis=0))[:, None]
    r_scaled, p_scaled = r * scale_r, p * scale_p
    b_r, b_p = 0.5 * (1.0 - alpha) * votes, 0.5 * (1.0 - alpha) * clean_votes
    u_r, u_p = b_r, b_p
    steps = 1 if alpha == 0 else int(np.ceil(np.log(1e-12) / np.log(alpha)))
    for _ in range(steps):
        u_r, u_p = (
            alpha * (r_scaled @ (p_scaled.T @ u_p) + scale_r**2 * u_r) + b_r,
            alpha * (p_scaled @ (r_scaled.T @ u_r) + scale_p**2 * u_p) + b_p,
        )
    return np.asarray(np.maximum(u_r, 0.0).argmax(axis=1))


class CentroidGNN(nn.Module):
    """G: the class centroids of all sites (K, C, d) -> global centroids S (C, d), by two residual graph convolutions.

    X = LN1(stack as K C nodes);  H = relu(LN2(X + A(X) X W1));  O = H + A(H) H W2;  S_c = mean of O over the sites.
    A(.) keeps the largest part of all cosines, adds the identity and is normalised symmetrically; W1, W2 begin at N(0, 0.01^2).
    """

    NAMES = (
        "gnn_w1",
        "gnn_w2",
        "gnn_norm1",
        "gnn_norm2",
    )  # on the wire: (d, d) twice, (2, d) twice (scale, shift)

    def __init__(self, arrays: dict[str, np.ndarray], keep: float = 0.5) -> None:
        super().__init__()
        self.keep = keep
        self.w1, self.w2, self.norm1, self.norm2 = (
            nn.Parameter(torch.from_numpy(np.array(arrays[n], dtype=np.float32)))
            for n in self.NAMES
        )

    @staticmethod
    def initial(dim: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        w1, w2 = (rng.normal(0.0, 0.01, (dim, dim)).astype(np.float32) for _ in range(2))
        norm = np.stack([np.ones(dim), np.zeros(dim)]).astype(np.float32)
        return dict(zip(CentroidGNN.NAMES, (w1, w2, norm, norm.copy()), strict=True))

    def arrays(self) -> dict[str, np.ndarray]:
        parameters = (self.w1, self.w2, self.norm1, self.norm2)
        return {
            name: p.detach().cpu().numpy().copy()
            for name, p in zip(self.NAMES, parameters, strict=True)
        }

    def adjacency(self, x: Tensor) -> Tensor:
        """(KC, KC): D^-1/2 (relu(largest cosines) + I) D^-1/2; the degrees carry no gradient."""
        direction = F.normalize(x, dim=1)
        cosine = direction @ direction.T
        flat = cosine.detach().flatten()
        kept = max(int(self.keep * flat.numel()), 1)
        least = flat.kthvalue(flat.numel() - kept + 1).values.clamp_(
            min=0.0
        )  # the ReLU: no negative links
        linked = torch.where(cosine >= least, cosine, 0.0) + torch.eye(len(x), device=x.device)
        scale = linked.detach().sum(dim=1).rsqrt()
        return scale[:, None] * linked * scale

    def forward(self, stack: Tensor) -> Tensor:
        sites, classes, dim = stack.shape
        x = F.layer_norm(stack.reshape(sites * classes, dim), (dim,), self.norm1[0], self.norm1[1])
        h = torch.relu(
            F.layer_norm(
                x + self.adjacency(x) @ (x @ self.w1), (dim,), self.norm2[0], self.norm2[1]
            )
        )
        out = h + self.adjacency(h) @ (h @ self.w2)
        return out.view(sites, classes, dim).mean(dim=0)
