"""The model with which an experiment starts; the same bytes for every method with the same head."""

from __future__ import annotations

from pathlib import Path

from fedgsca.config import ModelConfig
from fedgsca.models.build import Classifier, build_classifier, build_head_only
from fedgsca.models.weights import load_backbone


def build_model(
    model: ModelConfig, num_classes: int, *, width: int, head: str, seed: int, weights: Path | None
) -> Classifier:
    """A fresh head on a fresh or pretrained backbone; in frozen mode the head alone.

    `width` is that of the feature vectors, `weights` the file of the pretrained backbone; None: the
    backbone is fresh.
    """
    if model.frozen:
        return build_head_only(width, num_classes, seed=seed, head=head)
    classifier = build_classifier(model.name, num_classes, seed=seed, head=head)
    if weights is not None:
        load_backbone(classifier.backbone, weights)
    return classifier
