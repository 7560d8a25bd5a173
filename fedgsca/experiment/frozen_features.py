"""Features of a frozen backbone, computed once per data set and cached on disk."""

from __future__ import annotations

import hashlib

import numpy as np

from fedgsca.config import Config
from fedgsca.data.cache import cached_array
from fedgsca.data.table import ImageTable
from fedgsca.errors import ConfigError
from fedgsca.experiment.weights_file import weights_path
from fedgsca.support.digests import sha256_file


def frozen_features(config: Config, table: ImageTable) -> np.ndarray:
    """(n, D) float32: backbone features of every image, cached by content of images and weights."""
    from fedgsca.models.build import build_backbone, spec_of
    from fedgsca.models.features import extract
    from fedgsca.models.weights import load_backbone

    path = weights_path(config)
    if path is None:
        raise ConfigError(
            "weights.missing-for-frozen-model",
            f"a frozen {config.model.name} without weights would give random features",
            fix="--set model.weights=FILE, or use model.name=efficientnet-lite0 with its packaged"
            " weights",
        )
    digest = sha256_file(path) if path.is_file() else str(path)
    size = config.model.feature_size
    spec = spec_of(config.model.name)
    identity = f"features-2|{table.fingerprint}|{config.model.name}|{digest}|{size}"
    key = hashlib.sha256(identity.encode()).hexdigest()

    def fill(out: np.ndarray) -> None:
        backbone = build_backbone(config.model.name, seed=config.seed)
        load_backbone(backbone, path)
        extract(backbone, spec, table.images, size, out)

    return cached_array(key, (len(table), spec.width), np.float32, fill)
