"""Batched augmentation on uint8 tensors.

Tissue has no up or down, so mirror images and quarter turns are exact and cost almost nothing.
Any-angle rotation (the paper's protocol) resamples the batch with one affine map.
"""

from __future__ import annotations

import numpy as np

from fedgsca.support.lazy_torch import F, Tensor, torch


def augment(images: Tensor, kind: str, rng: np.random.Generator) -> Tensor:
    """Random changes of images (b, 3, H, W) uint8; the shape stays.

    `kind` is none, flips, dihedral (flips and quarter turns) or rotate.
    """
    if kind == "none":
        return images
    count = images.shape[0]
    # four draws per image whatever the kind, so that another kind does not shift other streams
    draws = torch.from_numpy(rng.random((count, 4)))
    if kind == "rotate":
        return _rotate(images, draws)
    images = _flip(images, draws[:, 0] < 0.5, dim=3)
    images = _flip(images, draws[:, 1] < 0.5, dim=2)
    if kind == "dihedral" and images.shape[2] == images.shape[3]:
        mask = draws[:, 2] < 0.5
        images[mask] = images[mask].transpose(2, 3)
    return images


def _flip(images: Tensor, mask: Tensor, dim: int) -> Tensor:
    images[mask] = images[mask].flip((dim,))
    return images


def _rotate(images: Tensor, draws: Tensor) -> Tensor:
    """Random flips and a random angle in one resampling; reflected borders avoid black corners."""
    angle = draws[:, 2] * (2 * np.pi)
    flip_x = torch.where(draws[:, 0] < 0.5, -1.0, 1.0)
    flip_y = torch.where(draws[:, 1] < 0.5, -1.0, 1.0)
    theta = torch.zeros(images.shape[0], 2, 3)
    theta[:, 0, 0] = angle.cos() * flip_x
    theta[:, 0, 1] = -angle.sin() * flip_y
    theta[:, 1, 0] = angle.sin() * flip_x
    theta[:, 1, 1] = angle.cos() * flip_y
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    rotation = F.grid_sample(
        images.float(), grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
    return rotation.contiguous(memory_format=torch.channels_last)
