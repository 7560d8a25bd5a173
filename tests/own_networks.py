"""Networks of a user, for model.name=tests.own_networks:NAME: good ones and broken ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Uses what networks of users use: view(), dropout, a token, and a layer behind the head."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, num_classes)
        self.token = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return torch.as_tensor(self.head(self.drop(hidden.view(hidden.shape[0], -1) + self.token)))


def build(num_classes: int) -> nn.Module:
    return Net(num_classes)


def two_heads(num_classes: int) -> nn.Module:
    """The last layer that is defined is not the last one that is used."""
    net = Net(num_classes)
    net.auxiliary = nn.Linear(16, num_classes)
    return net


def declare_head(num_classes: int) -> nn.Module:
    net = two_heads(num_classes)
    net.feature_layer = "head"  # type: ignore[assignment]
    net.pixel_mean = (0, 0, 0)  # type: ignore[assignment]
    net.pixel_std = (255, 255, 255)  # type: ignore[assignment]
    return net


def wrong_declaration(num_classes: int) -> nn.Module:
    net = Net(num_classes)
    net.feature_layer = "body"  # type: ignore[assignment]
    return net


def wrong_scale(num_classes: int) -> nn.Module:
    net = Net(num_classes)
    net.pixel_std = (1, 0, 1)  # type: ignore[assignment]
    return net


def maps(num_classes: int) -> nn.Module:
    """Logits per pixel row, not per image."""
    return nn.Sequential(nn.Flatten(2), nn.Linear(144, num_classes))


def lazy(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


def convolution(num_classes: int) -> nn.Module:
    """No linear layer."""
    return nn.Sequential(nn.Conv2d(3, num_classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def softmax(num_classes: int) -> nn.Module:
    layer = nn.Linear(3, num_classes)
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), layer, nn.Softmax(1))


def ignores_classes(num_classes: int) -> nn.Module:
    return Net(3)


def pair(num_classes: int) -> nn.Module:
    class Pair(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x), None  # type: ignore[return-value]

    return Pair(num_classes)


def not_finite(num_classes: int) -> nn.Module:
    net = Net(num_classes)
    nn.init.constant_(net.token, float("nan"))
    return net


def restless(num_classes: int) -> nn.Module:
    """Draws from a generator that the seed does not reach."""
    net = Net(num_classes)
    values = np.random.default_rng().random(16)
    net.token = nn.Parameter(torch.from_numpy(values).float())
    return net


def number(num_classes: int) -> int:
    return num_classes


def fails(num_classes: int) -> nn.Module:
    raise ValueError("no such file")


def large_images_only(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 32), nn.Flatten(), nn.Linear(2, num_classes))


CONSTANT = 3
