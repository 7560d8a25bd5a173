"""DenseNet-121 of MONAI, and the names of torchvision's published weights."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.models.monai_extra import need_monai

# torchvision's names, also of its oldest files: denselayer1.norm.1 for denselayer1.layers.norm1
_LAYER = re.compile(r"(.*\bdenselayer\d+)\.(?:layers\.)?(norm|conv)\.?([12])\.(.+)")


class PooledDenseNet(nn.Module):
    """DenseNet-121 up to its pooled features; seven million parameters."""

    def __init__(self) -> None:
        super().__init__()
        need_monai("densenet121")
        from monai.networks.nets import DenseNet121  # type: ignore[attr-defined]

        self.net = DenseNet121(spatial_dims=2, in_channels=3, out_channels=2)
        del self.net.class_layers  # replaced by our own head

    def forward(self, x: Tensor) -> Tensor:
        """(b, 3, H, W) -> (b, 1024); H and W are at least 32."""
        features: Tensor = self.net.features(x)
        return F.relu(features).mean(dim=(2, 3))

    @staticmethod
    def rename_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights under MONAI's names, from MONAI's or torchvision's."""
        names = {}
        for name, tensor in tensors.items():
            match = _LAYER.fullmatch(name)
            if match is not None:
                block, kind, number, parameter = match.groups()
                name = f"{block}.layers.{kind}{number}.{parameter}"
            if not name.startswith("features."):  # a shared prefix that was taken off
                name = f"features.{name}"
            names[name] = tensor
        return names
