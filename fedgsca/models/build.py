"""One shape for every network: Classifier = backbone (images -> features) + head (-> logits).

Frozen-backbone mode is the same class with the backbone replaced by an identity: the site computes
features once and trains the head. Initial values come from an addressed stream, never from torch's
global generator, so the same seed gives the same initial bytes in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from fedgsca.config import OWN_FEATURES, ModelConfig
from fedgsca.errors import ConfigError
from fedgsca.models.networks import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    LITE_MEAN,
    LITE_STD,
    ClassTokenViT,
    NetworkPair,
    PooledDenseNet,
    PooledEfficientNet,
    StageFeatures,
    resnet18,
    resnet50,
)
from fedgsca.models.own_network import cut_network, inspect_network, measure_layers
from fedgsca.models.weights import load_backbone
from fedgsca.rng import global_torch_stream, torch_stream
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import did_you_mean


class SmallCNN(nn.Module):
    """Three conv-norm-relu-pool blocks and a global average, for images of 28 to 64 pixels.

    93,000 parameters.
    """

    def __init__(self, norm: str = "batch", widths: tuple[int, ...] = (32, 64, 128)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in widths:
            normal = nn.BatchNorm2d(width) if norm == "batch" else nn.GroupNorm(8, width)
            layers += [
                nn.Conv2d(channels, width, 3, padding=1, bias=False),
                normal,
                nn.ReLU(inplace=True),
                nn.MaxPool2d(2),
            ]
            channels = width
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """(b, 3, H, W) -> (b, 128)."""
        return torch.as_tensor(self.layers(x).mean(dim=(2, 3)))


@dataclass(frozen=True)
class Spec:
    """How to make a backbone, and the images it expects."""

    make: Callable[[], nn.Module]
    # D, the length of the feature vector
    width: int
    # per channel, for pixel values 0 to 255: x -> (x - mean) / std
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    # in pixels, where the data set has no size of its own
    image_size: int
    # in pixels; the network cannot process smaller images
    smallest_size: int = 1
    # the memory layout that trains 10-45 % faster on CPUs; not every module supports it
    channels_last: bool = True
    # layers in front of the last one whose averages a frozen network also gives -> their widths
    stages: Mapping[str, int] = field(default_factory=dict)


_IMAGENET = (IMAGENET_MEAN, IMAGENET_STD)
_PLAIN = ((127.5,) * 3, (64.0,) * 3)
_LITE_PIXELS = ((LITE_MEAN,) * 3, (LITE_STD,) * 3)
_LITE_STAGES = dict(zip((0, 2, 4, 7, 10, 14, 15), (16, 24, 40, 80, 112, 192, 320), strict=True))
_LITE = {f"net._blocks.{block}": width for block, width in _LITE_STAGES.items()}
_RESNET18 = {"layer1": 64, "layer2": 128, "layer3": 256}
_RESNET50 = {"layer1": 256, "layer2": 512, "layer3": 1024}
_DENSENET = {
    "net.features.transition1": 128,
    "net.features.transition2": 256,
    "net.features.transition3": 512,
}
_VIT = {f"net.blocks.{block}": 768 for block in (2, 5, 8, 11)}
_PAIR = {f"parts.0.{name}": width for name, width in _LITE.items()}
_PAIR |= {f"parts.1.{name}": width for name, width in _RESNET50.items()}
MODELS: dict[str, Spec] = {
    "cnn": Spec(SmallCNN, 128, *_PLAIN, 32),
    "cnn-groupnorm": Spec(lambda: SmallCNN("group"), 128, *_PLAIN, 32),
    "resnet18": Spec(resnet18, 512, *_IMAGENET, 224, stages=_RESNET18),
    "resnet50": Spec(resnet50, 2048, *_IMAGENET, 224, stages=_RESNET50),
    "densenet121": Spec(PooledDenseNet, 1024, *_IMAGENET, 224, smallest_size=32, stages=_DENSENET),
    "vit-b16": Spec(ClassTokenViT, 768, *_IMAGENET, 224, smallest_size=16, stages=_VIT),
    "efficientnet-lite0": Spec(
        PooledEfficientNet, 1280, *_LITE_PIXELS, 224, smallest_size=32, stages=_LITE
    ),
    "efficientnet-lite0-resnet50": Spec(
        NetworkPair, 1280 + 2048, *_IMAGENET, 224, smallest_size=32, stages=_PAIR
    ),
    # the width is that of the user's vectors
    OWN_FEATURES: Spec(nn.Identity, 0, *_PLAIN, 0),
}


class CentroidHead(nn.Module):
    """FedGP's head: a non-negative embedding and one bias-free centroid per class."""

    def __init__(self, width: int, num_classes: int, dim: int = 64) -> None:
        super().__init__()
        self.project = nn.Linear(width, dim, bias=False)
        self.norm = nn.BatchNorm1d(dim)
        self.centroids = nn.Linear(dim, num_classes, bias=False)

    def embed(self, features: Tensor) -> Tensor:
        """(b, D) -> (b, dim), non-negative."""
        return torch.relu(self.norm(self.project(features)))

    def forward(self, features: Tensor) -> Tensor:
        """(b, D) -> (b, C) logits."""
        return torch.as_tensor(self.centroids(self.embed(features)))


HEADS: dict[str, Callable[[int, int], nn.Module]] = {"linear": nn.Linear, "centroid": CentroidHead}


