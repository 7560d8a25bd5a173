"""The run's own network on a site's images: features for "similar images", and the only look at a test set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.engine.label_evidence import Evidence, add, means
from fedgsca.errors import RunFolderError
from fedgsca.site import Samples

if TYPE_CHECKING:
    from fedgsca.label_audit.site_data import SiteData
    from fedgsca.train import Evaluation


def outputs(held: SiteData, which: np.ndarray, run: Path) -> Evaluation | None:
    """What the run's newest model says about these rows, with its features; None where the folder holds no model."""
    import torch

    from fedgsca.experiment.simulation import RowView, frozen_features
    from fedgsca.export.trained_model import network, read_trained
    from fedgsca.models.build import Classifier, spec_of
    from fedgsca.train import evaluate

    try:
        model = network(read_trained(run, checkpoint=True))
    except RunFolderError:  # a hospital's own state, or no round is finished
        return None
    inputs, spec = held.table.images, spec_of(held.config.model.name)
    if held.config.model.frozen:
        inputs, model = (
            frozen_features(held.config, held.table),
            Classifier(torch.nn.Identity(), model.head),
        )
    view: np.ndarray = RowView(inputs, held.rows[which])  # type: ignore[assignment]
    samples = Samples(view, held.given[which], held.table.num_classes, spec.mean, spec.std)
    return evaluate(model, samples, torch.device("cpu"), features=True)


def evidence_of_test(held: SiteData, run: Path) -> Evidence:
    """One look at held-out labels by the final model, which was never trained on them."""
    seen = outputs(held, np.arange(len(held)), run)
    if seen is None:
        raise RunFolderError(
            "todo.model-outputs-1",
            f"{run} holds no model to look at the test set with",
            fix="finish the run: `fedgsca resume`",
        )
    return means(add({}, seen.probs, seen.losses, None))
