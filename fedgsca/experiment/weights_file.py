"""The file with pretrained weights from which the model of an experiment starts."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import numpy as np

from fedgsca.config import Config
from fedgsca.errors import ConfigError
from fedgsca.support.digests import sha256_file
from fedgsca.support.import_path import is_import_path


def weights_path(config: Config) -> Path | None:
    """Where the weights file is; None for a model that starts from random weights."""
    if config.model.weights == "packaged":
        from fedgsca.models.efficientnet import packaged_weights

        if config.model.name != "efficientnet-lite0":
            raise ConfigError(
                "weights.not-packaged",
                f"no weights are packaged for {config.model.name}",
                fix="--set model.weights=FILE",
            )
        return packaged_weights()
    return Path(config.model.weights).expanduser() if config.model.weights else None


def weights_digest(config: Config) -> str | None:
    """sha256 of the weights file; None without one.

    A frozen network of the user's own may bring its weights along: then it is a digest of these.
    """
    path = weights_path(config)
    if path is None and brings_weights(config):
        return _state_digest(config.model.name, config.seed)
    if path is None or not path.is_file():
        return None
    return sha256_file(path)


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
