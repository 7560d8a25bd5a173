"""Open-set noise: images of none of the classes, under the label of one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgsca
from fedgsca.cli import execute
from fedgsca.errors import ConfigError
from fedgsca.federation.label_noise import make_texture
from fedgsca.federation.local import measure_decisions
from fedgsca.federation.rounds import run
from fedgsca.federation.samples import frozen_features
from fedgsca.federation.simulation import Experiment, prepare
from fedgsca.noise import NO_CLASS, corrupt, read_site_noise, realised
from fedgsca.rng import stream
from tests.toys import outcome, toy_config, toy_images, toy_npz

SPEC = "0-O50-S40-O20"


def foreign_npz(folder: Path, count: int = 60) -> Path:
    """Images of one colour, which no class of the toy has."""
    path = folder / "foreign.npz"
    shades = np.arange(count, dtype=np.uint8)[:, None, None, None]
    labels = (np.arange(count) % 2)[:, None].astype(np.uint8)
    images = np.broadcast_to(shades, (count, 16, 16, 3))
    np.savez(
        path,
        train_images=images[2:],
        train_labels=labels[2:],
        test_images=images[:2],
        test_labels=labels[:2],
    )
    return path


def open_experiment(**sets: Any) -> Experiment:
    return prepare(toy_config("fedavg", **{"noise__spec": SPEC, **sets}))


def test_foreign_images_take_the_place_and_the_label_of_others() -> None:
    clean = open_experiment(noise__spec="0")
    noisy = open_experiment()
    truth = noisy.truth["site-2"]
    is_foreign = truth == NO_CLASS
    assert 0.3 < is_foreign.mean() < 0.7
    labels = noisy.sites["site-2"].labels
    assert (labels == clean.sites["site-2"].labels).all(), "class counts are those of the site"
    assert (truth[~is_foreign] == labels[~is_foreign]).all()
    old = clean.sites["site-2"].inputs
    new = noisy.sites["site-2"].inputs
    is_same = (old == new).all(axis=(1, 2, 3))
    assert (is_same == ~is_foreign).all()
    for name in ("site-1", "site-3"):
        assert (noisy.sites[name].inputs == clean.sites[name].inputs).all()
        assert (noisy.truth[name] == clean.sites[name].labels).all()
    assert clean.test is not None and noisy.test is not None
    assert (noisy.test.inputs == clean.test.inputs).all()


def test_another_site_or_seed() -> None:
    noisy = open_experiment()
    one = open_experiment(noise__spec="0-O50-0-0")
    assert (one.sites["site-2"].inputs == noisy.sites["site-2"].inputs).all()
    assert one.signature() != noisy.signature()
    assert noisy.signature() == open_experiment().signature()
    assert open_experiment(seed=1).signature() != noisy.signature()


def test_a_texture_has_the_colours_of_its_image_and_no_shapes() -> None:
    image = toy_images(np.array([1]))[0]
    texture = make_texture(image, stream(0, "texture"))
    assert texture.shape == image.shape and texture.dtype == np.uint8
    assert texture.mean(axis=(0, 1)) == pytest.approx(image.mean(axis=(0, 1)), abs=1.5)
    stripes = [abs(picture[::2].mean() - picture[1::2].mean()) for picture in (image, texture)]
    assert stripes[0] > 35 and stripes[1] < 10
    white = np.full((8, 8, 3), 255, np.uint8)
    assert (make_texture(white, stream(0)) == 255).all()


def test_images_from_another_source(tmp_path: Path) -> None:
    noisy = open_experiment(noise__open_set=str(foreign_npz(tmp_path)))
    is_foreign = noisy.truth["site-2"] == NO_CLASS
    images = noisy.sites["site-2"].inputs[is_foreign]
    assert (images == images[:, :1, :1, :1]).all(), "plain colours, in the size of the data"
    assert len(np.unique(images[:, 0, 0, 0])) == len(images), "none occurs twice at a site"
    assert any("from foreign" in warning for warning in noisy.warnings)
    assert any("also has a class" in warning for warning in noisy.warnings)


def test_a_source_with_too_few_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        open_experiment(noise__open_set=str(foreign_npz(tmp_path, count=4)))
    assert error.value.code == "noise.open-set-too-small"


def test_only_a_simulation_can_replace_images() -> None:
    noise = read_site_noise("o20")
    assert noise is not None and str(noise) == "O20"
    with pytest.raises(ConfigError) as error:
        corrupt(np.zeros(4, np.int64), noise, num_classes=3, rng=stream(0))
    assert error.value.code == "noise.replaces-images"


def test_counts_have_a_row_for_images_of_no_class() -> None:
    true = np.array([0, 1, NO_CLASS, NO_CLASS])
    counts = realised(true, np.array([0, 0, 1, 1]), 2)
    assert counts == {"samples": 4, "rate": 0.75, "counts": [[1, 0], [1, 0], [0, 2]]}
    assert len(realised(true[:2], true[:2], 2)["counts"]) == 2


def test_no_label_of_a_foreign_image_is_right() -> None:
    truth = np.array([0, 1, NO_CLASS])
    notes = {
        "clean": np.array([True, True, False]),
        "pseudo_rows": np.array([1, 2]),
        "pseudo_labels": np.array([1, 0]),
        "corrected": np.array([0, 1, 0]),
    }
    metrics = measure_decisions(notes, truth, np.array([0, 1, 2]))
    assert metrics["noisy_precision"] == metrics["noisy_recall"] == 1.0
    assert metrics["pseudo_accuracy"] == 0.5
    assert metrics["label_accuracy_after"] == pytest.approx(2 / 3)


def test_the_ceiling_leaves_them_out() -> None:
    oracle = open_experiment(noise__oracle=True)
    for name, truth in oracle.truth.items():
        assert (truth == oracle.sites[name].labels).all()
    assert len(oracle.sites["site-2"]) < len(oracle.sites["site-1"])


def test_features_of_the_source_are_not_computed_again() -> None:
    config = toy_config("fedavg", frozen=True, noise__spec=SPEC)
    table = prepare(config).table
    assert table.source_table is not None
    features = frozen_features(config, table)
    assert len(features) == len(table)
    source_features = frozen_features(config, table.source_table)
    assert (features[: len(source_features)] == source_features).all()
    assert np.isfinite(features).all() and features[len(source_features) :].std() > 0


@pytest.mark.parametrize("frozen", [False, True])
def test_resumed_and_in_processes_with_the_same_bytes(
    frozen: bool, tmp_path: Path, cheap_processes: None
) -> None:
    config = toy_config("fedgsca", frozen=frozen, noise__spec=SPEC, train__rounds=3)
    run(config, tmp_path / "whole")
    run(config, tmp_path / "parts", stop_after=1)
    run(config, tmp_path / "parts")
    run(config, tmp_path / "processes", jobs=2)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    assert outcome(tmp_path / "processes") == outcome(tmp_path / "whole")


def test_run_folder_report_and_audit(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = toy_config("fedgsca-e", frozen=True, noise__spec=SPEC, train__rounds=6)
    finished_run = fedgsca.run(config, out=folder)
    lines = (folder / "noise" / "site-2.csv").read_text().splitlines()
    num_foreign = sum("none of the classes" in line for line in lines)
    site = json.loads((folder / "setup.json").read_text())["sites"]["site-2"]
    assert num_foreign == sum(site["realised"]["counts"][-1]) > 0
    assert execute(["report", str(folder)]) == 0
    assert "O50" in (folder / "report.html").read_text()
    audits = {audit.site: audit for audit in fedgsca.audit(finished_run)}
    summary = audits["site-2"].summary
    assert summary.truth is not None and summary.truth.num_wrong == num_foreign
    row = next(iter(audits["site-2"].ranked_labels()))
    fedgsca.record_decisions(audits["site-2"], {row.id: "class 1"}, reviewer="A")
    with pytest.raises(ConfigError) as error:
        fedgsca.apply_decisions(finished_run)
    assert error.value.code == "audit.open-set-images"


def test_the_preview(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["noise", SPEC, "--data", str(toy_npz())]) == 0
    output = capsys.readouterr()
    assert "none of the classes" in output.out
    assert "textures made" in output.out + output.err


def test_a_comparison_with_its_ceiling(tmp_path: Path) -> None:
    config = toy_config("fedavg", frozen=True, train__rounds=2)
    result = fedgsca.compare(["fedavg"], config, noises=["O50"], seeds=1, out=tmp_path / "grid")
    assert result.row("fedavg", "O50").f1 is not None
    assert "O50" in result.comparison.ceiling
