"""From rows of a table to the samples that a site trains on: images, or frozen features.

Frozen features are computed once per data set and cached on disk.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fedgsca.config import OWN_FEATURES, Config, ModelConfig
from fedgsca.data.cache import cached_array
from fedgsca.data.readers.features_npz import FILE_NAME
from fedgsca.data.table import ImageTable, images_digest
from fedgsca.errors import ConfigError, DataError, WeightsError
from fedgsca.methods.base import head_rounds
from fedgsca.methods.site import RowView, Samples
from fedgsca.support.files import sha256_file
from fedgsca.support.registry import is_import_path

# table rows (n,), labels (n,) -> samples
Sampler: TypeAlias = Callable[[np.ndarray, np.ndarray], Samples]

MEMORY_LIMIT = 1 << 30  # bytes; larger parts stay in the memory map


def make_sampler(config: Config, table: ImageTable) -> Sampler:
    """A function that makes samples of any rows of the table."""
    from fedgsca.models.build import spec_of

    spec = spec_of(config.model.name)
    features = None
    if config.model.frozen:
        inputs = frozen_features(config, table)
    else:
        check_images(config, table)
        inputs = table.images
        judge = evidence_config(config)
        features = None if judge is None else frozen_features(judge, table)

    def make_samples(rows: np.ndarray, labels: np.ndarray) -> Samples:
        return Samples(
            take_rows(inputs, rows),
            labels.astype(np.int64),
            table.num_classes,
            spec.mean,
            spec.std,
            None if table.groups is None else table.groups[rows],
            None if table.checked is None else table.checked.part(rows),
            None if features is None else take_rows(features, rows),
        )

    return make_samples


def split_samples(table: ImageTable, split: str, sampler: Sampler) -> Samples | None:
    """The samples of a split with their true labels; None if the split is empty."""
    rows = table.rows(split)
    return sampler(rows, table.labels[rows]) if len(rows) else None


def take_rows(source: np.ndarray, rows: np.ndarray, limit: int = MEMORY_LIMIT) -> np.ndarray:
    """Rows of a large array: a copy in memory if it is small, else gathered per batch."""
    row_bytes = int(np.prod(source.shape[1:])) * source.dtype.itemsize
    if len(rows) * row_bytes <= limit:
        return np.ascontiguousarray(source[rows])
    return RowView(source, rows)  # type: ignore[return-value]


# ---- frozen features ----


def evidence_config(config: Config) -> Config | None:
    """The experiment with the frozen network whose features evidence heads see instead.

    None: nobody needs them, or the heads see what the model sees.
    """
    backbone = config.evidence.backbone
    if config.model.frozen or backbone is None or not head_rounds(config):
        return None
    model = ModelConfig(
        name=backbone, weights="packaged", frozen=True, feature_size=config.model.feature_size
    )
    return config.model_copy(update={"model": model})


def backbone_digest(config: Config) -> str:
    """Digest of the weights behind all frozen features of an experiment; empty: there are none."""
    frozen = config if config.model.frozen else evidence_config(config)
    return "" if frozen is None else weights_digest(frozen) or ""


def frozen_features(config: Config, table: ImageTable) -> np.ndarray:
    """(n, D) float32: backbone features of every image, cached by content of images and weights.

    Labels and splits are not part of the key: corrected labels and other seeds use the same ones.
    """
    from fedgsca.models.build import build_frozen, feature_width
    from fedgsca.models.features import extract

    if config.model.name == OWN_FEATURES:
        return _own_features(table)
    check_images(config, table)
    weights = needed_weights(config)

    def fill(out: np.ndarray) -> None:
        backbone = build_frozen(config.model, seed=config.seed, weights=weights)
        start = 0
        if table.source_table is not None:  # only images that noise appended are new
            start = len(table.source_table)
            out[:start] = frozen_features(config, table.source_table)
        extract(backbone, config.model, table.images[start:], out[start:])

    key = feature_key(config, table)
    return cached_array(key, (len(table), feature_width(config.model)), np.float32, fill)


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


def feature_key(config: Config, table: ImageTable) -> str:
    """Under which the features of a table are cached."""
    digest = weights_digest(config) or str(needed_weights(config))
    model = config.model
    images = f"{table.images.shape}|{table.image_digest or images_digest(table.images)}"
    network = f"{model.name}|{model.features}|{model.feature_size}"
    identity = f"features-4|{images}|{network}|{digest}"
    return hashlib.sha256(identity.encode()).hexdigest()


# ---- the file of initial weights ----


def weight_files(config: Config) -> tuple[Path, ...]:
    """Where the weights are, a file for each part of the network; none: they are random."""
    if config.model.weights == "packaged":
        from fedgsca.models.weights import packaged_weights

        return packaged_weights(config.model.name)
    return (Path(config.model.weights).expanduser(),) if config.model.weights else ()


def check_weights(config: Config) -> None:
    """Check before anything is trained that the weights are there; their contents are read later.

    Raises an error if the file does not exist, or if a frozen network has no weights.
    """
    needs_weights = config.model.frozen and config.model.name != OWN_FEATURES
    paths = needed_weights(config) if needs_weights else weight_files(config)
    judge = evidence_config(config)
    if judge is not None:
        needed_weights(judge)
    for path in paths:
        if not path.is_file():
            raise WeightsError(
                "weights.file-not-found",
                f"the weights file {path} does not exist",
                fix="give the path of a .safetensors, .pth, .pt or .torch file",
            )


def needed_weights(config: Config) -> tuple[Path, ...]:
    """The weight files of a frozen network; none if the network brings weights along."""
    paths = weight_files(config)
    if not paths and not brings_weights(config):
        raise ConfigError(
            "weights.missing-for-frozen-model",
            f"a frozen {config.model.name} without weights would give random features",
            fix="--set model.weights=FILE, or use model.name=efficientnet-lite0 with its packaged"
            " weights",
        )
    return paths


def weights_digest(config: Config) -> str | None:
    """sha256 of the weights file, or of those of several files; None without one.

    A frozen network of the user's own may bring its weights along: then it is a digest of these.
    """
    paths = weight_files(config)
    if not paths and brings_weights(config):
        return _state_digest(config.model.name, config.seed)
    if not paths or not all(path.is_file() for path in paths):
        return None
    digests = [sha256_file(path) for path in paths]
    return digests[0] if len(digests) == 1 else hashlib.sha256(repr(digests).encode()).hexdigest()


def brings_weights(config: Config) -> bool:
    """Whether this is a frozen network of the user's own, which may be pretrained by itself."""
    return config.model.frozen and is_import_path(config.model.name)


@functools.lru_cache(maxsize=4)
def _state_digest(name: str, seed: int) -> str:
    from fedgsca.models.build import build_backbone

    sha = hashlib.sha256()
    for key, tensor in build_backbone(name, seed=seed).state_dict().items():
        sha.update(f"{key}|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
        sha.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return sha.hexdigest()
