"""How long a run will take, from one measured training step on this machine."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedgsca.config import Config
from fedgsca.data.table import ImageTable
from fedgsca.experiment.frozen_features import features_are_cached
from fedgsca.methods.base import make_method
from fedgsca.models.build import build_backbone, feature_width, spec_of
from fedgsca.models.device import prepare_device
from fedgsca.models.features import extract
from fedgsca.models.initial import build_model
from fedgsca.support.text import duration

TRAINING_PASS = 3.0  # a training pass in forward passes, the unit of Method.passes
_PROBE = 16  # images whose features are timed


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of the parts of a run."""

    features: float
    per_round: float
    rounds: int

    @property
    def total(self) -> float:
        """Seconds of the whole run, without reading the images."""
        return self.features + self.per_round * self.rounds

    def describe(self) -> str:
        """The estimate for a person."""
        parts = []
        if self.features:
            parts.append(f"{duration(self.features)} for the features")
        parts.append(f"{self.rounds} rounds of {duration(self.per_round)}")
        return f"estimated time: about {duration(self.total)} ({', then '.join(parts)})"


def estimate_time(config: Config, table: ImageTable) -> TimeEstimate:
    """Time one step of training, and the features of a few images, with the shapes of this run."""
    device = prepare_device(config.train)
    method = make_method(config.method, config.options, config.train.rounds)
    model = build_model(
        config.model, table.num_classes, head=method.head, seed=config.seed, weights=None
    ).to(device)
    batch = config.train.batch_size
    if config.model.frozen:
        x = torch.zeros(batch, feature_width(config.model.name), device=device)
    else:
        height, width = table.images.shape[1:3]
        x = torch.zeros(batch, 3, height, width, device=device)
        x = x.contiguous(memory_format=torch.channels_last)
    step = _seconds_per_step(model, x)
    num_train = len(table.rows("train"))
    num_test = len(table.rows("test"))
    steps = math.ceil(num_train / batch) * config.train.epochs * method.passes
    steps += num_test / batch  # one forward pass
    features = 0.0
    if config.model.frozen and not features_are_cached(config, table):
        features = _seconds_per_feature(config, table) * len(table)
    return TimeEstimate(features, step * steps / TRAINING_PASS, config.train.rounds)


def _seconds_per_step(model: nn.Module, x: torch.Tensor) -> float:
    """The fastest of three steps forward and backward: the first one also sets up the libraries.

    A step of more than five seconds is not repeated.
    """
    labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    model.train()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        F.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
        seconds.append(time.perf_counter() - start)
        if seconds[-1] > 5.0:
            break
    return min(seconds)


def _seconds_per_feature(config: Config, table: ImageTable) -> float:
    name = config.model.name
    images = np.asarray(table.images[:_PROBE])
    out = np.empty((len(images), feature_width(name)), np.float32)
    backbone = build_backbone(name, seed=config.seed)
    spec = spec_of(name)
    extract(backbone, spec, images[:1], config.model.feature_size, out[:1])  # sets up the libraries
    start = time.perf_counter()
    extract(backbone, spec, images, config.model.feature_size, out)
    return (time.perf_counter() - start) / len(images)
