"""FedGP's networks: the GNN on centroids, and the classifier seen through its embedding.

They derive from nn.Module, so this module imports torch; fedgp.py imports it where it trains.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.methods.parts.graph import GNN_NAMES
from fedgsca.models.build import CentroidHead, Classifier


class CentroidGNN(nn.Module):
    """G: class centroids of all sites (K, C, d) -> global centroids S (C, d).

    Two residual graph convolutions on the K C centroids as nodes:

        X = LN1(stack);  H = relu(LN2(X + A(X) X W1));  O = H + A(H) H W2;  S_c = mean_k O_kc

    A(.) keeps the largest part of all cosines, adds the identity and is normalised symmetrically.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], keep: float = 0.5) -> None:
        """`keep` is the share of links that the adjacency keeps."""
        super().__init__()
        self.keep = keep
        self.w1, self.w2, self.norm1, self.norm2 = (
            nn.Parameter(torch.from_numpy(np.array(arrays[name], dtype=np.float32)))
            for name in GNN_NAMES
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name, ready to send."""
        parameters = (self.w1, self.w2, self.norm1, self.norm2)
        arrays = {}
        for name, parameter in zip(GNN_NAMES, parameters, strict=True):
            arrays[name] = parameter.detach().cpu().numpy().copy()
        return arrays

    def adjacency(self, x: Tensor) -> Tensor:
        """(KC, KC): D^-1/2 (relu(largest cosines) + I) D^-1/2; the degrees carry no gradient."""
        direction = F.normalize(x, dim=1)
        cosine = direction @ direction.T
        flat = cosine.detach().flatten()
        num_links = max(int(self.keep * flat.numel()), 1)
        smallest = flat.kthvalue(flat.numel() - num_links + 1).values
        smallest = smallest.clamp_(min=0.0)  # the ReLU: no negative links
        links = torch.where(cosine >= smallest, cosine, 0.0) + torch.eye(len(x), device=x.device)
        scale = links.detach().sum(dim=1).rsqrt()
        return scale[:, None] * links * scale

    def forward(self, stack: Tensor) -> Tensor:
        """(K, C, d) -> (C, d)."""
        sites, classes, dim = stack.shape
        x = F.layer_norm(stack.reshape(sites * classes, dim), (dim,), self.norm1[0], self.norm1[1])
        residual = x + self.adjacency(x) @ (x @ self.w1)
        h = torch.relu(F.layer_norm(residual, (dim,), self.norm2[0], self.norm2[1]))
        out = h + self.adjacency(h) @ (h @ self.w2)
        return out.view(sites, classes, dim).mean(dim=0)


class Embedded(nn.Module):
    """The classifier with its embedding as the features, for the evaluation pass."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model
        assert isinstance(model.head, CentroidHead)
        self.embedding = model.head
        self.head = model.head.centroids

    def features(self, x: Tensor) -> Tensor:
        """(b, DIM): f."""
        return self.embedding.embed(self.model.features(x))
