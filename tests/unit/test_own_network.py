"""A network by import path: checked early, repeatable, and never imported for somebody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedgsca.config import Config
from fedgsca.errors import ConfigError, FedgscaError, WeightsError
from fedgsca.federation.rounds import run
from fedgsca.federation.simulation import prepare
from fedgsca.lab.export.prediction import open_model
from fedgsca.lab.export.write_export import export
from fedgsca.methods.site import weights_of
from fedgsca.models.build import build_backbone, build_classifier, spec_of
from fedgsca.models.own_network import check_network
from fedgsca.support import registry
from tests.toys import outcome, toy_config

PREFIX = "tests.own_networks:"


def own_config(name: str = "build", method: str = "fedavg", **sets: Any) -> Config:
    return toy_config(method, model__name=PREFIX + name, **({"train__rounds": 2} | sets))


@pytest.fixture
def no_permissions() -> Iterator[None]:
    """As in a process that has not imported a network; the state is restored afterwards."""
    permissions = registry._Permissions
    names, past_imports = permissions.names, permissions.past_imports
    permissions.names, permissions.past_imports = None, frozenset()
    yield
    permissions.names, permissions.past_imports = names, past_imports


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("maps", "model.logits-shape"),
        ("pair", "model.logits-shape"),
        ("convolution", "model.no-feature-layer"),
        ("softmax", "model.no-feature-layer"),
        ("two_heads", "model.no-feature-layer"),
        ("wrong_declaration", "model.no-feature-layer"),
        ("ignores_classes", "model.no-feature-layer"),
        ("wrong_scale", "model.pixel-scale"),
        ("not_finite", "model.not-finite"),
        ("restless", "model.not-repeatable"),
        ("number", "model.cannot-build"),
        ("fails", "model.cannot-build"),
        ("lazy", "model.lazy-layers"),
        ("large_images_only", "model.cannot-run"),
        ("CONSTANT", "model.cannot-import"),
        ("missing", "model.cannot-import"),
        ("bad name()", "model.import-path"),
    ],
)
def test_a_network_that_cannot_be_used_is_refused_before_training(name: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(own_config(name))
    assert caught.value.code == code
    assert caught.value.fix


def test_the_head_is_found_or_declared() -> None:
    check_network(PREFIX + "build", 3, (12, 12))
    check_network(PREFIX + "declare_head", 3, (12, 12))
    assert spec_of(PREFIX + "build").width == 16
    assert spec_of(PREFIX + "declare_head").std == (255.0, 255.0, 255.0)
    names = weights_of(build_classifier(PREFIX + "declare_head", 3, seed=0))
    assert "backbone.net.auxiliary.weight" in names
    assert "backbone.net.head.weight" not in names
    assert names["head.weight"].shape == (3, 16)


def test_the_same_seed_gives_the_same_network_and_torch_is_left_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = (weights_of(build_backbone(PREFIX + "build", seed=s)) for s in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["net.token"], other["net.token"])


def test_dropout_is_the_same_in_one_process_in_two_and_after_a_restart(
    tmp_path: Path, cheap_processes: None
) -> None:
    config = own_config(train__rounds=3)
    run(config, tmp_path / "one")
    run(config, tmp_path / "two", jobs=2)
    assert outcome(tmp_path / "one") == outcome(tmp_path / "two")
    run(config, tmp_path / "three", stop_after=1)
    run(config, tmp_path / "three")
    assert outcome(tmp_path / "one") == outcome(tmp_path / "three")


@pytest.mark.parametrize("method", ["fedgp", "fedgsca"])
def test_methods_that_need_features_have_them(method: str, tmp_path: Path) -> None:
    result = run(own_config(method=method, train__rounds=6), tmp_path / "run")
    assert result is not None
    assert np.isfinite(result.f1)


def test_a_frozen_network_may_bring_its_weights_and_they_have_a_digest(tmp_path: Path) -> None:
    config = own_config(model__frozen=True, model__feature_size=16)
    run(config, tmp_path / "run")
    setup = json.loads((tmp_path / "run" / "setup.json").read_text())
    assert len(setup["weights"]) == 64
    result = export(tmp_path / "run", "safetensors", tmp_path / "export")
    assert result.check.passed


def test_weights_of_a_file_are_loaded_with_or_without_the_old_head(tmp_path: Path) -> None:
    from tests.own_networks import Net

    other = Net(5)
    save_file(dict(other.state_dict()), tmp_path / "own.safetensors")
    config = own_config(model__weights=str(tmp_path / "own.safetensors"), train__rounds=1)
    run(config, tmp_path / "run")
    state = {name: value for name, value in other.state_dict().items() if name != "token"}
    save_file(state, tmp_path / "part.safetensors")
    with pytest.raises(WeightsError) as caught:
        run(
            own_config(model__weights=str(tmp_path / "part.safetensors")),
            tmp_path / "other",
        )
    assert caught.value.code == "weights.wrong-network"


# ---- who may import ----


def test_a_model_file_imports_nothing_by_itself(
    tmp_path: Path, no_permissions: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(own_config(), tmp_path / "run")
    export(tmp_path / "run", "safetensors", tmp_path / "export")
    description = json.loads((tmp_path / "export" / "model.json").read_text())
    assert description["architecture"] == PREFIX + "build"
    registry._Permissions.past_imports = frozenset()  # as in a program that only has the export
    with pytest.raises(ConfigError) as caught:
        open_model(tmp_path / "export")
    assert caught.value.code == "model.import-not-allowed"
    monkeypatch.setenv(registry.NETWORKS_VARIABLE, f"other:build, {PREFIX}build")
    assert open_model(tmp_path / "export").classes


def test_a_restricted_process_imports_only_what_it_names(no_permissions: None) -> None:
    registry.restrict_imports(["other:build"])
    with pytest.raises(ConfigError) as caught:
        build_backbone(PREFIX + "build", seed=0)
    assert caught.value.code == "model.network-not-in-settings"
    registry.restrict_imports([PREFIX + "build"])
    build_backbone(PREFIX + "build", seed=0)


def test_an_exporter_that_fails_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(own_config(), tmp_path / "run")

    def fail(*_: object) -> bytes:
        raise RuntimeError("unsupported operator")

    from fedgsca.lab.export import formats

    broken = formats.ExportFormat("model.pt", "", fail, formats.FORMATS["torchscript"].open)
    monkeypatch.setitem(formats.FORMATS, "torchscript", broken)
    with pytest.raises(FedgscaError) as caught:
        export(tmp_path / "run", "torchscript", tmp_path / "export")
    assert caught.value.code == "export.own-network"
    assert not (tmp_path / "export").exists()
