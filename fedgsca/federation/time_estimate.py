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
from fedgsca.data.cache import cache_folder
from fedgsca.data.table import ImageTable
from fedgsca.federation.samples import check_images, evidence_config, features_are_cached
from fedgsca.federation.simulation import check_model, feature_width_of
from fedgsca.methods.base import make_method
from fedgsca.models.build import build_frozen, build_model
from fedgsca.models.device import prepare_device, synchronise
from fedgsca.models.features import extract
from fedgsca.support.files import remove_quietly, temporary_path, write_atomic
from fedgsca.support.text import duration, plural

TRAINING_PASS = 3.0  # a training pass in forward passes, the unit of Card.passes
_PROBE = 16  # images whose features are timed
# For small models most of a round is not training. Counted and timed in a run of FedGSCA on 400
# images with 4 sites: evidence heads, checks of the update, files of sites and checkpoint.
_SITE_SECONDS = 0.02
_WRITES_PER_SITE = 5


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
        parts.append(f"{plural(self.rounds, 'round')} of {duration(self.per_round)}")
        return f"estimated time: about {duration(self.total)} ({', then '.join(parts)})"


@dataclass(frozen=True)
class MachineSpeed:
    """Seconds that this machine needs, measured once for all runs on the same data."""

    step: float  # one training step of one batch
    feature: float  # features of one image; 0 if nothing has to be computed
    write: float  # one small file that survives a power cut


def measure_speed(config: Config, table: ImageTable) -> MachineSpeed:
    """Time a training step, the features of a few images and a file, in the shapes of a run."""
    check_model(config, table)
    if not config.model.frozen:
        check_images(config, table)
    device = prepare_device(config.train)
    method = make_method(config.method, config.options, config.train.rounds)
    model = build_model(
        config.model,
        table.num_classes,
        width=feature_width_of(config, table),
        head=method.head,
        seed=config.seed,
    ).to(device)
    batch = config.train.batch_size
    if config.model.frozen:
        x = torch.zeros(batch, feature_width_of(config, table), device=device)
    else:
        height, width = table.images.shape[1:3]
        x = torch.zeros(batch, 3, height, width, device=device)
        x = x.contiguous(memory_format=torch.channels_last)
    feature = 0.0
    frozen = config if config.model.frozen else evidence_config(config)
    if frozen is not None and not features_are_cached(frozen, table):
        feature = _seconds_per_feature(frozen, table)
    return MachineSpeed(_seconds_per_step(model, x), feature, _seconds_per_write())


def estimate_time(
    config: Config, table: ImageTable, speed: MachineSpeed | None = None
) -> TimeEstimate:
    """The parts of a run: features once, then rounds of training, evaluating and saving."""
    speed = speed or measure_speed(config, table)
    method = make_method(config.method, config.options, config.train.rounds)
    batch, sites = config.train.batch_size, config.data.sites
    steps = math.ceil(len(table.rows("train")) / batch) * config.train.epochs * method.card.passes
    steps += len(table.rows("test")) / batch  # one forward pass
    overhead = sites * (_SITE_SECONDS + _WRITES_PER_SITE * speed.write)
    per_round = speed.step * steps / TRAINING_PASS + overhead
    return TimeEstimate(speed.feature * len(table), per_round, config.train.rounds)


def _seconds_per_write() -> float:
    """The mean of three files in the folder of the cache, which is there in every run."""
    path = temporary_path(cache_folder() / "speed")
    start = time.perf_counter()
    for _ in range(3):
        write_atomic(path, bytes(10_000))
    seconds = (time.perf_counter() - start) / 3
    remove_quietly(path)
    return seconds


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
        synchronise(x.device)
        seconds.append(time.perf_counter() - start)
        if seconds[-1] > 5.0:
            break
    return min(seconds)


def _seconds_per_feature(config: Config, table: ImageTable) -> float:
    model = config.model
    images = np.asarray(table.images[:_PROBE])
    out = np.empty((len(images), feature_width_of(config, table)), np.float32)
    backbone = build_frozen(model, seed=config.seed)
    extract(backbone, model, images[:1], out[:1])  # sets up the libraries
    seconds = []
    for half in (slice(None, _PROBE // 2), slice(_PROBE // 2, None)):
        if len(images[half]):
            start = time.perf_counter()
            extract(backbone, model, images[half], out[half])
            seconds.append((time.perf_counter() - start) / len(images[half]))
    return min(seconds)  # the other half may have been disturbed by other programs
