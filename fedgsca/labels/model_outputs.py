"""Outputs of the run's own network: features for "similar images", a judgement of test labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.evidence import Judgement, judge_alone
from fedgsca.methods.site import Samples

if TYPE_CHECKING:
    from fedgsca.labels.site_data import SiteData
    from fedgsca.methods.train import Evaluation


def evaluate_rows(site_data: SiteData, rows: np.ndarray, run: Path) -> Evaluation | None:
    """Outputs and features of the run's newest model on these rows, (m,), of a site.

    None where the folder contains no model: a hospital's own state, or no round is finished.
    """
    import torch

    from fedgsca.federation.samples import frozen_features
    from fedgsca.lab.export.trained_model import build_network, read_trained
    from fedgsca.methods.site import RowView
    from fedgsca.methods.train import evaluate
    from fedgsca.models.build import Classifier, spec_of

    try:
        model = build_network(read_trained(run, checkpoint=True))
    except RunFolderError:
        return None
    table = site_data.table
    inputs = table.images
    if site_data.config.model.frozen:
        inputs = frozen_features(site_data.config, table)
        model = Classifier(torch.nn.Identity(), model.head)
    spec = spec_of(site_data.config.model.name)
    view: np.ndarray = RowView(inputs, site_data.rows[rows])  # type: ignore[assignment]
    samples = Samples(view, site_data.given[rows], table.num_classes, spec.mean, spec.std)
    return evaluate(model, samples, torch.device("cpu"), features=True)


def judge_test_labels(site_data: SiteData, run: Path) -> Judgement:
    """The judgement of the final model, which was never trained on them, about held-out labels."""
    evaluation = evaluate_rows(site_data, np.arange(len(site_data)), run)
    if evaluation is None:
        raise RunFolderError(
            "audit.no-model",
            f"{run} contains no model to evaluate the test images with",
            fix="finish the run with `fedgsca resume`",
        )
    return judge_alone(evaluation.probs, site_data.given, np.arange(len(site_data)) % 2)
