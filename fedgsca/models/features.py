"""Frozen-backbone mode: one pass of all images through a pretrained network, at the site."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.config import ModelConfig
from fedgsca.models.build import spec_of
from fedgsca.support.console import activity

# fixed: the number of threads changes the bytes, and the cache must not depend on who filled it
THREADS = 2
# images: fixed for the same reason
BATCH = 64


class FeaturePass:
    """A frozen backbone that is ready to compute features of batches of images."""

    def __init__(self, backbone: nn.Module, model: ModelConfig) -> None:
        """The backbone is that of the configured frozen model (`build_frozen`)."""
        spec = spec_of(model.name)
        backbone.eval()
        if spec.channels_last:
            backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.backbone = backbone
        self.size = model.feature_size
        self.mean = torch.tensor(spec.mean).view(1, 3, 1, 1)
        self.std = torch.tensor(spec.std).view(1, 3, 1, 1)

    @torch.inference_mode()
    def compute(self, images: np.ndarray) -> np.ndarray:
        """(b, D) float32: features of images (b, H, W, 3) uint8, each vector standardised."""
        features = self.backbone(self.prepare(images))
        return np.asarray(F.layer_norm(features, features.shape[1:]).numpy())

    def prepare(self, images: np.ndarray) -> Tensor:
        """(b, 3, size, size): the input of the backbone."""
        pixels = torch.from_numpy(np.array(images))
        x = _resize(pixels.permute(0, 3, 1, 2).float(), self.size)
        return ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)


def extract(
    backbone: nn.Module,
    model: ModelConfig,
    images: np.ndarray,
    out: np.ndarray,
    *,
    batch: int = BATCH,
) -> None:
    """Fill out (n, D) with features of images (n, H, W, 3) uint8 by a model's frozen backbone.

    Every vector is standardised by itself (zero mean, unit variance over its D entries): heads then
    train at one learning rate whatever the backbone, and sites need not share any statistic.

    Worker processes may help (fedgsca.models.feature_workers). The bytes are the same with and
    without them.
    """
    from fedgsca.models.feature_workers import FeatureWorkers, choose_workers

    feature_pass = FeaturePass(backbone, model)
    may_help = True
    starts = list(range(0, len(images), batch))
    with activity("computing features", len(images)) as advance, feature_threads():

        def store(start: int, features: np.ndarray) -> None:
            out[start : start + batch] = features
            advance(len(features))

        seconds = 0.0
        while starts:
            num_workers = choose_workers(model.name, len(starts), seconds) if may_help else 1
            if num_workers > 1:
                workers = FeatureWorkers(model, backbone, num_workers)
                blocks = {start: images[start : start + batch] for start in starts}
                starts = workers.compute(blocks, store)
                may_help = False  # what workers could not do is done here
                continue
            begin = time.perf_counter()
            start = starts.pop(0)
            store(start, feature_pass.compute(images[start : start + batch]))
            seconds = time.perf_counter() - begin


@contextmanager
def feature_threads() -> Iterator[None]:
    """Inside the block, torch uses the number of threads that features are computed with."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@torch.inference_mode()
def standardise(features: np.ndarray, out: np.ndarray, *, batch: int = 4096) -> None:
    """Fill out (n, D) with a user's own features, each vector standardised as in `extract`."""
    for start in range(0, len(features), batch):
        vectors = torch.from_numpy(np.array(features[start : start + batch], dtype=np.float32))
        out[start : start + batch] = F.layer_norm(vectors, vectors.shape[1:]).numpy()


def _resize(x: Tensor, size: int) -> Tensor:
    """(b, 3, H, W) -> (b, 3, size, size)."""
    if x.shape[-1] == size and x.shape[-2] == size:
        return x
    return F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False, antialias=True)
