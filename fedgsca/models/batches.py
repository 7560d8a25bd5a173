"""Batches on their way to a network: augmentation of uint8 tensors, and copies to a GPU.

Tissue has no up or down, so mirror images and quarter turns are exact and cost almost nothing.
Any-angle rotation (the paper's protocol) resamples the batch with one affine map.

The Python side of training is ahead of the GPU: while the GPU works on step t, the CPU gathers and
augments batch t + 1. Two things would stop it. A copy from ordinary memory waits for the GPU, so
batches are copied from pinned memory. A copy in the stream of the training waits for step t, so it
has a stream of its own. Two buffers are then in use: one is trained on, one is filled. On other
devices these functions do nothing special.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from fedgsca.support.lazy_torch import F, Tensor, torch

# ---- augmentation ----


def augment(images: Tensor, kind: str, rng: np.random.Generator) -> Tensor:
    """Random changes of images (b, 3, H, W) uint8; the shape stays.

    `kind` is none, flips, dihedral (flips and quarter turns), rotate or strong.
    """
    if kind == "none":
        return images
    count = images.shape[0]
    # four draws per image whatever the kind, so that another kind does not shift other streams
    draws = torch.from_numpy(rng.random((count, 4)))
    if kind == "rotate":
        return _rotate(images, draws)
    if kind == "strong":
        jitter = torch.from_numpy(rng.random((count, 3)))
        return _jitter(_rotate(images, draws, scale=0.8 + 0.4 * jitter[:, 2]), jitter)
    images = _flip(images, draws[:, 0] < 0.5, dim=3)
    images = _flip(images, draws[:, 1] < 0.5, dim=2)
    if kind == "dihedral" and images.shape[2] == images.shape[3]:
        mask = draws[:, 2] < 0.5
        images[mask] = images[mask].transpose(2, 3)
    return images


def _flip(images: Tensor, mask: Tensor, dim: int) -> Tensor:
    images[mask] = images[mask].flip((dim,))
    return images


def _jitter(images: Tensor, draws: Tensor) -> Tensor:
    """Another brightness and contrast, by up to a fifth, of images (b, 3, H, W) from 0 to 255."""
    brightness = (0.8 + 0.4 * draws[:, 0]).float().view(-1, 1, 1, 1)
    contrast = (0.8 + 0.4 * draws[:, 1]).float().view(-1, 1, 1, 1)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return ((images - mean) * contrast + mean * brightness).clamp(0.0, 255.0)


def _rotate(images: Tensor, draws: Tensor, scale: Tensor | None = None) -> Tensor:
    """Random flips and a random angle in one resampling; reflected borders avoid black corners."""
    angle = draws[:, 2] * (2 * np.pi)
    flip_x = torch.where(draws[:, 0] < 0.5, -1.0, 1.0)
    flip_y = torch.where(draws[:, 1] < 0.5, -1.0, 1.0)
    theta = torch.zeros(images.shape[0], 2, 3)
    theta[:, 0, 0] = angle.cos() * flip_x
    theta[:, 0, 1] = -angle.sin() * flip_y
    theta[:, 1, 0] = angle.sin() * flip_x
    theta[:, 1, 1] = angle.cos() * flip_y
    if scale is not None:
        theta = theta * scale.float().view(-1, 1, 1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    rotation = F.grid_sample(
        images.float(), grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
    return rotation.contiguous(memory_format=torch.channels_last)


# ---- on the way to a GPU ----


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; to a GPU the copy goes through pinned memory and nobody waits."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@functools.lru_cache(maxsize=64)
def channel_values(values: tuple[float, float, float], device: torch.device) -> Tensor:
    """(1, 3, 1, 1): one number per channel. Kept: a copy per batch would make the GPU wait."""
    with torch.inference_mode(False):  # the evaluation may ask first, the training uses it as well
        return torch.tensor(values, device=device).view(1, 3, 1, 1)


@contextmanager
def copy_stream(device: torch.device) -> Iterator[Callable[..., None]]:
    """Inside the block, copies to a GPU do not wait for the training, nor it for them.

    The block receives a function for the tensors that the training will use: it starts when they
    are complete, and their memory is not used again before it has finished with them.
    """
    tensors: list[Tensor] = []
    if device.type != "cuda":
        yield lambda *deliveries: None
        return
    training_stream = torch.cuda.current_stream(device)
    side_stream = _stream_of(device)
    with torch.cuda.stream(side_stream):
        yield lambda *deliveries: tensors.extend(deliveries)
    training_stream.wait_stream(side_stream)
    for tensor in tensors:
        tensor.record_stream(training_stream)


@functools.cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
