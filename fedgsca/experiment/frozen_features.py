"""Features of a frozen backbone, computed once per data set and cached on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from fedgsca.config import Config
from fedgsca.data.cache import cached_array, is_cached
from fedgsca.data.table import ImageTable, images_digest
from fedgsca.errors import ConfigError
from fedgsca.experiment.weights_file import weights_path
from fedgsca.support.digests import sha256_file


def frozen_features(config: Config, table: ImageTable) -> np.ndarray:
    """(n, D) float32: backbone features of every image, cached by content of images and weights.

    Labels and splits are not part of the key: corrected labels and other seeds use the same ones.
    """
    from fedgsca.models.build import build_backbone, spec_of
    from fedgsca.models.features import extract
    from fedgsca.models.weights import load_backbone

    path = _needed_weights(config)
    size = config.model.feature_size
    spec = spec_of(config.model.name)

    def fill(out: np.ndarray) -> None:
        backbone = build_backbone(config.model.name, seed=config.seed)
        load_backbone(backbone, path)
        start = 0
        if table.source_table is not None:  # only images that noise appended are new
            start = len(table.source_table)
            out[:start] = frozen_features(config, table.source_table)
        extract(backbone, spec, table.images[start:], size, out[start:])

    key = _cache_key(config, table, path)
    return cached_array(key, (len(table), spec.width), np.float32, fill)


def copy_features(config: Config, table: ImageTable, source: ImageTable, rows: np.ndarray) -> None:
    """Cache the features of `table`, which has these rows of `source`, as copies of the source's.

    They are the same numbers, without a second pass through the backbone.
    """
    from fedgsca.models.build import spec_of

    def fill(out: np.ndarray) -> None:
        out[:] = frozen_features(config, source)[rows]

    key = _cache_key(config, table, _needed_weights(config))
    cached_array(key, (len(table), spec_of(config.model.name).width), np.float32, fill)


def features_are_cached(config: Config, table: ImageTable) -> bool:
    """Whether the features need not be computed again."""
    return is_cached(_cache_key(config, table, _needed_weights(config)))


def _needed_weights(config: Config) -> Path:
    path = weights_path(config)
    if path is None:
        raise ConfigError(
            "weights.missing-for-frozen-model",
            f"a frozen {config.model.name} without weights would give random features",
            fix="--set model.weights=FILE, or use model.name=efficientnet-lite0 with its packaged"
            " weights",
        )
    return path


def _cache_key(config: Config, table: ImageTable, weights: Path) -> str:
    digest = sha256_file(weights) if weights.is_file() else str(weights)
    model = config.model
    images = f"{table.images.shape}|{table.image_digest or images_digest(table.images)}"
    identity = f"features-3|{images}|{model.name}|{digest}|{model.feature_size}"
    return hashlib.sha256(identity.encode()).hexdigest()
