"""A network of the user's own: model.name = "my_package.my_module:build".

`build(num_classes)` returns a torch module that turns normalised images (b, 3, H, W) into logits
(b, C). Its last linear layer becomes the head, because methods choose their heads and evidence
about labels needs the features in front of it. The module may say what cannot be seen from outside:

    feature_layer   the name of the last linear layer, where it is not the last one that is defined
    feature_layers  names of layers whose averages a frozen network also gives; default: none
    pixel_mean      per channel, for pixel values 0 to 255; default: those of ImageNet
    pixel_std

Who may import what: fedgsca/support/registry.py.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedgsca.errors import ConfigError
from fedgsca.models.networks import IMAGENET_MEAN, IMAGENET_STD, StageFeatures
from fedgsca.rng import global_torch_stream, torch_stream
from fedgsca.support.registry import check_import, remember_import
from fedgsca.support.text import one_line

# any number that no layer has by chance, for looking at a network before the classes are known
_PROBE_CLASSES = 11
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_HEAD_ADVICE = (
    "let the function return a module whose output is that of an nn.Linear(D, num_classes), and set"
    ' module.feature_layer = "NAME" to the name of this layer if it is not the last one'
)

Channels = tuple[float, float, float]
Builder = Callable[[int], nn.Module]


class OwnBackbone(nn.Module):
    """A user's module without its head."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """(b, 3, H, W) -> (b, D)."""
        # channels-last images, which training uses elsewhere, break modules that call view()
        return torch.as_tensor(self.net(x.contiguous()))


@dataclass(frozen=True)
class OwnNetwork:
    """A user's module, cut in front of its head."""

    backbone: OwnBackbone
    # (D) -> (C), as the user made it
    head: nn.Linear
    head_name: str
    mean: Channels
    std: Channels

    @property
    def width(self) -> int:
        """D, the length of the feature vector."""
        return self.head.in_features


def cut_network(name: str, seed: int, num_classes: int = _PROBE_CLASSES) -> OwnNetwork:
    """Build a network and take its head off, for which the number of classes does not matter.

    Its initial values are the module's own, pretrained ones included; what it draws from torch's
    global generator follows from the seed.
    """
    module = _build_module(name, num_classes, seed)
    head_name, head = _find_head(module, name, num_classes)
    mean = _read_channels(module, name, "pixel_mean", IMAGENET_MEAN)
    std = _read_channels(module, name, "pixel_std", IMAGENET_STD)
    parent_name, _, leaf = head_name.rpartition(".")
    if head is module:
        raise _head_error(name, "it is a single linear layer")
    setattr(module.get_submodule(parent_name), leaf, nn.Identity())
    return OwnNetwork(OwnBackbone(module), head, head_name, mean, std)


@functools.lru_cache(maxsize=8)
def inspect_network(name: str) -> tuple[int, Channels, Channels]:
    """Width of the features, mean and std of a network."""
    network = cut_network(name, seed=0)
    return network.width, network.mean, network.std


@functools.lru_cache(maxsize=8)
@torch.no_grad()
def measure_layers(name: str, size: int) -> dict[str, int]:
    """Layer -> width, of `feature_layers`, by two images of this size in pixels."""
    backbone = cut_network(name, seed=0).backbone.eval()
    layers = getattr(backbone.net, "feature_layers", ())
    names = dict(backbone.net.named_modules())
    strangers = [str(layer) for layer in layers if str(layer) not in names]
    if isinstance(layers, str) or strangers:
        raise ConfigError(
            "model.no-such-layer",
            f"{name}: feature_layers is {one_line(repr(layers))}, and"
            f" {', '.join(strangers) or 'a text'} is no layer of it",
            fix="set a tuple of names, as in module.named_modules()",
        )
    images = torch.randn(2, 3, size, size, generator=torch_stream(0, "probe", name))
    widths = {}
    for layer in layers:
        features = _call(StageFeatures(backbone, [f"net.{layer}"]), images, name, (size, size))
        widths[f"net.{layer}"] = features.shape[1] - cut_network(name, seed=0).width
    return widths


@functools.lru_cache(maxsize=8)
@torch.no_grad()
def check_network(name: str, num_classes: int, size: tuple[int, int]) -> None:
    """Try a network on two images of this size, and raise ConfigError if it cannot be used."""
    module = _build_module(name, num_classes, seed=0).eval()
    images = torch.randn(2, 3, *size, generator=torch_stream(0, "probe", name))
    logits = _call(module, images, name, size)
    if tuple(logits.shape) != (2, num_classes):
        raise ConfigError(
            "model.logits-shape",
            f"{name}: two images of {size[1]}x{size[0]} pixels give an output of shape"
            f" {tuple(logits.shape)}, expected (2, {num_classes})",
            fix="return logits, one row per image and one column per class",
        )
    network = cut_network(name, 0, num_classes)
    _check_repeatable(module, network, name)
    features = _call(network.backbone.eval(), images, name, size)
    if tuple(features.shape) != (2, network.width):
        raise _head_error(
            name,
            f"the input of its layer {network.head_name!r} is not one vector per image:"
            f" {tuple(features.shape)}",
        )
    if not torch.isfinite(logits).all() or not torch.isfinite(features).all():
        raise ConfigError(
            "model.not-finite",
            f"{name}: the outputs for two images of random pixels are not finite",
            fix="check the initial values, and that the module works on normalised images",
        )
    if not torch.allclose(network.head(features), logits, rtol=1e-3, atol=1e-3):
        raise _head_error(
            name,
            f"its output is not that of its layer {network.head_name!r}, or it changes from call"
            " to call",
        )
    if cut_network(name, 0).head_name != network.head_name:
        raise _head_error(name, "another layer has as many outputs as there are classes")


