"""The whole way from pixels to probabilities as one network: what is exported.

Inputs are uint8 RGB images of one size, (n, H, W, 3), as every decoder gives them. Normalisation, the resizing in front of a frozen
backbone and the softmax are inside, so that an integrator has no constants to copy. Reading, turning and cropping files stay outside.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.export.model_json import Description
from fedgsca.models.build import Classifier, spec_of


class EndToEndModel(nn.Module):
    """(n, H, W, 3) uint8 -> (n, C) float32 probabilities."""

    mean: Tensor
    std: Tensor
    down: Tensor
    across: Tensor

    def __init__(self, model: Classifier, about: Description) -> None:
        super().__init__()
        spec = spec_of(about.architecture)
        height, width = about.image_size
        self.backbone, self.head, self.width, self.frozen = (
            model.backbone,
            model.head,
            spec.width,
            about.frozen,
        )
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(spec.std).view(1, 3, 1, 1))
        size = about.feature_size
        self.resizes = size is not None and (height, width) != (size, size)
        # a resizing between two fixed sizes is a product with two matrices: the same numbers in every runtime
        self.register_buffer("down", _resizing(height, size or height))  # (size, H)
        self.register_buffer("across", _resizing(width, size or width).T.contiguous())  # (W, size)

    def forward(self, images: Tensor) -> Tensor:
        x = images.permute(0, 3, 1, 2).float()
        if self.resizes:
            x = self.down @ x @ self.across
        features = self.backbone((x - self.mean) / self.std)
        if self.frozen:  # as in models/features.py
            features = F.layer_norm(features, (self.width,))
        return torch.softmax(self.head(features), dim=1)


def _resizing(old: int, new: int) -> Tensor:
    """(new, old): the antialiased linear resizing of models/features.py, read off from what it does to unit vectors."""
    if old == new:
        return torch.eye(old)
    unit = torch.eye(old).view(1, 1, old, old)
    return F.interpolate(
        unit, size=(new, old), mode="bilinear", align_corners=False, antialias=True
    )[0, 0]
