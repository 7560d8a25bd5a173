"""The file with pretrained weights from which the model of an experiment starts."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import numpy as np

from fedgsca.config import OWN_FEATURES, Config
from fedgsca.errors import ConfigError, WeightsError
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


def check_weights(config: Config) -> None:
    """Check before anything is trained that the weights are there; their contents are read later.

    Raises an error if the file does not exist, or if a frozen network has no weights.
    """
    needs_weights = config.model.frozen and config.model.name != OWN_FEATURES
    path = needed_weights(config) if needs_weights else weights_path(config)
    if path is not None and not path.is_file():
        raise WeightsError(
            "weights.file-not-found",
            f"the weights file {path} does not exist",
            fix="give the path of a .safetensors, .pth, .pt or .torch file",
        )


def needed_weights(config: Config) -> Path | None:
    """The weights file of a frozen network; None if the network brings weights along."""
    path = weights_path(config)
    if path is None and not brings_weights(config):
        raise ConfigError(
            "weights.missing-for-frozen-model",
            f"a frozen {config.model.name} without weights would give random features",
            fix="--set model.weights=FILE, or use model.name=efficientnet-lite0 with its packaged"
            " weights",
        )
    return path


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
