"""Frozen-backbone mode: one pass of all images through a pretrained network, at the site."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.models.build import Spec
from fedgsca.support.activity import activity

# fixed: the number of threads changes the bytes, and the cache must not depend on who filled it
THREADS = 2


@torch.inference_mode()
def extract(
    backbone: nn.Module,
    spec: Spec,
    images: np.ndarray,
    size: int,
    out: np.ndarray,
    *,
    batch: int = 64,
) -> None:
    """Fill out (n, D) with features of images (n, H, W, 3) uint8, resized to `size`.

    Every vector is standardised by itself (zero mean, unit variance over its D entries): heads then
    train at one learning rate whatever the backbone, and sites need not share any statistic.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    backbone.eval()
    if spec.channels_last:
        backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    mean = torch.tensor(spec.mean).view(1, 3, 1, 1)
    std = torch.tensor(spec.std).view(1, 3, 1, 1)
    with activity("computing features", len(images)) as advance:
        for start in range(0, len(images), batch):
            pixels = torch.from_numpy(np.array(images[start : start + batch]))
            x = _resize(pixels.permute(0, 3, 1, 2).float(), size)
            features = backbone(((x - mean) / std).contiguous(memory_format=torch.channels_last))
            out[start : start + batch] = F.layer_norm(features, features.shape[1:]).numpy()
            advance(len(pixels))
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
