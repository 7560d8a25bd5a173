"""Does the exported file give the numbers of the run's model? Tried on the run's own test images before the folder appears."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedgsca.errors import FedgscaError
from fedgsca.export.trained_model import Probabilities, Trained
from fedgsca.rng import stream

LIMIT = 1e-4  # largest difference of a probability
IMAGES = 256  # test images at most, spread evenly
RANDOM = 32  # images of noise where the data is not at hand
_BATCH = 24  # not a divisor of the numbers above: the file must take batches of any size


@dataclass(frozen=True)
class Check:
    """The record of one comparison."""

    inputs: str  # "test images" or "random images"
    why: str  # why random, else empty
    images: int
    inputs_sha256: str
    largest_difference: float
    limit: float
    same_class: int  # images for which both name the same class

    @property
    def passed(self) -> bool:
        return bool(self.largest_difference <= self.limit)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def compare(trained: Trained, reference: Probabilities, exported: Probabilities) -> Check:
    images, why = sample_images(trained)
    wanted, given = _answers(reference, images), _answers(exported, images)
    gap = float(np.abs(wanted - given).max())
    return Check(
        inputs="random images" if why else "test images",
        why=why,
        images=len(images),
        inputs_sha256=hashlib.sha256(np.ascontiguousarray(images).data).hexdigest(),
        largest_difference=gap if np.isfinite(gap) else float("inf"),
        limit=LIMIT,
        same_class=int(np.sum(wanted.argmax(axis=1) == given.argmax(axis=1))),
    )


def _answers(model: Probabilities, images: np.ndarray) -> np.ndarray:
    return np.concatenate(
        [
            np.asarray(model(images[i : i + _BATCH]), np.float64)
            for i in range(0, len(images), _BATCH)
        ]
    )


def sample_images(trained: Trained) -> tuple[np.ndarray, str]:
    """Images of the run's test set; images of noise, and why, where its data is gone or has changed."""
    from fedgsca.config import SITES_SOURCE
    from fedgsca.experiment.deployment import prepare_coordinator
    from fedgsca.experiment.simulation import load_table

    config = trained.config
    try:  # of a deployment the coordinator may have test images of its own
        table = (
            prepare_coordinator(config).table
            if config.data.source == SITES_SOURCE
            else load_table(config)
        )
        why = (
            ""
            if table.fingerprint == trained.setup["data"].get("fingerprint")
            else "the data has changed since the run"
        )
        why = why if len(table.rows("test")) else "there are no test images here"
    except FedgscaError as error:
        why = f"the data of the run cannot be read: {type(error).__name__}"
    if why:
        return stream(0, "export", "check").integers(
            0, 256, (RANDOM, *trained.image_size, 3), dtype=np.uint8
        ), why
    rows = table.rows("test")
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, min(IMAGES, len(rows))).astype(np.int64))]
    return np.asarray(table.images[chosen]), ""
