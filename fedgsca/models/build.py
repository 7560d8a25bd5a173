"""One shape for every network: Classifier = backbone (images -> features) + head (features -> logits).

Frozen-backbone mode is the same class with the backbone replaced by nothing: the site stores features once and trains the head.
Networks are built without touching torch's global generator: modules are created without memory ("meta") and then filled from an
addressed stream, so the same seed gives the same initial bytes in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedgsca.errors import ConfigError
from fedgsca.rng import torch_stream


class SmallCNN(nn.Module):
    """Three conv-norm-relu-pool blocks and a global average: 93,000 parameters, for images of 28 to 64 pixels."""

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
        return torch.as_tensor(self.layers(x).mean(dim=(2, 3)))


class PooledEfficientNet(nn.Module):
    """EfficientNet-Lite0 up to its pooled features. Drop-connect is off: it would draw from torch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        from fedgsca.models.efficientnet import efficientnet_lite0

        self.net = efficientnet_lite0()

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.net.extract_features(x)  # type: ignore[operator]
        return features.mean(dim=(2, 3))


def _resnet(name: str) -> nn.Module:
    import monai.networks.nets as nets  # here and not above: importing MONAI takes four seconds

    # exactly torchvision's names and shapes, so that torchvision's and LVM-Med's files load by name
    made: nn.Module = getattr(nets, name)(
        spatial_dims=2,
        n_input_channels=3,
        conv1_t_stride=2,
        bias_downsample=False,
        feed_forward=False,
    )
    return made


@dataclass(frozen=True)
class Spec:
    """How to make a backbone and what it expects."""

    make: Callable[[], nn.Module]
    width: int  # of the feature vector
    mean: tuple[float, float, float]  # pixel values 0..255: x -> (x - mean) / std
    std: tuple[float, float, float]
    image_size: int  # used where the data set has no size of its own


_IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
_PLAIN = ((127.5,) * 3, (64.0,) * 3)
MODELS: dict[str, Spec] = {
    "cnn": Spec(SmallCNN, 128, *_PLAIN, 32),
    "cnn-groupnorm": Spec(lambda: SmallCNN("group"), 128, *_PLAIN, 32),
    "resnet18": Spec(lambda: _resnet("resnet18"), 512, *_IMAGENET, 224),
    "resnet50": Spec(lambda: _resnet("resnet50"), 2048, *_IMAGENET, 224),
    "efficientnet-lite0": Spec(PooledEfficientNet, 1280, (127.0,) * 3, (128.0,) * 3, 224),
}


class CentroidHead(nn.Module):
    """FedGP's head: a non-negative embedding and one bias-free centroid per class."""

    def __init__(self, width: int, num_classes: int, dim: int = 64) -> None:
        super().__init__()
        self.project = nn.Linear(width, dim, bias=False)
        self.norm = nn.BatchNorm1d(dim)
        self.centroids = nn.Linear(dim, num_classes, bias=False)

    def embed(self, features: Tensor) -> Tensor:
        return torch.relu(self.norm(self.project(features)))

    def forward(self, features: Tensor) -> Tensor:
        return torch.as_tensor(self.centroids(self.embed(features)))


HEADS: dict[str, Callable[[int, int], nn.Module]] = {"linear": nn.Linear, "centroid": CentroidHead}


class Classifier(nn.Module):
    """Backbone and head. `backbone` is an identity when features are the input."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.backbone(x))

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.backbone(x)))


def spec_of(name: str) -> Spec:
    if name not in MODELS:
        raise ConfigError(
            "todo.build-1",
            f"model {name!r} is not known",
            fix=f"choose one of: {', '.join(MODELS)}",
        )
    return MODELS[name]


def feature_width(name: str) -> int:
    return spec_of(name).width


def _fill(module: nn.Module, generator: torch.Generator) -> None:
    """Initial values of one layer, from the stream alone."""
    with torch.no_grad():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(
                module.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.reset_running_stats()
            module.weight.fill_(1.0)
            module.bias.zero_()
        elif isinstance(module, nn.GroupNorm | nn.LayerNorm):
            module.weight.fill_(1.0)
            module.bias.zero_()


def _allocate(module: nn.Module) -> None:
    """Memory for a module made on the meta device. Module.to_empty would do, but imports a symbolic algebra for half a second."""
    for layer in module.modules():
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                empty = torch.empty(parameter.shape, dtype=parameter.dtype)
                layer._parameters[name] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
        for name, buffer in layer._buffers.items():
            if buffer is not None:
                layer._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _materialise(make: Callable[[], nn.Module], seed: int, part: str) -> nn.Module:
    with torch.device("meta"):
        module = make()
    _allocate(module)
    generator = torch_stream(seed, "init", part)
    for layer in module.modules():
        _fill(layer, generator)
    return module


def build_backbone(name: str, *, seed: int) -> nn.Module:
    spec = spec_of(name)
    if name == "efficientnet-lite0":
        from fedgsca.models.efficientnet import need_efficientnet

        need_efficientnet()
    return _materialise(spec.make, seed, f"backbone/{name}")


def build_classifier(name: str, num_classes: int, *, seed: int, head: str = "linear") -> Classifier:
    """A network with fresh weights; channels-last, which trains 10-45 % faster on CPUs."""
    backbone = build_backbone(name, seed=seed)
    made = _materialise(lambda: HEADS[head](feature_width(name), num_classes), seed, "head")
    return Classifier(backbone, made).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def build_head_only(width: int, num_classes: int, *, seed: int, head: str = "linear") -> Classifier:
    """The classifier of frozen-backbone mode: its inputs are feature vectors. The head's initial bytes are those of the full network."""
    return Classifier(
        nn.Identity(), _materialise(lambda: HEADS[head](width, num_classes), seed, "head")
    )


def trainable_names(model: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