class Classifier(nn.Module):
    """Backbone and head. `backbone` is an identity when features are the input."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """(b, 3, H, W) images -> (b, D); features stay as they are."""
        return torch.as_tensor(self.backbone(x))

    def forward(self, x: Tensor) -> Tensor:
        """Inputs -> (b, C) logits."""
        return torch.as_tensor(self.head(self.backbone(x)))


def spec_of(name: str) -> Spec:
    """The specification of a network by its configured name."""
    if is_import_path(name):
        width, mean, std = inspect_network(name)
        return Spec(nn.Identity, width, mean, std, 224, channels_last=False)
    if name not in MODELS:
        hint = did_you_mean(name, MODELS)
        raise ConfigError(
            "model.unknown",
            f"unknown model {name!r}",
            fix=f"{hint}use one of: {', '.join(MODELS)}; or package.module:function",
        )
    return MODELS[name]


def feature_width(model: ModelConfig) -> int:
    """D, the length of a feature vector of the configured network."""
    return spec_of(model.name).width + sum(_stages(model).values())


def _stages(model: ModelConfig) -> Mapping[str, int]:
    """Layers whose averages the configured network gives beside its features -> their widths."""
    if not model.frozen or model.features == "last":
        return {}
    if is_import_path(model.name):
        return measure_layers(model.name, model.feature_size)
    return spec_of(model.name).stages


def _initialise(layer: nn.Module, generator: torch.Generator) -> None:
    """Set the initial values of one layer, from the stream alone."""
    with torch.no_grad():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(
                layer.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
            _zero_bias(layer)
        elif isinstance(layer, nn.Linear):
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            _zero_bias(layer)
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.weight.fill_(1.0)
            layer.bias.zero_()
        elif isinstance(layer, nn.GroupNorm | nn.LayerNorm):
            layer.weight.fill_(1.0)
            layer.bias.zero_()


def _zero_bias(layer: nn.Conv2d | nn.Linear) -> None:
    if layer.bias is not None:
        layer.bias.zero_()


def _materialise(make: Callable[[], nn.Module], seed: int, part: str) -> nn.Module:
    """A module with the initial values of its address."""
    # Constructors fill layers from torch's global generator, whose state is restored afterwards;
    # the values of layers are replaced. (The meta device would avoid this, but to_empty imports
    # sympy for half a second, and a ResNet-50 takes 2 s instead of 0.3 s.)
    with global_torch_stream(seed, "init", part):  # tokens and positions are not in a layer
        module = make()
    generator = torch_stream(seed, "init", part)
    for layer in module.modules():
        _initialise(layer, generator)
    return module


def build_backbone(name: str, *, seed: int) -> nn.Module:
    """A backbone with fresh weights: (b, 3, H, W) images -> (b, D) features.

    A network of the user's own has the values that it gives itself.
    """
    if is_import_path(name):
        return cut_network(name, seed).backbone
    return _materialise(spec_of(name).make, seed, f"backbone/{name}")


def build_frozen(model: ModelConfig, *, seed: int, weights: Sequence[Path] = ()) -> nn.Module:
    """The backbone of frozen features as configured: (b, 3, H, W) -> (b, D), with its weights.

    Without `weights`, it keeps those that it is built with.
    """
    backbone = build_backbone(model.name, seed=seed)
    if weights:
        load_backbone(backbone, weights)
    stages = _stages(model)
    return StageFeatures(backbone, list(stages)) if stages else backbone


def build_classifier(name: str, num_classes: int, *, seed: int, head: str = "linear") -> Classifier:
    """A network with fresh weights, in the memory layout that suits it."""
    backbone = build_backbone(name, seed=seed)
    spec = spec_of(name)
    classifier = Classifier(backbone, _build_head(head, spec.width, num_classes, seed))
    if not spec.channels_last:
        return classifier
    return classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def build_head_only(width: int, num_classes: int, *, seed: int, head: str = "linear") -> Classifier:
    """The classifier of frozen-backbone mode: its inputs are (b, `width`) feature vectors.

    The initial bytes of the head are those of the full network.
    """
    return Classifier(nn.Identity(), _build_head(head, width, num_classes, seed))


def build_exported(model: ModelConfig, num_classes: int, *, head: str) -> Classifier:
    """A network to be filled with exported weights; a frozen backbone is part of it."""
    if not model.frozen:
        return build_classifier(model.name, num_classes, seed=0, head=head)
    width = feature_width(model)
    return Classifier(build_frozen(model, seed=0), _build_head(head, width, num_classes, 0))


def _build_head(kind: str, width: int, num_classes: int, seed: int) -> nn.Module:
    return _materialise(lambda: HEADS[kind](width, num_classes), seed, "head")


def trainable_names(model: nn.Module) -> tuple[str, ...]:
    """The names of the parameters that training changes, without buffers."""
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def build_model(
    model: ModelConfig,
    num_classes: int,
    *,
    width: int,
    head: str,
    seed: int,
    weights: Sequence[Path] = (),
) -> Classifier:
    """A fresh head on a fresh or pretrained backbone; in frozen mode the head alone.

    `width` is that of the feature vectors, `weights` the files of the pretrained backbone; none:
    the backbone is fresh.
    """
    if model.frozen:
        return build_head_only(width, num_classes, seed=seed, head=head)
    classifier = build_classifier(model.name, num_classes, seed=seed, head=head)
    if weights:
        load_backbone(classifier.backbone, weights)
    return classifier
