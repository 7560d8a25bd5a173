"""What the data decides when nobody does: the network, and the division among sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedgsca.config import Config, build, merge
from fedgsca.federation import choose_settings as module
from fedgsca.federation.choose_settings import (
    LARGEST_PAIR_JOB,
    LITE,
    PAIR,
    CompleteConfig,
    choose_feature_size,
    choose_model,
    complete,
    describe_model,
)
from fedgsca.federation.simulation import divide
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


def test_site_column_is_used(tmp_path: Path) -> None:
    result = complete(Config.load(data=write_folder(tmp_path / "x", columns=",group,site")))
    division = divide(result.config)
    assert list(division.rows) == ["hospital-0", "hospital-1", "hospital-2"]
    assert any("hospital-1" in reason for reason in result.reasons)
    assert not any("--partition column" in warning for warning in division.warnings)


@pytest.mark.parametrize("spec", ["0-S20", "0-S20-S20-S20"])
def test_number_of_sites_beats_site_column(tmp_path: Path, spec: str) -> None:
    root = write_folder(tmp_path / "x", columns=",site")
    result = complete(Config.load(data=root, noise=spec, sites=spec.count("-") + 1))
    assert "data" not in result.choices
    assert any("3 hospitals" in reason for reason in result.reasons)


def test_groups_stay_together(tmp_path: Path) -> None:
    config = complete(Config.load(data=write_folder(tmp_path / "x", columns=",group"))).config
    division = divide(config)
    assert division.table.groups is not None
    sites_of: dict[str, set[str]] = {}
    for site, rows in division.rows.items():
        for group in division.table.groups[rows]:
            sites_of.setdefault(str(group), set()).add(site)
    assert all(len(sites) == 1 for sites in sites_of.values())
    assert not any("split across" in warning for warning in division.warnings)


def test_explicit_settings_stay(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "x", columns=",group,site")
    for settings in (
        {"data": root, "model": "cnn", "partition": "stratified"},
        {"data": root, "preset": "paper"},
        {"data": "synthetic"},
    ):
        config = Config.load(**settings)
        assert complete(config) == CompleteConfig(config)


def test_a_complete_configuration_stays(tmp_path: Path) -> None:
    """A run folder has every key: nothing is chosen again, on whatever machine it continues."""
    config = Config.load(data=write_folder(tmp_path / "x", columns=",group,site"))
    complete_config = complete(config).config
    assert complete_config != config
    assert complete(build(complete_config.to_tree())).choices == {}


def test_chosen_values_are_those_of_a_user_who_gives_them(tmp_path: Path) -> None:
    """Also what depends on them: a head on frozen features has training settings of its own."""
    config = Config.load(data=write_folder(tmp_path / "x", columns=",group"), device="cpu", lr=0.3)
    result = complete(config)
    given = {"data": {"source": config.data.source}, "train": {"device": "cpu", "lr": 0.3}}
    assert result.config == build(merge(given, result.choices))


@pytest.mark.parametrize(
    ("size", "device", "is_frozen"),
    [(224, "cpu", True), (28, "cpu", True), (224, "cuda", True), (28, "cuda", False)],
)
def test_model_by_size_and_device(size: int, device: str, is_frozen: bool) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    choice = choose_model(size, device, 100)
    assert bool(choice.tree) == is_frozen
    assert bool(choice.reasons) == is_frozen


@pytest.mark.parametrize(
    ("installed", "job", "name"),
    [
        ((LITE, PAIR), LARGEST_PAIR_JOB, PAIR),
        ((LITE, PAIR), LARGEST_PAIR_JOB + 1, LITE),
        ((LITE,), 100, LITE),
    ],
)
def test_two_networks_where_installed_and_the_job_is_small(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], job: int, name: str
) -> None:
    monkeypatch.setattr(module, "has_packaged_weights", lambda network: network in installed)
    assert choose_model(224, "cpu", job).tree == {"model": {"name": name, "frozen": True}}


def test_without_pretrained_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_packaged_weights", lambda network: False)
    choice = choose_model(224, "cpu", 100)
    assert choice.tree == {} and "fedgsca[weights]" in choice.reasons[0]
    assert choose_model(28, "cpu", 100).reasons == ()


def test_size_of_frozen_backbone_is_said() -> None:
    config = build({"model": {"frozen": True}})
    text = describe_model(config, 224)[-1]
    assert "96 pixels, made from 224" in text and "--set model.feature_size" in text


def test_it_is_said_what_is_trained_from_what_and_what_judges_the_labels() -> None:
    fresh = build({"method": "fedavg", "model": {"name": "cnn"}})
    assert describe_model(fresh, 28) == ["training cnn from random weights"]
    tree = {"method": "fedgsca-e", "model": {"name": "resnet18", "weights": "my.pth"}}
    evidence = {"evidence": {"backbone": "efficientnet-lite0"}}
    lines = describe_model(build({**tree, **evidence}), 64)
    assert lines[0] == "training resnet18 from my.pth"
    assert "frozen features of efficientnet-lite0 judge the labels" in lines[1]
    assert len(describe_model(build({**tree, "evidence": {"backbone": "none"}}), 64)) == 1


@pytest.mark.parametrize(("image_size", "size"), [(28, None), (96, None), (128, 128), (512, 224)])
def test_the_backbone_sees_the_detail_that_there_is(image_size: int, size: int | None) -> None:
    tree = choose_feature_size(image_size)
    assert tree == ({} if size is None else {"model": {"feature_size": size}})


@pytest.mark.parametrize("settings", [{}, {"frozen": True}])
def test_feature_size_is_chosen_unless_given(tmp_path: Path, settings: dict[str, Any]) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    root = write_folder(tmp_path / "x", size=128)
    config = Config.load(data=root, device="cpu", **settings)
    assert complete(config).config.model.feature_size == 128
    config = Config.load(data=root, frozen=True, model__feature_size=96)
    assert "model" not in complete(config).choices
