"""Backbones up to their pooled features: ResNet, EfficientNet-Lite0, DenseNet-121, ViT-B/16.

Also what the stages of a frozen one give.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.errors import ConfigError, MissingExtraError
from fedgsca.models.weights import need_weights

# ---- ResNet-18 and ResNet-50 (He et al., Deep Residual Learning, CVPR 2016) ----
# Names, shapes and the place of the strides are torchvision's, so that published weight files fit;
# there is no `fc`. tests/unit/test_resnet.py compares every name and output with MONAI's networks.
# Importing MONAI for them would cost five seconds before the first line of a run.


IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
# of EfficientNet-Lite0, the same for all channels
LITE_MEAN = 127.0
LITE_STD = 128.0
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


# ---- EfficientNet-Lite0, of the [weights] extra ----


class PooledEfficientNet(nn.Module):
    """EfficientNet-Lite0 up to its pooled features.

    Drop-connect is off: it would draw from torch's global generator. BatchNorm's statistics follow
    with momentum 0.1 as in other networks: with the package's 0.01, made for long trainings, a
    model that 40 steps have trained is tested with the statistics of the one before them.
    """

    def __init__(self) -> None:
        super().__init__()
        need_weights("efficientnet-lite0")
        from efficientnet_lite_pytorch import EfficientNet

        self.net: Any = EfficientNet.from_name(
            "efficientnet-lite0",
            drop_connect_rate=0.0,
            dropout_rate=0.0,
            batch_norm_momentum=0.9,  # as TensorFlow counts
        )
        del self.net._fc  # replaced by our own head

    def forward(self, x: Tensor) -> Tensor:
        """(b, 3, H, W) -> (b, 1280)."""
        features: Tensor = self.net.extract_features(x)
        return features.mean(dim=(2, 3))


# ---- two networks that see the same image ----


class NetworkPair(nn.Module):
    """EfficientNet-Lite0 and ResNet-50 side by side: the features of both, each standardised."""

    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([PooledEfficientNet(), resnet50()])
        # pixels arrive as the ResNet expects them
        std, mean = (
            torch.tensor(values).view(1, 3, 1, 1) for values in (IMAGENET_STD, IMAGENET_MEAN)
        )
        self.register_buffer("scale", std / LITE_STD, persistent=False)
        self.register_buffer("shift", (mean - LITE_MEAN) / LITE_STD, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(b, 3, H, W) -> (b, 1280 + 2048)."""
        inputs = (x * self.scale + self.shift, x)
        vectors = []
        for part, pixels in zip(self.parts, inputs, strict=True):
            features = part(pixels)
            vectors.append(F.layer_norm(features, features.shape[1:]))
        return torch.cat(vectors, dim=1)


# ---- what the stages of a frozen network give ----


class StageFeatures(nn.Module):
    """A network that gives the averages of named layers in front of its own features.

    Early stages see colour and texture, which the last one has given up for the classes of
    photographs. Each part is standardised by itself, so that sites need not share any statistic,
    and has the same share of the length of the vector, however few numbers it has.
    """

    def __init__(self, net: nn.Module, layers: Sequence[str]) -> None:
        super().__init__()
        self.net = net
        self.layers = tuple(layers)

    def forward(self, x: Tensor) -> Tensor:
        """(b, 3, H, W) -> (b, D): the layers in their order, then the network's features."""
        averages: dict[str, Tensor] = {}

        def watch(name: str) -> Any:
            def keep(module: nn.Module, inputs: Any, output: Any) -> None:
                averages[name] = _average(output, name)

            return self.net.get_submodule(name).register_forward_hook(keep)

        handles = [watch(name) for name in self.layers]
        try:
            features = self.net(x)
        finally:
            for handle in handles:
                handle.remove()
        vectors = []
        for name in self.layers:
            vectors.append(averages[name] if name in averages else _average(None, name))
        vectors.append(features)
        mean_width = sum(vector.shape[1] for vector in vectors) / len(vectors)
        parts = []
        for vector in vectors:
            share = (mean_width / vector.shape[1]) ** 0.5
            parts.append(share * F.layer_norm(vector, vector.shape[1:]))
        return torch.cat(parts, dim=1)


