"""`fedgsca export --temperature`: probabilities that mean what they say, as far as one number can.

The temperature is fitted on images that the model was neither trained nor tested on: the validation
images, whose labels count as correct, or else the images that `evidence.holdout` kept out of the
training, with the labels that were given to them. Test images only measure what it changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedgsca.config import SITES_SOURCE
from fedgsca.data.table import ImageTable
from fedgsca.errors import RunFolderError
from fedgsca.federation.calibration import (
    fit_temperature,
    log_loss,
    reliability_curve,
    scale_probabilities,
)
from fedgsca.federation.final_statistics import read_predictions_file
from fedgsca.lab.export.trained_model import (
    Probabilities,
    TrainedModel,
    predict_in_batches,
    read_table,
)
from fedgsca.support.json_record import Record

VALIDATION = "validation images"
HOLDOUT = "held-out training images with their given labels"
GIVEN_LABELS_CAUTION = (
    "the temperature was fitted on given labels: where these are wrong, it is too high, and the"
    " probabilities are too cautious"
)
# with fewer images, the temperature is chance
MIN_IMAGES = 20
_BATCH_SIZE = 256


@dataclass(frozen=True)
class TemperatureFit(Record):
    """Part of model.json. ECE is in percent, losses are mean cross-entropies."""

    temperature: float
    fitted_on: str  # VALIDATION or HOLDOUT
    images: int
    loss_before: float  # on the images that it was fitted on
    loss_after: float
    # on the test images of the run, which took no part; None if there are none on this machine
    test_images: int | None = None
    test_ece_before: float | None = None
    test_ece_after: float | None = None
    test_loss_before: float | None = None
    test_loss_after: float | None = None

    @property
    def has_given_labels(self) -> bool:
        """Whether the labels may be wrong: then the temperature tends to be too high."""
        return self.fitted_on == HOLDOUT


def fit_to_run(trained_model: TrainedModel, model: Probabilities) -> TemperatureFit:
    """The temperature of a run's model; an error if there are no images to fit it on."""
    images, labels, source = _find_images(trained_model)
    if len(labels) < MIN_IMAGES:
        raise RunFolderError(
            "export.too-few-calibration-images",
            f"a temperature needs at least {MIN_IMAGES} images, but there are {len(labels)}"
            f" {source}",
            fix="mark more images with split = val, or leave out --temperature",
        )
    probs = predict_in_batches(model, images, _BATCH_SIZE)
    temperature = fit_temperature(labels, probs)
    fit = TemperatureFit(
        temperature=temperature,
        fitted_on=source,
        images=len(labels),
        loss_before=log_loss(labels, probs),
        loss_after=log_loss(labels, scale_probabilities(probs, temperature)),
    )
    return _with_test_scores(fit, trained_model)


def _with_test_scores(fit: TemperatureFit, trained_model: TrainedModel) -> TemperatureFit:
    """The fit with what it changes on the test images."""
    predictions = None
    if trained_model.is_finished:
        predictions = read_predictions_file(trained_model.path)
    if predictions is None:
        return fit
    labels, probs = predictions.labels, predictions.probs
    scaled_probs = scale_probabilities(probs, fit.temperature)
    return replace(
        fit,
        test_images=len(labels),
        test_ece_before=100.0 * reliability_curve(labels, probs).ece,
        test_ece_after=100.0 * reliability_curve(labels, scaled_probs).ece,
        test_loss_before=log_loss(labels, probs),
        test_loss_after=log_loss(labels, scaled_probs),
    )


def describe_fit(fit: TemperatureFit) -> str:
    """One line for people."""
    text = f"temperature {fit.temperature:.3g}, fitted on {fit.images} {fit.fitted_on}"
    if fit.test_ece_before is None or fit.test_ece_after is None:
        return text
    text = (
        f"{text}; calibration error on the {fit.test_images} test images"
        f" {fit.test_ece_before:.1f} before, {fit.test_ece_after:.1f} after (percent)"
    )
    if fit.test_ece_after > fit.test_ece_before:
        text += "; the scaling made it worse there, so consider an export without --temperature"
    return text


def with_temperature(model: Probabilities, temperature: float) -> Probabilities:
    """The model with softmax(z / T) instead of softmax(z)."""

    def probabilities(images: np.ndarray) -> np.ndarray:
        return scale_probabilities(np.asarray(model(images), np.float64), temperature)

    return probabilities


def _find_images(trained_model: TrainedModel) -> tuple[np.ndarray, np.ndarray, str]:
    """Images (n, H, W, 3), labels (n,) and what they are."""
    config = trained_model.config
    table = read_table(trained_model)
    if table.fingerprint != trained_model.setup.data.fingerprint:
        raise RunFolderError(
            "export.data-changed",
            f"the images or labels of {trained_model.path} have changed since the run",
            fix="restore the data as it was, or leave out --temperature",
        )
    rows = table.rows("val")
    if len(rows):
        return table.images[rows], table.labels[rows], VALIDATION
    if config.data.source == SITES_SOURCE or not config.evidence.holdout:
        raise RunFolderError(
            "export.no-calibration-images",
            f"the run in {trained_model.path} has neither validation images nor held-out images on"
            " this machine, and a temperature must not be fitted on test or training images",
            fix="mark some images with split = val, or run with --set evidence.holdout=0.1",
        )
    table, rows, labels = _find_holdout(trained_model)
    return table.images[rows], labels, HOLDOUT


def _find_holdout(trained_model: TrainedModel) -> tuple[ImageTable, np.ndarray, np.ndarray]:
    """The experiment's table, the rows (n,) that no model trained on, and their given labels."""
    from fedgsca.federation.simulation import prepare
    from fedgsca.methods.parts.evidence_heads import find_holdout

    config = trained_model.config
    experiment = prepare(config, folder=trained_model.path)
    rows = []
    labels = []
    for name, samples in experiment.sites.items():
        mask = find_holdout(config.seed, name, samples, config.evidence.holdout)
        rows.append(experiment.rows[name][mask])
        labels.append(samples.labels[mask])
    return experiment.table, np.concatenate(rows), np.concatenate(labels)
