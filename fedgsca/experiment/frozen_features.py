"""Features of a frozen backbone, computed once per data set and cached on disk."""

from __future__ import annotations

import hashlib

import numpy as np

from fedgsca.config import OWN_FEATURES, Config
from fedgsca.data.cache import cached_array, is_cached
from fedgsca.data.own_features import FILE_NAME
from fedgsca.data.table import ImageTable, images_digest
from fedgsca.errors import DataError
from fedgsca.experiment.weights_file import needed_weights, weights_digest


def frozen_features(config: Config, table: ImageTable) -> np.ndarray:
    """(n, D) float32: backbone features of every image, cached by content of images and weights.

    Labels and splits are not part of the key: corrected labels and other seeds use the same ones.
    """
    from fedgsca.models.build import build_backbone, spec_of
    from fedgsca.models.features import extract
    from fedgsca.models.weights import load_backbone

    if config.model.name == OWN_FEATURES:
        return _own_features(table)
    check_images(config, table)
    path = needed_weights(config)
    size = config.model.feature_size
    spec = spec_of(config.model.name)

    def fill(out: np.ndarray) -> None:
        backbone = build_backbone(config.model.name, seed=config.seed)
        if path is not None:
            load_backbone(backbone, path)
        start = 0
        if table.source_table is not None:  # only images that noise appended are new
            start = len(table.source_table)
            out[:start] = frozen_features(config, table.source_table)
        extract(backbone, spec, table.images[start:], size, out[start:], network=config.model.name)

    key = _cache_key(config, table)
    return cached_array(key, (len(table), spec.width), np.float32, fill)


def copy_features(config: Config, table: ImageTable, source: ImageTable, rows: np.ndarray) -> None:
    """Cache the features of `table`, which has these rows of `source`, as copies of the source's.

    They are the same numbers, without a second pass through the backbone.
    """
    from fedgsca.models.build import spec_of

    def fill(out: np.ndarray) -> None:
        out[:] = frozen_features(config, source)[rows]

    if config.model.name == OWN_FEATURES:
        return  # the table has them
    key = _cache_key(config, table)
    cached_array(key, (len(table), spec_of(config.model.name).width), np.float32, fill)


def features_are_cached(config: Config, table: ImageTable) -> bool:
    """Whether the features need not be computed again."""
    return config.model.name == OWN_FEATURES or is_cached(_cache_key(config, table))


def check_images(config: Config, table: ImageTable) -> None:
    """Refuse a network for data that has features only."""
    if not table.has_images:
        raise DataError(
            "data.features-only",
            f"{table.name} has features and no images, so the network {config.model.name} has"
            " nothing to look at",
            fix=f"--model {OWN_FEATURES}",
        )


def _own_features(table: ImageTable) -> np.ndarray:
    """(n, D) float32: the user's own vectors, each standardised."""
    from fedgsca.models.features import standardise

    features = table.features
    if features is None:
        raise DataError(
            "data.no-features",
            f"{table.name} has no features of its own",
            fix=f"add {FILE_NAME} (arrays features and files) to the image folder, name such a file"
            " with --features, or choose a network with --model",
        )
    key = f"own-features-1|{features.shape}|{images_digest(features)}"

    def fill(out: np.ndarray) -> None:
        standardise(features, out)

    return cached_array(hashlib.sha256(key.encode()).hexdigest(), features.shape, np.float32, fill)


def _cache_key(config: Config, table: ImageTable) -> str:
    digest = weights_digest(config) or str(needed_weights(config))
    model = config.model
    images = f"{table.images.shape}|{table.image_digest or images_digest(table.images)}"
    identity = f"features-3|{images}|{model.name}|{digest}|{model.feature_size}"
    return hashlib.sha256(identity.encode()).hexdigest()
