"""Whether the exported file gives the numbers of the run's model, measured on test images.

The check happens before the exported folder appears.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedgsca.errors import FedgscaError
from fedgsca.lab.export.trained_model import Probabilities, TrainedModel
from fedgsca.rng import stream
from fedgsca.support.json_record import Record, stored_as

# largest difference of a probability
LIMIT = 1e-4
# test images at most, spread evenly
MAX_IMAGES = 256
# images of noise, where the data is not available
RANDOM_IMAGES = 32
# not a divisor of the numbers above: the file must accept batches of any size
_BATCH_SIZE = 24


@dataclass(frozen=True)
class ExportCheck(Record):
    """check.json: the record of one comparison."""

    # "test images" or "random images"
    inputs: str
    # the reason for random images, else empty
    fallback_reason: str = field(metadata=stored_as("why"))
    images: int
    inputs_sha256: str
    largest_difference: float
    limit: float
    # images for which both models name the same class
    same_class: int

    @property
    def passed(self) -> bool:
        """Whether the difference is small enough."""
        return bool(self.largest_difference <= self.limit)

    def to_json(self) -> dict[str, Any]:
        """The content of check.json, with the verdict."""
        return {**super().to_json(), "passed": self.passed}


@dataclass(frozen=True)
class CheckImages:
    """Inputs for a check, and the reason if they are not test images.

    (n, H, W, 3) uint8 images, or (n, D) float32 features of the user's own.
    """

    images: np.ndarray
    fallback_reason: str = ""


def compare_models(
    trained_model: TrainedModel, reference: Probabilities, exported_model: Probabilities
) -> ExportCheck:
    """Compare the model of a run with its export."""
    sample = sample_images(trained_model)
    reference_probs = _predict_in_batches(reference, sample.images)
    exported_probs = _predict_in_batches(exported_model, sample.images)
    difference = float(np.abs(reference_probs - exported_probs).max())
    same_class = reference_probs.argmax(axis=1) == exported_probs.argmax(axis=1)
    return ExportCheck(
        inputs="random images" if sample.fallback_reason else "test images",
        fallback_reason=sample.fallback_reason,
        images=len(sample.images),
        inputs_sha256=hashlib.sha256(np.ascontiguousarray(sample.images).data).hexdigest(),
        largest_difference=difference if np.isfinite(difference) else float("inf"),
        limit=LIMIT,
        same_class=int(np.sum(same_class)),
    )


def _predict_in_batches(model: Probabilities, images: np.ndarray) -> np.ndarray:
    """(n, C) float64."""
    batches = []
    for start in range(0, len(images), _BATCH_SIZE):
        batches.append(np.asarray(model(images[start : start + _BATCH_SIZE]), np.float64))
    return np.concatenate(batches)


def sample_images(trained_model: TrainedModel) -> CheckImages:
    """Images of the run's test set; images of noise where its data is gone or has changed."""
    from fedgsca.config import SITES_SOURCE
    from fedgsca.federation.deployment import prepare_coordinator
    from fedgsca.federation.simulation import read_run_table

    config = trained_model.config
    try:
        if config.data.source == SITES_SOURCE:
            # the coordinator of a deployment may have test images of its own
            table = prepare_coordinator(config).table
        else:
            table = read_run_table(config, trained_model.path)
    except FedgscaError as error:
        return _random_images(
            trained_model, f"the data of the run cannot be read ({type(error).__name__})"
        )
    rows = table.rows("test")
    if not len(rows):
        return _random_images(trained_model, "there are no test images on this machine")
    if table.fingerprint != trained_model.setup.data.fingerprint:
        return _random_images(trained_model, "the data has changed since the run")
    positions = np.linspace(0, len(rows) - 1, min(MAX_IMAGES, len(rows))).astype(np.int64)
    contents = table.images
    if trained_model.feature_width is not None and table.features is not None:
        contents = table.features
    return CheckImages(np.asarray(contents[rows[np.unique(positions)]]))


def _random_images(trained_model: TrainedModel, reason: str) -> CheckImages:
    if trained_model.feature_width is not None:
        vector_shape = (RANDOM_IMAGES, trained_model.feature_width)
        vectors = stream(0, "export", "check").standard_normal(vector_shape, dtype=np.float32)
        return CheckImages(vectors, reason)
    shape = (RANDOM_IMAGES, *trained_model.image_size, 3)
    images = stream(0, "export", "check").integers(0, 256, shape, dtype=np.uint8)
    return CheckImages(images, reason)
