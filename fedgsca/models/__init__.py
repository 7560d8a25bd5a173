"""Networks: a small CNN, ResNet-18/50, EfficientNet-Lite0, and a head alone for frozen features."""

from fedgsca.models.build import (
    MODELS,
    Classifier,
    build_classifier,
    build_head_only,
    feature_width,
    trainable_names,
)

__all__ = [
    "MODELS",
    "Classifier",
    "build_classifier",
    "build_head_only",
    "feature_width",
    "trainable_names",
]
