"""FedGSCA's step C: the objective of one round (Eq. 14-17)."""

from __future__ import annotations

import numpy as np

from fedgsca.credal import credal_gradient, rcl_loss, ucl_loss
from fedgsca.methods.parts.fedgsca_options import FedGSCAOptions
from fedgsca.support.lazy_torch import F, Tensor, nn, torch
from fedgsca.train import Batch


class CredalObjective:
    """The credal loss at one beta, or cross-entropy with `loss = "ce"`: an objective for `train`.

    class_weights (C,) weight the samples by their training label; permission (n, C) bool, by row,
    are the classes that may join the credal set.
    """

    def __init__(
        self,
        options: FedGSCAOptions,
        beta: float,
        class_weights: np.ndarray | None = None,
        permission: np.ndarray | None = None,
    ) -> None:
        self.options = options
        self.beta = beta
        self.permission = permission
        self.class_weights: Tensor | None = None
        if class_weights is not None:
            self.class_weights = torch.from_numpy(class_weights)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch."""
        losses = self._losses(model(batch.x), batch)
        if self.class_weights is None:
            return losses.mean()
        return (losses * self.class_weights.to(losses)[batch.y]).mean()

    def _losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """(b,)"""
        options = self.options
        if options.loss == "ce":
            return F.cross_entropy(logits, batch.y, reduction="none")
        credal_loss = rcl_loss if options.loss == "rcl" else ucl_loss
        return credal_loss(
            logits,
            batch.y,
            alpha=options.alpha,
            beta=self.beta,
            reduction="none",
            permission=self._permitted_classes(logits, batch),
        )

    @property
    def has_gradient(self) -> bool:
        """Both credal losses have a gradient of their own."""
        return self.options.loss != "ce"

    def logit_gradient(self, logits: Tensor, batch: Batch) -> Tensor:
        """(b, C): the derivative of the mean loss."""
        mean_weight = 1.0 / len(batch.y)
        if self.class_weights is None:
            weights = torch.full((len(batch.y), 1), mean_weight, dtype=logits.dtype)
        else:
            weights = self.class_weights.to(logits)[batch.y][:, None] * mean_weight
        return credal_gradient(
            logits,
            batch.y,
            weights,
            alpha=self.options.alpha,
            beta=self.beta,
            permission=self._permitted_classes(logits, batch),
            uniform=self.options.loss == "ucl",
        )

    def _permitted_classes(self, logits: Tensor, batch: Batch) -> Tensor | None:
        if self.permission is None:
            return None
        return torch.from_numpy(self.permission[batch.rows]).to(logits.device)
