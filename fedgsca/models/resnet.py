"""ResNet-18 and ResNet-50 (He et al., Deep Residual Learning for Image Recognition, CVPR 2016).

Names, shapes and the place of the strides are torchvision's, so that published weight files fit;
there is no `fc`. tests/unit/test_resnet.py compares every name and output with MONAI's networks.
Importing MONAI for them would cost five seconds before the first line of a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# channels of the four stages, before a bottleneck widens them
_STAGES = (64, 128, 256, 512)


class Residual(nn.Module):
    """x -> relu(f(x) + shortcut(x)), where f is a chain of convolutions with BatchNorm.

    `kernels` is (3, 3) for a basic block and (1, 3, 1) for a bottleneck, which has four times as
    many channels at its end. The stride belongs to the first convolution of size 3.
    """

    def __init__(
        self, in_channels: int, channels: int, kernels: Sequence[int], stride: int
    ) -> None:
        super().__init__()
        out_channels = channels * expansion(kernels)
        self.depth = len(kernels)
        width = in_channels
        for number, kernel in enumerate(kernels, start=1):
            next_width = out_channels if number == self.depth else channels
            step = stride if number == kernels.index(3) + 1 else 1
            convolution = nn.Conv2d(
                width, next_width, kernel, stride=step, padding=kernel // 2, bias=False
            )
            self.add_module(f"conv{number}", convolution)
            self.add_module(f"bn{number}", nn.BatchNorm2d(next_width))
            width = next_width
        self.downsample: nn.Module | None = None
        if stride > 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """(b, in_channels, H, W) -> (b, out_channels, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        for number in range(1, self.depth + 1):
            convolution = self.get_submodule(f"conv{number}")
            normal = self.get_submodule(f"bn{number}")
            x = normal(convolution(x))
            if number < self.depth:
                x = torch.relu_(x)
        return torch.relu_(x.add_(shortcut))


def expansion(kernels: Sequence[int]) -> int:
    """How many times wider a block's output is than its middle: 4 for a bottleneck, else 1."""
    return 4 if len(kernels) == 3 else 1


class ResNet(nn.Module):
    """A stem, four stages of residual blocks and a global average."""

    def __init__(self, num_blocks: Sequence[int], kernels: Sequence[int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, _STAGES[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(_STAGES[0])
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        in_channels = _STAGES[0]
        for number, (channels, count) in enumerate(zip(_STAGES, num_blocks, strict=True), start=1):
            blocks = []
            for position in range(count):
                # every stage but the first halves the image in its first block
                stride = 2 if number > 1 and position == 0 else 1
                blocks.append(Residual(in_channels, channels, kernels, stride))
                in_channels = channels * expansion(kernels)
            self.add_module(f"layer{number}", nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:
        """(b, 3, H, W) -> (b, 512) or, with bottlenecks, (b, 2048)."""
        x = self.maxpool(torch.relu_(self.bn1(self.conv1(x))))
        for number in range(1, len(_STAGES) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)


def resnet18() -> ResNet:
    """11.2 million parameters, 512 features."""
    return ResNet((2, 2, 2, 2), (3, 3))


def resnet50() -> ResNet:
    """23.5 million parameters, 2048 features."""
    return ResNet((3, 4, 6, 3), (1, 3, 1))
