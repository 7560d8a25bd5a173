"""A user's own features: read and checked, trained on, audited, reviewed, exported."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedgsca.config import Config, load_config
from fedgsca.data.duplicates import find_duplicates, find_near_duplicates
from fedgsca.data.load import load
from fedgsca.data.readers.features_npz import has_features, read_features
from fedgsca.data.sheets import contact_sheet
from fedgsca.errors import ConfigError, DataError
from fedgsca.federation.choose_settings import complete
from fedgsca.federation.data_source import load_table
from fedgsca.federation.deployment import prepare_coordinator, prepare_site
from fedgsca.federation.rounds import run
from fedgsca.federation.samples import frozen_features
from fedgsca.federation.simulation import prepare
from fedgsca.lab.export.prediction import predict
from fedgsca.lab.export.write_export import export
from fedgsca.labels.audit_images import AuditImages
from fedgsca.labels.audits import audit_folder, audit_run
from fedgsca.rng import stream
from tests.toys import toy_images

WIDTH = 12
CLASSES = ("benign", "malignant", "normal")


def make_arrays(count: int = 150, seed: int = 0) -> dict[str, np.ndarray]:
    """Three clouds, two rows per patient."""
    rng = stream(seed, "own features")
    labels = rng.integers(0, 3, count)
    vectors = np.eye(3)[labels].repeat(WIDTH // 3, 1) * 2 + rng.normal(size=(count, WIDTH))
    return {
        "features": vectors.astype(np.float32),
        "labels": np.array(CLASSES)[labels],
        "groups": np.array([f"patient {i // 2}" for i in range(count)]),
    }


def write_npz(path: Path, **changes: Any) -> Path:
    """The arrays of `make_arrays` with changes; None leaves one out."""
    arrays = {**make_arrays(), **changes}
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def feature_config(source: Path, **sets: Any) -> Config:
    base: dict[str, Any] = {
        "method": "fedavg",
        "data__source": str(source),
        "data__sites": 3,
        "model__name": "features",
        "noise__spec": "S40",
        "train__rounds": 6,
        "train__device": "cpu",
    }
    return load_config(**(base | sets))


def write_folder(root: Path, count: int = 30) -> list[str]:
    """Images with labels.csv; returns their names."""
    root.mkdir()
    labels = np.arange(count) % 3
    names = [f"{i}.png" for i in range(count)]
    for name, picture in zip(names, toy_images(labels), strict=True):
        Image.fromarray(picture).save(root / name)
    lines = [f"{name},{CLASSES[label]}" for name, label in zip(names, labels, strict=True)]
    (root / "labels.csv").write_text("\n".join(["file,label", *lines]) + "\n")
    return names


# ---- reading ----


def test_a_file_of_features_is_a_source(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "own.npz")
    table = load(str(path))
    assert not table.has_images
    assert table.features is not None
    assert table.features.shape == (150, WIDTH)
    assert table.classes == CLASSES
    assert str(table.ids[7]) == "row/7"
    assert table.has_drawn_split
    test_groups = set(table.groups[table.rows("test")])  # type: ignore[index]
    assert not test_groups & set(table.groups[table.rows("train")])  # type: ignore[index]


def test_numbers_names_splits_and_sites_are_read(tmp_path: Path) -> None:
    numbers = np.arange(150) % 3
    path = write_npz(
        tmp_path / "own.npz",
        labels=numbers[:, None],
        classes=np.array(CLASSES, dtype=bytes),
        files=np.array([f"slide/{i}" for i in range(150)]),
        split=np.array(["test" if i % 5 == 0 else "train" for i in range(150)]),
        site=np.array([f"hospital {i % 2}" for i in range(150)]),
    )
    table = load(str(path))
    assert table.labels.tolist() == numbers.tolist()
    assert table.classes == CLASSES
    assert str(table.ids[3]) == "slide/3"
    assert len(table.rows("test")) == 30
    assert set(table.site.tolist()) == {"hospital 0", "hospital 1"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"features": np.zeros(150)}, "data.feature-shape"),
        ({"features": np.zeros((150, 4, 4))}, "data.feature-shape"),
        ({"features": np.zeros((150, 0))}, "data.feature-shape"),
        ({"features": np.full((150, 2), "x")}, "data.feature-type"),
        ({"features": np.full((150, 2), np.nan)}, "data.feature-not-finite"),
        ({"features": np.full((150, 2), 1e300)}, "data.feature-not-finite"),
        ({"features": np.zeros((149, 2))}, "data.column-length"),
        ({"labels": None}, "data.features-without-labels"),
        ({"labels": np.zeros(150)}, "data.label-type"),
        ({"labels": np.zeros((150, 2), int)}, "data.column-length"),
        ({"labels": np.full(150, 20_000)}, "data.too-many-classes"),
        ({"labels": np.full(150, -1)}, "data.label-range"),
        ({"labels": np.full(150, "one")}, "data.one-class"),
        ({"groups": np.array(["a"])}, "data.column-length"),
        ({"groups": np.array([None] * 150)}, "data.object-array"),
        ({"split": np.full(150, "dev")}, "data.unknown-split"),
        ({"files": np.full(150, "same")}, "data.feature-name-twice"),
        ({"classes": np.array(["benign", "benign"])}, "data.classes-array"),
        ({"classes": np.array(["benign", "normal"])}, "data.label-not-in-classes"),
    ],
)
def test_wrong_arrays_are_refused(changes: dict[str, Any], code: str, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "own.npz", **changes)
    with pytest.raises(DataError) as caught:
        load(str(path))
    assert caught.value.code == code
    assert caught.value.fix


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "own.npz")
    path.write_bytes(path.read_bytes()[:-200])
    assert not has_features(path)
    for broken in (path, tmp_path / "missing.npz"):
        with pytest.raises(DataError):
            read_features(broken)
    np.savez(tmp_path / "other.npz", vectors=np.zeros(3))
    with pytest.raises(DataError) as caught:
        read_features(tmp_path / "other.npz")
    assert caught.value.code == "data.npz-arrays"


def test_checks_do_not_look_at_images_that_do_not_exist(tmp_path: Path) -> None:
    vectors = make_arrays()["features"]
    vectors[5] = vectors[9]
    table = load(str(write_npz(tmp_path / "own.npz", features=vectors)))
    assert [rows.tolist() for rows in find_duplicates(table)] == [[5, 9]]
    assert find_near_duplicates(table) == []
    with pytest.raises(DataError) as caught:
        contact_sheet(table)
    assert caught.value.code == "data.no-images-to-show"


def test_features_count_in_the_fingerprint_whatever_the_classes_are_called(tmp_path: Path) -> None:
    marks = set()
    for shift in (0.0, 1.0):
        path = write_npz(tmp_path / "own.npz", features=make_arrays()["features"] + shift)
        names = {name: f"class {name}" for name in load(str(path)).classes}
        marks.add(load(str(path), class_names=names).fingerprint)
    assert len(marks) == 2


def test_vectors_without_information_are_reported(tmp_path: Path) -> None:
    vectors = make_arrays()["features"]
    vectors[[3, 4]] = 0
    config = feature_config(write_npz(tmp_path / "own.npz", features=vectors))
    table = load_table(config)
    assert any(note.startswith("2 feature vectors have the same number") for note in table.notes)
    assert np.isfinite(frozen_features(config, table)).all()


def test_every_vector_is_standardised_by_itself(tmp_path: Path) -> None:
    config = feature_config(write_npz(tmp_path / "own.npz"))
    table = load_table(config)
    features = np.asarray(frozen_features(config, table))
    assert np.allclose(features.mean(axis=1), 0, atol=1e-5)
    assert np.allclose(features.std(axis=1), 1, atol=1e-3)
    scaled = feature_config(
        write_npz(tmp_path / "scaled.npz", features=100 * make_arrays()["features"])
    )
    assert np.allclose(frozen_features(scaled, load_table(scaled)), features, atol=1e-3)


# ---- beside images ----


def test_features_beside_images_are_found_by_name(tmp_path: Path) -> None:
    names = write_folder(tmp_path / "images")
    vectors = np.arange(30 * 4, dtype=np.float32).reshape(30, 4)
    order = np.arange(30)[::-1]
    np.savez(
        tmp_path / "images" / "features.npz", features=vectors[order], files=np.array(names)[order]
    )
    table = load_table(feature_config(tmp_path / "images", noise__spec="0"))
    assert table.has_images
    assert table.features is not None
    for name, vector in zip(table.ids, table.features, strict=True):
        assert vector.tolist() == vectors[names.index(str(name))].tolist()
    images_only = load_table(feature_config(tmp_path / "images", model__name="cnn"))
    assert images_only.features is None
    assert images_only.fingerprint != table.fingerprint


def test_features_of_other_images_are_refused(tmp_path: Path) -> None:
    names = write_folder(tmp_path / "images")
    source = tmp_path / "images"
    path = tmp_path / "own.npz"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"files": np.array(names[:-1])}, "data.images-without-features"),
        ({}, "data.features-without-names"),
        ({"files": np.array([names[0], *names[:-2]])}, "data.feature-name-twice"),
    ]
    for arrays, code in cases:
        count = len(arrays.get("files", names))
        np.savez(path, features=np.ones((count, 4)), **arrays)
        with pytest.raises(DataError) as caught:
            load_table(feature_config(source, data__features=str(path)))
        assert caught.value.code == code
    with pytest.raises(DataError) as caught:
        prepare(feature_config(source))
    assert caught.value.code == "data.no-features"


# ---- configuration ----


def test_the_data_chooses_the_model(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "own.npz")
    chosen = complete(load_config(data=path)).choices
    assert chosen["model"] == {"name": "features"}
    names = write_folder(tmp_path / "images")
    np.savez(tmp_path / "images" / "features.npz", features=np.eye(30), files=np.array(names))
    chosen = complete(load_config(data=tmp_path / "images")).choices
    assert chosen["model"] == {"name": "features"}
    assert "model" not in complete(load_config(data=path, model="cnn")).choices


def test_settings_that_contradict_each_other_are_reported(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"model__name": "cnn", "data__features": "a.npz"}, "config.features-not-used"),
        ({"model__name": "cnn", "model__feature_width": 3}, "config.features-not-used"),
        ({"model__name": "features", "model__frozen": False}, "config.features-without-network"),
        ({"model__name": "features", "model__weights": "x"}, "config.features-without-network"),
    ]
    for sets, code in cases:
        with pytest.raises(ConfigError) as caught:
            load_config(**sets)
        assert [problem.code for problem in caught.value.problems] == [code]
    config = load_config(data__features="a.npz")
    assert (config.model.name, config.model.frozen) == ("features", True)


def test_a_network_has_nothing_to_look_at(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "own.npz")
    for sets in ({"model__name": "cnn"}, {"model__name": "cnn", "model__frozen": True}):
        with pytest.raises(DataError) as caught:
            prepare(feature_config(path, **sets))
        assert caught.value.code == "data.features-only"
    with pytest.raises(ConfigError) as refused:
        prepare(feature_config(path, noise__spec="O20"))
    assert refused.value.code == "noise.open-set-needs-network"


# ---- what can be done with them ----


def test_a_run_is_audited_reviewed_and_exported(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "own.npz")
    result = run(feature_config(path, method="fedgsca-e", noise__spec="C40"), tmp_path / "run")
    assert result is not None
    assert result.f1 > 25
    audits = audit_run(tmp_path / "run")
    page = (audits[0].path / "gallery.html").read_text()
    assert "features and no images" in page
    images = AuditImages.open(audits[0].path)
    suspect = audits[0].window(0, 1, priority=False)[0]
    assert images.hash(suspect.row) == suspect.hash
    assert len({images.hash(row) for row in range(len(images))}) == len(images)
    assert images.thumbnail(suspect.row).startswith(b"\xff\xd8")
    for file_format in ("safetensors", "torchscript"):
        folder = tmp_path / file_format
        assert export(tmp_path / "run", file_format, folder).check.passed
        description = json.loads((folder / "model.json").read_text())
        assert description["input"]["shape"] == ["batch", WIDTH]
        assert not description["backbone_included"]
        predictions = predict(folder, path)
        truth = make_arrays()["labels"]
        assert np.mean(np.array(predictions.labels) == truth) > 0.25
    assert "head on features" in (tmp_path / "safetensors" / "MODEL_CARD.md").read_text()
    narrow = write_npz(tmp_path / "narrow.npz", features=np.ones((150, 5)))
    with pytest.raises(DataError) as caught:
        predict(tmp_path / "run", narrow)
    assert caught.value.code == "data.feature-width"
    picture = tmp_path / "a.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(picture)
    with pytest.raises(DataError) as caught:
        predict(tmp_path / "run", picture)
    assert caught.value.code == "predict.needs-features"


def test_a_folder_audit_uses_the_features(tmp_path: Path) -> None:
    arrays = make_arrays()
    labels = arrays["labels"].copy()
    wrong = [10, 50, 90]
    for row in wrong:
        labels[row] = CLASSES[(CLASSES.index(labels[row]) + 1) % 3]
    path = write_npz(tmp_path / "own.npz", labels=labels)
    audit = audit_folder(path, tmp_path / "audit")
    assert audit.header.warning is not None
    with open(audit.path / "audit.csv", newline="") as handle:
        names = [row["id"] for row in csv.DictReader(handle)]
    assert {f"row/{row}" for row in wrong} <= set(names[:15])


# ---- in a deployment ----


def consortium(**sets: Any) -> Config:
    base: dict[str, Any] = {
        "method": "fedavg",
        "data__source": "sites",
        "data__classes": list(CLASSES),
        "federation__sites": ["berlin", "lyon"],
        "model__name": "features",
        "model__feature_width": WIDTH,
    }
    return load_config(**(base | sets))


def test_all_parties_have_the_same_width(tmp_path: Path) -> None:
    experiment = prepare_coordinator(consortium())
    assert experiment.feature_width == WIDTH
    path = write_npz(tmp_path / "own.npz")
    site = prepare_site(consortium(), "berlin", str(path))
    assert site.sites["berlin"].inputs.shape[1] == WIDTH
    with pytest.raises(DataError) as caught:
        prepare_site(consortium(model__feature_width=7), "berlin", str(path))
    assert caught.value.code == "data.feature-width"
    with pytest.raises(ConfigError) as refused:
        prepare_coordinator(consortium(model__feature_width=None))
    assert [problem.code for problem in refused.value.problems] == ["deploy.missing-key"]
