"""What the data decides when nobody does: the network, and the division among sites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgsca.config import build, merge
from fedgsca.experiment import choose_settings as module
from fedgsca.experiment.choose_settings import (
    choose_feature_size,
    choose_model,
    choose_settings,
    describe_frozen,
)
from fedgsca.experiment.simulation import divide
from fedgsca.rng import stream


def write_folder(root: Path, *, size: int = 16, columns: str = "", sites: int = 3) -> Path:
    """48 images of two classes; patient p has images 4 p to 4 p + 3."""
    root.mkdir()
    rng = stream(0, "choose")
    lines = [f"file,label{columns}"]
    for i in range(48):
        pixels = rng.integers(0, 255, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{i}.png")
        values = [f"{i}.png", "ab"[i % 2]]
        if "group" in columns:
            values.append(f"p{i // 4}")
        if "site" in columns:
            values.append(f"hospital-{i // 4 % sites}")
        lines.append(",".join(values))
    (root / "labels.csv").write_text("\n".join(lines))
    return root


def tree_of(root: Path, **sections: dict[str, object]) -> dict[str, object]:
    return merge({"data": {"source": str(root)}}, sections)


def test_site_column_is_used(tmp_path: Path) -> None:
    tree = tree_of(write_folder(tmp_path / "x", columns=",group,site"))
    choice = choose_settings(tree)
    division = divide(build(merge(choice.tree, tree)))
    assert list(division.rows) == ["hospital-0", "hospital-1", "hospital-2"]
    assert any("hospital-1" in reason for reason in choice.reasons)
    assert not any("--partition column" in warning for warning in division.warnings)


@pytest.mark.parametrize("spec", ["0-S20", "0-S20-S20-S20"])
def test_number_of_sites_beats_site_column(tmp_path: Path, spec: str) -> None:
    tree = tree_of(write_folder(tmp_path / "x", columns=",site"), noise={"spec": spec})
    data = tree["data"]
    assert isinstance(data, dict)
    data["sites"] = spec.count("-") + 1
    choice = choose_settings(tree)
    assert "data" not in choice.tree
    assert any("3 hospitals" in reason for reason in choice.reasons)


def test_groups_stay_together(tmp_path: Path) -> None:
    tree = tree_of(write_folder(tmp_path / "x", columns=",group"))
    division = divide(build(merge(choose_settings(tree).tree, tree)))
    assert division.table.groups is not None
    sites_of: dict[str, set[str]] = {}
    for site, rows in division.rows.items():
        for group in division.table.groups[rows]:
            sites_of.setdefault(str(group), set()).add(site)
    assert all(len(sites) == 1 for sites in sites_of.values())
    assert not any("split across" in warning for warning in division.warnings)


def test_explicit_settings_stay(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "x", columns=",group,site")
    tree = tree_of(root, model={"name": "cnn"})
    data = tree["data"]
    assert isinstance(data, dict)
    data["partition"] = "stratified"
    assert choose_settings(tree).tree == {}
    assert choose_settings(tree_of(root) | {"preset": "paper"}).tree == {}
    assert choose_settings({"data": {"source": "synthetic"}}).tree == {}


@pytest.mark.parametrize(
    ("size", "device", "is_frozen"),
    [(224, "cpu", True), (28, "cpu", True), (224, "cuda", True), (28, "cuda", False)],
)
def test_model_by_size_and_device(size: int, device: str, is_frozen: bool) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    choice = choose_model(size, device)
    assert bool(choice.tree) == is_frozen
    assert bool(choice.reasons) == is_frozen


def test_without_pretrained_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_has_pretrained_network", lambda: False)
    choice = choose_model(224, "cpu")
    assert choice.tree == {} and "fedgsca[weights]" in choice.reasons[0]
    assert choose_model(28, "cpu").reasons == ()


def test_size_of_frozen_backbone_is_said() -> None:
    config = build({"model": {"frozen": True}})
    text = describe_frozen(config, 224)
    assert text is not None and "96" in text and "feature_size=224" in text
    assert describe_frozen(build({}), 224) is None
    config = build({"model": {"frozen": True, "feature_size": 224}})
    text = describe_frozen(config, 300)
    assert text is not None and "224 pixels, made from 300" in text
    assert "about 5 times faster: --set model.feature_size=96" in text


@pytest.mark.parametrize(("image_size", "size"), [(28, None), (96, None), (128, 128), (512, 224)])
def test_the_backbone_sees_the_detail_that_there_is(image_size: int, size: int | None) -> None:
    tree = choose_feature_size(image_size)
    assert tree == ({} if size is None else {"model": {"feature_size": size}})


@pytest.mark.parametrize("model", [{}, {"frozen": True}])
def test_feature_size_is_chosen_unless_given(tmp_path: Path, model: dict[str, object]) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    root = write_folder(tmp_path / "x", size=128)
    tree = tree_of(root, model=model, train={"device": "cpu"})
    chosen_model = choose_settings(tree).tree["model"]
    assert isinstance(chosen_model, dict) and chosen_model["feature_size"] == 128
    tree = tree_of(root, model={"frozen": True, "feature_size": 96})
    assert "model" not in choose_settings(tree).tree
