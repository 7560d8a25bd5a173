"""DenseNet-121 and ViT-B/16: published names of weights, any image size, the same start."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedgsca.errors import ConfigError, MissingExtraError, WeightsError
from fedgsca.federation.simulation import prepare
from fedgsca.methods.site import weights_of
from fedgsca.models import networks
from fedgsca.models.build import build_backbone, spec_of
from fedgsca.models.weights import load_backbone
from tests.helpers import needs_packages
from tests.toys import toy_config

pytestmark = needs_packages("monai", "einops")


@pytest.fixture(scope="module")
def densenet() -> torch.nn.Module:
    return build_backbone("densenet121", seed=1).eval()


@pytest.fixture(scope="module")
def vit() -> torch.nn.Module:
    return build_backbone("vit-b16", seed=1).eval()


@torch.no_grad()
def test_features_have_the_width_that_is_stated(
    densenet: torch.nn.Module, vit: torch.nn.Module
) -> None:
    assert densenet(torch.zeros(2, 3, 32, 48)).shape == (2, spec_of("densenet121").width)
    assert vit(torch.zeros(2, 3, 16, 40)).shape == (2, spec_of("vit-b16").width)


@pytest.mark.parametrize("pattern", [r".\2\3.", r".\2.\3."])
def test_torchvisions_names_fit(pattern: str, densenet: torch.nn.Module, tmp_path: Path) -> None:
    """`pattern`: the names of today's files, and those of the published one."""
    names = {}
    for name, tensor in densenet.net.state_dict().items():  # type: ignore[union-attr,operator]
        names[re.sub(r"\.(layers)\.(norm|conv)([12])\.", pattern, name)] = tensor
    names["classifier.weight"] = torch.zeros(1000, 1024)
    names["classifier.bias"] = torch.zeros(1000)
    torch.save(names, tmp_path / "densenet121.pth")
    fresh = build_backbone("densenet121", seed=2)
    load_backbone(fresh, [tmp_path / "densenet121.pth"])
    states = weights_of(fresh), weights_of(densenet)
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


@torch.no_grad()
def test_names_of_published_vits_fit(vit: torch.nn.Module, tmp_path: Path) -> None:
    """The class token has a position of its own there; adding both must change nothing."""
    names = {}
    for name, tensor in vit.net.state_dict().items():  # type: ignore[union-attr,operator]
        name = name.replace("patch_embedding.patch_embeddings", "patch_embed.proj")
        name = name.replace(".attn.out_proj.", ".attn.proj.")
        name = re.sub(r"\.mlp\.linear([12])\.", r".mlp.fc\1.", name)
        names[name] = tensor.clone()
    positions = names.pop("patch_embedding.position_embeddings")
    names["pos_embed"] = torch.cat([torch.full((1, 1, 768), 0.25), positions], dim=1)
    names["cls_token"] -= 0.25
    names["head.weight"] = torch.zeros(1000, 768)
    save_file(names, tmp_path / "vit.safetensors")
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = vit(images)
    token = vit.net.cls_token  # type: ignore[union-attr]
    with torch.no_grad():
        token.fill_(3.0)  # type: ignore[operator,union-attr]
    assert not torch.allclose(vit(images), expected)
    load_backbone(vit, [tmp_path / "vit.safetensors"])
    assert torch.allclose(vit(images), expected, atol=1e-4)
    del names["blocks.3.norm1.weight"]
    save_file(names, tmp_path / "part.safetensors")
    with pytest.raises(WeightsError) as caught:
        load_backbone(vit, [tmp_path / "part.safetensors"])
    assert caught.value.code == "weights.wrong-network"


def test_tokens_and_positions_follow_the_seed(vit: torch.nn.Module) -> None:
    same = weights_of(build_backbone("vit-b16", seed=1))
    assert np.array_equal(
        same["net.patch_embedding.position_embeddings"],
        weights_of(build_backbone("vit-b16", seed=1))["net.patch_embedding.position_embeddings"],
    )


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(toy_config("fedavg", model__name="densenet121"))
    assert caught.value.code == "model.images-too-small"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        build_backbone("densenet121", seed=0)
    assert caught.value.code == "extra.monai-missing"
    assert "fedgsca[monai]" in caught.value.fix
