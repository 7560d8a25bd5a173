"""Networks: a small CNN, ResNet-18/50, EfficientNet-Lite0, and the head alone for frozen-backbone runs."""

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
