"""The file with pretrained weights from which the model of an experiment starts."""

from __future__ import annotations

from pathlib import Path

from fedgsca.config import Config
from fedgsca.errors import ConfigError
from fedgsca.support.digests import sha256_file


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
    """sha256 of the weights file; None without one."""
    path = weights_path(config)
    if path is None or not path.is_file():
        return None
    return sha256_file(path)
