"""ViT-B/16 of MONAI for images of any size, and the names of the usual published weights."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.models.monai_extra import need_monai

PATCH = 16  # pixels
_GRID = 14  # patches per side at 224 pixels, for which there are learned positions
_WIDTH = 768
# names of timm, DeiT and DINO -> names of MONAI
_NAMES = (
    (re.compile(r"^patch_embed\.proj\."), "patch_embedding.patch_embeddings."),
    (re.compile(r"\.mlp\.fc([12])\."), r".mlp.linear\1."),
    (re.compile(r"\.attn\.proj\."), ".attn.out_proj."),
)


class ClassTokenViT(nn.Module):
    """ViT-B/16 up to its class token; 86 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        need_monai("vit-b16")
        from monai.networks.nets import ViT  # type: ignore[attr-defined]

        self.net = ViT(
            in_channels=3,
            img_size=(PATCH * _GRID, PATCH * _GRID),
            patch_size=(PATCH, PATCH),
            spatial_dims=2,
            classification=True,
            qkv_bias=True,
        )
        del self.net.classification_head  # replaced by our own head
        for block in self.net.blocks:
            del block.norm_cross_attn  # for decoders; it would travel in every update

    def forward(self, x: Tensor) -> Tensor:
        """(b, 3, H, W) -> (b, 768); H and W are at least 16.

        Positions are interpolated to the grid of the image.
        """
        embedding = self.net.patch_embedding
        patches = embedding.patch_embeddings(x)  # (b, 768, H / 16, W / 16)
        positions: Tensor = embedding.position_embeddings  # (1, 196, 768)
        if patches.shape[2:] != (_GRID, _GRID):
            positions = _resize_positions(positions, patches.shape[2], patches.shape[3])
        tokens = patches.flatten(2).transpose(1, 2) + positions
        tokens = torch.cat([self.net.cls_token.expand(len(x), -1, -1), tokens], dim=1)
        for block in self.net.blocks:
            tokens = block(tokens)
        features: Tensor = self.net.norm(tokens)[:, 0]
        return features

    @staticmethod
    def rename_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights under MONAI's names, from MONAI's or those of timm, DeiT and DINO.

        Those add a position to the class token, too; here it is part of the token.
        """
        names = {}
        for name, tensor in tensors.items():
            if ".norm_cross_attn." in name or name == "mask_token":
                continue
            for pattern, replacement in _NAMES:
                name = pattern.sub(replacement, name)
            names[name] = tensor
        positions = names.pop("pos_embed", None)
        if positions is not None and positions.ndim == 3 and "cls_token" in names:
            names["cls_token"] = names["cls_token"] + positions[:, :1]
            names["patch_embedding.position_embeddings"] = positions[:, 1:]
        return names


def _resize_positions(positions: Tensor, rows: int, columns: int) -> Tensor:
    """(1, 196, 768) -> (1, rows * columns, 768)."""
    grid = positions.transpose(1, 2).reshape(1, _WIDTH, _GRID, _GRID)
    grid = F.interpolate(grid, size=(rows, columns), mode="bicubic", align_corners=False)
    return grid.flatten(2).transpose(1, 2)