def _average(output: Any, name: str) -> Tensor:
    """(b, D): the mean over places of maps (b, D, H, W) or tokens (b, t, D)."""
    if isinstance(output, Tensor) and output.ndim in (2, 3, 4):
        return output if output.ndim == 2 else output.mean(dim=1 if output.ndim == 3 else (2, 3))
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise ConfigError(
        "model.no-stage",
        f"the layer {name!r} gives {shape} for an image, expected maps (b, D, H, W), tokens"
        " (b, t, D) or vectors (b, D)",
        fix="name other layers in module.feature_layers",
    )


# ---- DenseNet-121 of MONAI, and the names of torchvision's published weights ----
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


# ---- ViT-B/16 of MONAI for images of any size, and the names of the usual published weights ----


PATCH = 16  # pixels
_GRID = 14  # patches per side at 224 pixels, for which there are learned positions
_WIDTH = 768
# names of timm, DeiT and DINO -> names of MONAI
_NAMES = (
    (re.compile(r"^patch_embed\.proj\."), "patch_embedding.patch_embeddings."),
    (re.compile(r"\.mlp\.fc([12])\."), r".mlp.linear\1."),
    (re.compile(r"\.attn\.proj\."), ".attn.out_proj."),
)


class ClassTokenViT(nn.Module):
    """ViT-B/16 up to its class token; 86 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        need_monai("vit-b16")
        from monai.networks.nets import ViT  # type: ignore[attr-defined]

        self.net = ViT(
            in_channels=3,
            img_size=(PATCH * _GRID, PATCH * _GRID),
            patch_size=(PATCH, PATCH),
            spatial_dims=2,
            classification=True,
            qkv_bias=True,
        )
        del self.net.classification_head  # replaced by our own head
        for block in self.net.blocks:
            del block.norm_cross_attn  # for decoders; it would travel in every update

    def forward(self, x: Tensor) -> Tensor:
        """(b, 3, H, W) -> (b, 768); H and W are at least 16.

        Positions are interpolated to the grid of the image.
        """
        embedding = self.net.patch_embedding
        patches = embedding.patch_embeddings(x)  # (b, 768, H / 16, W / 16)
        positions: Tensor = embedding.position_embeddings  # (1, 196, 768)
        if patches.shape[2:] != (_GRID, _GRID):
            positions = _resize_positions(positions, patches.shape[2], patches.shape[3])
        tokens = patches.flatten(2).transpose(1, 2) + positions
        tokens = torch.cat([self.net.cls_token.expand(len(x), -1, -1), tokens], dim=1)
        for block in self.net.blocks:
            tokens = block(tokens)
        features: Tensor = self.net.norm(tokens)[:, 0]
        return features

    @staticmethod
    def rename_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights under MONAI's names, from MONAI's or those of timm, DeiT and DINO.

        Those add a position to the class token, too; here it is part of the token.
        """
        names = {}
        for name, tensor in tensors.items():
            if ".norm_cross_attn." in name or name == "mask_token":
                continue
            for pattern, replacement in _NAMES:
                name = pattern.sub(replacement, name)
            names[name] = tensor
        positions = names.pop("pos_embed", None)
        if positions is not None and positions.ndim == 3 and "cls_token" in names:
            names["cls_token"] = names["cls_token"] + positions[:, :1]
            names["patch_embedding.position_embeddings"] = positions[:, 1:]
        return names


def _resize_positions(positions: Tensor, rows: int, columns: int) -> Tensor:
    """(1, 196, 768) -> (1, rows * columns, 768)."""
    grid = positions.transpose(1, 2).reshape(1, _WIDTH, _GRID, _GRID)
    grid = F.interpolate(grid, size=(rows, columns), mode="bicubic", align_corners=False)
    return grid.flatten(2).transpose(1, 2)


# ---- the [monai] extra ----


_MONAI_PACKAGES = ("monai", "einops")


def need_monai(model: str) -> None:
    """Raise an error with the line that installs the extra, if a package of it is missing."""
    missing = [name for name in _MONAI_PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            "extra.monai-missing",
            f"the model {model} needs packages that are not installed: {', '.join(missing)}",
            fix="pip install 'fedgsca[monai]'",
        )
