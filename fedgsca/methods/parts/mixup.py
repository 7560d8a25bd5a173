"""Mixup (Zhang et al., ICLR 2018): train on convex combinations of two samples and their losses.

    x    = lam x_i + (1 - lam) x_j,   lam ~ Beta(alpha, alpha), one per batch
    loss = lam CE(x, y_i) + (1 - lam) CE(x, y_j)

The partners are a permutation of the same batch. A model that must be linear between samples
memorises wrong labels later.
"""

from __future__ import annotations

import numpy as np

from fedgsca.methods.train import Batch, Objective
from fedgsca.support.lazy_torch import F, Tensor, nn, torch


def mixup(
    x: Tensor, y: Tensor, alpha: float, rng: np.random.Generator
) -> tuple[Tensor, Tensor, float]:
    """Mixed inputs (b, ...), the partners' labels (b,), and lam, the share of the own labels."""
    lam = float(rng.beta(alpha, alpha)) if alpha > 0 else 1.0
    partner = torch.from_numpy(rng.permutation(len(y))).to(y.device)
    return torch.lerp(x[partner], x, lam), y[partner], lam


def mixup_cross_entropy(alpha: float, rng: np.random.Generator) -> Objective:
    """The objective of one local training; alpha = 0: no mixing.

    Batches come in a fixed order, so one random stream serves all of them.
    """

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        if alpha == 0:
            return F.cross_entropy(model(batch.x), batch.y)
        x, partner_y, lam = mixup(batch.x, batch.y, alpha, rng)
        logits = model(x)
        loss = F.cross_entropy(logits, batch.y)
        return lam * loss + (1.0 - lam) * F.cross_entropy(logits, partner_y)

    return objective
