"""A user's own features and networks over Flower: the same bytes, and nobody imports for others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context

from fedgsca.config import Config, load_config
from fedgsca.errors import QuorumError
from fedgsca.federation.run_folder import read_rounds
from fedgsca.hospital.settings import SiteSettings
from fedgsca.rng import stream
from tests.localgrid import LocalGrid, client_app, run_over_flower
from tests.toys import RecordingObserver, toy_images

NAMES = ("berlin", "lyon")
CLASSES = ("class 0", "class 1", "class 2")
NETWORK = "tests.own_networks:build"


def consortium(**sets: Any) -> Config:
    base: dict[str, Any] = {
        "method": "fedavg",
        "data__source": "sites",
        "data__classes": list(CLASSES),
        "federation__sites": list(NAMES),
        "federation__quorum": 0.5,
        "federation__patience": 0,
        "federation__deadline": 30,
        "train__rounds": 2,
        "train__batch_size": 8,
        "train__threads": 1,
        "train__device": "cpu",
    }
    return load_config(**(base | sets))


def write_images(path: Path, seed: int) -> Path:
    """A MedMNIST-style file of one hospital."""
    labels = np.arange(30) % 3
    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        arrays[f"{split}_images"] = toy_images(labels, seed=seed)
        arrays[f"{split}_labels"] = labels
    np.savez(path, **arrays)
    return path


def write_features(path: Path, seed: int, width: int = 6) -> Path:
    labels = np.arange(40) % 3
    vectors = stream(seed, "hospital").normal(size=(40, width))
    vectors[:, 0] += labels
    np.savez(path, features=vectors, labels=labels, classes=np.array(CLASSES))
    return path


def hospital_grid(tmp_path: Path, **networks: tuple[str, ...]) -> LocalGrid:
    def find_settings(context: Context) -> SiteSettings:
        name = NAMES[int(context.node_config["partition-id"])]
        return SiteSettings(
            name=name,
            state=str(tmp_path / "state" / name),
            data=str(tmp_path / f"{name}.npz"),
            networks=networks.get(name, ()),
        )

    return LocalGrid(client_app(find_settings), len(NAMES), names=NAMES)


def test_a_hospital_imports_only_what_its_own_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, name in enumerate(NAMES):
        write_images(tmp_path / f"{name}.npz", seed)
    config = consortium(model__name=NETWORK, data__image_size=12)
    grid = hospital_grid(tmp_path, berlin=(NETWORK,), lyon=("tests.own_networks:other",))
    run_over_flower(config, grid, tmp_path / "run", RecordingObserver())
    rounds = read_rounds(tmp_path / "run")
    assert [sorted(record.sites) for record in rounds] == [["berlin"], ["berlin"]]
    assert "which its settings do not allow" in rounds[0].refusals["lyon"]


def test_a_message_cannot_make_a_hospital_run_a_module(tmp_path: Path) -> None:
    """The coordinator names a module that leaves a trace when it is imported."""
    from fedgsca.federation.base import Reply
    from fedgsca.hospital.answers import ResidentSite
    from fedgsca.hospital.messages import Terms
    from fedgsca.support.version import __version__
    from fedgsca.wire import Payload

    write_images(tmp_path / "berlin.npz", 0)
    module = tmp_path / "fedgsca_test_trap.py"
    module.write_text(f"open({str(tmp_path / 'trace')!r}, 'w').close()\n")
    config = consortium(model__name="fedgsca_test_trap:build", data__image_size=12)
    terms = Terms(__version__, config.to_tree(), config.fingerprint(), "", "")
    settings = SiteSettings(
        name="berlin", state=str(tmp_path / "state"), data=str(tmp_path / "berlin.npz")
    )
    sys.path.insert(0, str(tmp_path))
    try:
        for kind in ("hello", "train", "test"):
            site = ResidentSite(lambda: settings)
            reply: Reply = site.reply(kind, terms, Payload(0, {}))  # type: ignore[arg-type]
            assert reply.update is None
            assert "which its settings do not allow" in (reply.error or "")
    finally:
        sys.path.remove(str(tmp_path))
    assert not (tmp_path / "trace").exists()
    assert "fedgsca_test_trap" not in sys.modules


def test_hospitals_train_on_their_own_features(tmp_path: Path) -> None:
    for seed, name in enumerate(NAMES):
        write_features(tmp_path / f"{name}.npz", seed)
    config = consortium(model__name="features", model__feature_width=6)
    result = run_over_flower(config, hospital_grid(tmp_path), tmp_path / "run", RecordingObserver())
    assert np.isfinite(result.f1)
    assert all(not record.refusals for record in read_rounds(tmp_path / "run"))


def test_a_hospital_with_other_features_is_left_out(tmp_path: Path) -> None:
    write_features(tmp_path / "berlin.npz", 0)
    write_features(tmp_path / "lyon.npz", 1, width=5)
    config = consortium(model__name="features", model__feature_width=6)
    run_over_flower(config, hospital_grid(tmp_path), tmp_path / "run", RecordingObserver())
    refusals = read_rounds(tmp_path / "run")[0].refusals
    assert refusals == {"lyon": "its images or labels cannot be used; its own log says more"}
    with pytest.raises(QuorumError):
        run_over_flower(
            consortium(model__name="features", model__feature_width=9),
            hospital_grid(tmp_path),
            tmp_path / "other",
            RecordingObserver(),
        )
