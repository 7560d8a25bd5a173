"""One network from pixels to probabilities: this is what is exported.

Inputs are uint8 RGB images of one size, (n, H, W, 3), as every decoder gives them. Normalisation,
the resizing in front of a frozen backbone and the softmax are inside, so that an integrator has no
constants to copy. Reading, rotating and cropping files stay outside.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.lab.export.model_json import ModelDescription
from fedgsca.models.build import Classifier, feature_width, spec_of


class FeatureModel(nn.Module):
    """(n, D) float32 features of the user's own network -> (n, C) float32 probabilities."""

    def __init__(self, model: Classifier, width: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.head = model.head
        self.width = width
        self.temperature = temperature

    def forward(self, features: Tensor) -> Tensor:
        """Probabilities (n, C) of features (n, D)."""
        return self.classify(F.layer_norm(features, (self.width,)))  # as in models/features.py

    def classify(self, features: Tensor) -> Tensor:
        """The head and the softmax on top of it."""
        logits = self.head(features)
        if self.temperature != 1.0:
            logits = logits / self.temperature
        return torch.softmax(logits, dim=1)


class EndToEndModel(FeatureModel):
    """(n, H, W, 3) uint8 -> (n, C) float32 probabilities."""

    mean: Tensor
    std: Tensor
    resize_rows: Tensor
    resize_columns: Tensor

    def __init__(self, model: Classifier, description: ModelDescription) -> None:
        super().__init__(model, feature_width(description.model), description.temperature)
        spec = spec_of(description.architecture)
        height, width = description.image_size
        self.frozen = description.frozen
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(spec.std).view(1, 3, 1, 1))
        size = description.feature_size
        self.resizes = size is not None and (height, width) != (size, size)
        # A resizing between two fixed sizes is a product with two matrices, (size, H) and
        # (W, size): the same numbers in every runtime.
        columns = resize_matrix(width, size or width).T.contiguous()
        self.register_buffer("resize_rows", resize_matrix(height, size or height))
        self.register_buffer("resize_columns", columns)

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities (n, C) of images (n, H, W, 3)."""
        x = images.permute(0, 3, 1, 2).float()
        if self.resizes:
            x = self.resize_rows @ x @ self.resize_columns
        features = self.backbone((x - self.mean) / self.std)
        if self.frozen:
            return super().forward(features)
        return self.classify(features)


def make_export_model(model: Classifier, description: ModelDescription) -> nn.Module:
    """The network that is exported, with everything that an integrator would have to repeat."""
    if description.feature_width is not None:
        return FeatureModel(model, description.feature_width, description.temperature).eval()
    return EndToEndModel(model, description).eval()


def example_input(description: ModelDescription) -> Tensor:
    """Two inputs of zeros, for exporters that follow an example."""
    if description.feature_width is not None:
        return torch.zeros((2, description.feature_width))
    return torch.zeros((2, *description.image_size, 3), dtype=torch.uint8)


def resize_matrix(old: int, new: int) -> Tensor:
    """(new, old): the antialiased linear resizing of models/features.py.

    It is measured by what the resizing does to unit vectors.
    """
    if old == new:
        return torch.eye(old)
    unit = torch.eye(old).view(1, 1, old, old)
    size = (new, old)
    rows = F.interpolate(unit, size=size, mode="bilinear", align_corners=False, antialias=True)
    return rows[0, 0]
