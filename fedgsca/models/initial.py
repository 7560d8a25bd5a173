"""The model with which an experiment starts: fresh or pretrained backbone, fresh head; the same bytes for every method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedgsca.models.build import Classifier, build_classifier, build_head_only

if TYPE_CHECKING:
    from fedgsca.experiment.simulation import Experiment


def build_model(experiment: Experiment, head: str) -> Classifier:
    from fedgsca.experiment.weights_file import weights_path
    from fedgsca.models.weights import load_backbone

    config = experiment.config
    if config.model.frozen:
        return build_head_only(
            experiment.feature_width, experiment.table.num_classes, seed=config.seed, head=head
        )
    model = build_classifier(
        config.model.name, experiment.table.num_classes, seed=config.seed, head=head
    )
    path = weights_path(config)
    if path is not None:
        load_backbone(model.backbone, path)
    return model
