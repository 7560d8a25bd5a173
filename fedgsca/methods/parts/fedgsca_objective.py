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
        # size of a batch -> weights of its classes in the mean, (C,)
        self._mean_weights: dict[int, Tensor] = {}

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
        return credal_gradient(
            logits,
            batch.y,
            self._weights_in_mean(logits, batch).index_select(0, batch.y).unsqueeze(1),
            alpha=self.options.alpha,
            beta=self.beta,
            permission=self._permitted_classes(logits, batch),
            uniform=self.options.loss == "ucl",
        )

    def _weights_in_mean(self, logits: Tensor, batch: Batch) -> Tensor:
        """(C,): the weight of a sample of each class in the mean over the batch."""
        size, num_classes = logits.shape
        if size not in self._mean_weights:
            class_weights = self.class_weights
            if class_weights is None:
                class_weights = torch.ones(num_classes)
            self._mean_weights[size] = class_weights.to(logits) * (1.0 / size)
        return self._mean_weights[size]

    def _permitted_classes(self, logits: Tensor, batch: Batch) -> Tensor | None:
        if self.permission is None:
            return None
        return torch.from_numpy(self.permission.take(batch.rows, axis=0)).to(logits.device)