def _check_repeatable(module: nn.Module, network: OwnNetwork, name: str) -> None:
    """The same seed must give the same initial values, at every site and after every restart."""
    state = module.state_dict()
    for key, tensor in network.backbone.net.state_dict().items():
        if state[key].numpy().tobytes() != tensor.numpy().tobytes():
            raise ConfigError(
                "model.not-repeatable",
                f"{name}: {key} has other initial values when the network is built again",
                fix="draw initial values from torch's generator only, not from numpy or random",
            )


def _call(module: nn.Module, images: Tensor, name: str, size: tuple[int, int]) -> Tensor:
    try:
        outputs = module(images)
    except ConfigError:
        raise
    except Exception as error:  # any code of the user
        raise ConfigError(
            "model.cannot-run",
            f"{name} fails on images of {size[1]}x{size[0]} pixels:"
            f" {type(error).__name__}: {one_line(str(error))}",
            fix="try the module in Python; data.image_size sets another size"
            " (model.feature_size with --frozen)",
        ) from error
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            "model.logits-shape",
            f"{name} returns a {type(outputs).__name__}, expected a tensor of logits",
            fix="return logits only, one row per image and one column per class",
        )
    return outputs


def _build_module(name: str, num_classes: int, seed: int) -> nn.Module:
    build = _import_builder(name)
    try:
        with global_torch_stream(seed, "init", f"backbone/{name}"):
            module = build(num_classes)
    except Exception as error:  # any code of the user
        raise ConfigError(
            "model.cannot-build",
            f"{name}({num_classes}) fails: {type(error).__name__}: {one_line(str(error))}",
            fix="the function is called with the number of classes, and returns a torch module",
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            "model.cannot-build",
            f"{name}({num_classes}) returns a {type(module).__name__}, expected a torch module",
            fix="return an instance of torch.nn.Module",
        )
    if any(is_lazy(parameter) for parameter in module.parameters()):
        raise ConfigError(
            "model.lazy-layers",
            f"{name} has lazy layers, whose shapes are unknown before the first image",
            fix="state their sizes: nn.Linear(256, num_classes) instead of nn.LazyLinear",
        )
    return module


def _import_builder(name: str) -> Builder:
    if not _PATH.fullmatch(name):
        raise ConfigError(
            "model.import-path",
            f"model.name {one_line(name)!r} is not an import path",
            fix="write package.module:function, such as my_package.my_module:build",
        )
    check_import(name)
    module_name, _, function_name = name.partition(":")
    try:
        build = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # any code of the user
        raise ConfigError(
            "model.cannot-import",
            f"the network {name} cannot be imported:"
            f" {type(error).__name__}: {one_line(str(error))}",
            fix="install its package here, or add its folder to PYTHONPATH, and check the spelling",
        ) from error
    if not callable(build):
        raise ConfigError(
            "model.cannot-import",
            f"{name} is a {type(build).__name__}, not a function",
            fix="name a function that takes the number of classes",
        )
    remember_import(name)
    builder: Builder = build
    return builder


def _find_head(module: nn.Module, name: str, num_classes: int) -> tuple[str, nn.Linear]:
    """The name of the linear layer that gives the logits, and the layer."""
    layers = dict(module.named_modules())
    layer_name = getattr(module, "feature_layer", None)
    if layer_name is not None:
        layer = layers.get(str(layer_name))
        if not isinstance(layer, nn.Linear) or layer.out_features != num_classes:
            raise _head_error(
                name, f"feature_layer is {layer_name!r}, which is no nn.Linear with that output"
            )
        return str(layer_name), layer
    heads = []
    for layer_name, layer in layers.items():
        if isinstance(layer, nn.Linear) and layer.out_features == num_classes:
            heads.append((layer_name, layer))
    if not heads:
        raise _head_error(
            name, f"built for {num_classes} classes, it has no linear layer with that many outputs"
        )
    return heads[-1]


def _head_error(name: str, problem: str) -> ConfigError:
    return ConfigError(
        "model.no-feature-layer",
        f"{name}: the features in front of the last layer cannot be found: {problem}",
        fix=_HEAD_ADVICE,
    )


def _read_channels(module: nn.Module, name: str, attribute: str, default: Channels) -> Channels:
    """Three numbers per channel; a standard deviation is positive."""
    values = getattr(module, attribute, default)
    try:
        red, green, blue = (float(value) for value in values)
    except (TypeError, ValueError):
        red = green = blue = float("nan")
    numbers = (red, green, blue)
    smallest = 1e-6 if attribute == "pixel_std" else -1e6
    if not all(smallest <= number <= 1e6 for number in numbers):
        raise ConfigError(
            "model.pixel-scale",
            f"{name}: {attribute} must be three numbers for pixel values 0 to 255, got"
            f" {one_line(repr(values))}",
            fix=f"set for example module.{attribute} = {default}",
        )
    return numbers
