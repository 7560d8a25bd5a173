"""The loss of a given label: cross-entropy or one of four losses that trust labels less.

`train.loss` chooses it for every method whose objective is a plain cross-entropy; other methods
have a loss of their own (`Method.takes_loss`). p is the model's probability, y the label:

    ce    -log p_y
    smooth  cross-entropy with (1 - s) onehot(y) + s / C, s = train.smoothing
    sce   alpha (-log p_y) + beta RCE,   RCE = -sum_c p_c log q_c = -log(1e-4) (1 - p_y)
          symmetric cross-entropy (Wang et al., ICCV 2019); log 0 of the one-hot label q is replaced
          by log 1e-4, as in the authors' code
    gce   (1 - p_y^q) / q
          generalised cross-entropy (Zhang and Sabuncu, NeurIPS 2018), without their truncation;
          q -> 0 is ce, q = 1 is the mean absolute error
    elr   -log p_y + lambda log(1 - <t_i, p>),   t_i <- m t_i + (1 - m) p
          early-learning regularisation (Liu et al., NeurIPS 2020), without ELR+'s second network

t_i, the running mean of the model's opinions about sample i, is ELR's memory. It starts at zero, is
updated in every step and stays in the site's store, so that a run that was resumed ends in the same
bytes. In the federation the model of each round is the global one; t_i therefore remembers the
opinions of the models that this site has trained.
"""

from __future__ import annotations

import math

import numpy as np

from fedgsca.methods.base import LOSS_MEMORY
from fedgsca.methods.site import Site
from fedgsca.methods.train import Batch, cross_entropy_gradient
from fedgsca.support.lazy_torch import F, Tensor, nn, torch

# of the one-hot label in the reverse cross-entropy
LOG_ZERO = math.log(1e-4)
# ELR's probabilities stay this far from 0 and 1, as in the authors' code
_MARGIN = 1e-4


def symmetric_cross_entropy(logits: Tensor, y: Tensor, alpha: float, beta: float) -> Tensor:
    """(n,): alpha CE + beta RCE of logits (n, C)."""
    losses = F.cross_entropy(logits, y, reduction="none")
    return alpha * losses + beta * -LOG_ZERO * (1.0 - torch.exp(-losses))


def generalised_cross_entropy(logits: Tensor, y: Tensor, q: float) -> Tensor:
    """(n,): (1 - p_y^q) / q of logits (n, C)."""
    losses = F.cross_entropy(logits, y, reduction="none")
    return (1.0 - torch.exp(-q * losses)) / q


def early_learning_penalty(p: Tensor, targets: Tensor) -> Tensor:
    """(n,): log(1 - <t_i, p>) of probabilities (n, C) and targets (n, C)."""
    return torch.log(1.0 - (targets * p).sum(dim=1))


class LabelLoss:
    """The configured loss of one site in one round: an objective for `train`."""

    def __init__(self, site: Site, round: int) -> None:
        """Reads ELR's memory; the other losses have none."""
        self.site = site
        self.round = round
        self.hyper = site.hyper
        self.targets = np.zeros((0, site.num_classes), np.float32)
        if self.hyper.loss == "elr":
            memory = site.store.part(LOSS_MEMORY).read_before(round)
            empty = np.zeros((site.num_samples, site.num_classes), np.float32)
            self.targets = np.array(memory.get("targets", empty))  # (n, C)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch."""
        return self.of(model(batch.x), batch)

    def of(self, logits: Tensor, batch: Batch) -> Tensor:
        """The mean loss of a batch whose logits (b, C) are known."""
        hyper = self.hyper
        if hyper.loss == "sce":
            return symmetric_cross_entropy(logits, batch.y, hyper.sce_alpha, hyper.sce_beta).mean()
        if hyper.loss == "gce":
            return generalised_cross_entropy(logits, batch.y, hyper.gce_q).mean()
        smoothing = hyper.smoothing if hyper.loss == "smooth" else 0.0
        loss = F.cross_entropy(logits, batch.y, label_smoothing=smoothing)
        if hyper.loss == "elr":
            p = torch.softmax(logits.float(), dim=1).clamp(_MARGIN, 1.0 - _MARGIN)
            loss = (
                loss + hyper.elr_strength * early_learning_penalty(p, self._update(p, batch)).mean()
            )
        return loss

    @property
    def has_gradient(self) -> bool:
        """Cross-entropy has a gradient of its own; the other losses are left to autograd."""
        return self.hyper.loss == "ce"

    def logit_gradient(self, logits: Tensor, batch: Batch) -> Tensor:
        """(b, C): the derivative of the mean cross-entropy."""
        return cross_entropy_gradient(logits, batch.y)

    def save(self) -> None:
        """Keep ELR's memory for the next round; call it after the training."""
        if self.hyper.loss == "elr":
            self.site.store.part(LOSS_MEMORY).write(self.round, {"targets": self.targets})

    def _update(self, p: Tensor, batch: Batch) -> Tensor:
        """The targets of the batch (b, C) after this step's opinion was added."""
        opinion = (p / p.sum(dim=1, keepdim=True)).detach().cpu().numpy()
        memory = self.hyper.elr_memory
        targets = memory * self.targets[batch.rows] + (1.0 - memory) * opinion
        self.targets[batch.rows] = targets
        return torch.from_numpy(self.targets[batch.rows]).to(p.device)
