"""Exported models give the numbers of the run, are fully described, and have an honest card."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedgsca.config import to_toml
from fedgsca.errors import FedgscaError, MissingExtraError, RunFolderError, WeightsError
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_lines
from fedgsca.lab.export import formats
from fedgsca.lab.export.formats import resize_matrix
from fedgsca.lab.export.prediction import open_model
from fedgsca.lab.export.trained_model import as_evaluated, read_trained
from fedgsca.lab.export.write_export import compare_models, export
from tests.toys import CLASSES, toy_config, toy_images, toy_npz

IMAGES = toy_images(np.arange(30) % CLASSES, seed=5)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A full network, a frozen backbone with FedGP's own head, a method with personal maps."""
    base = tmp_path_factory.mktemp("runs")
    eager: dict[str, Any] = {
        "fedgsca__var_floor": 0.001,
    }
    configs = {
        "whole": toy_config("fedgsca", train__rounds=3, **eager),
        "frozen": toy_config("fedgp", frozen=True, train__rounds=3),
        "personal": toy_config("fedrobust", train__rounds=2),
    }
    for name, config in configs.items():
        run(config, base / name)
    return {name: base / name for name in configs}


@pytest.mark.parametrize("format", ["safetensors", "torchscript"])
@pytest.mark.parametrize("name", ["whole", "frozen", "personal"])
def test_the_exported_model_gives_the_same_numbers(
    runs: dict[str, Path], tmp_path: Path, name: str, format: str
) -> None:
    result = export(runs[name], format, tmp_path / "out")
    assert sorted(p.name for p in result.path.iterdir()) == sorted(
        ["MODEL_CARD.md", "check.json", "model.json", formats.FORMATS[format].file]
    )
    model, reference = open_model(result.path), as_evaluated(read_trained(runs[name]))
    assert np.abs(model.probabilities(IMAGES) - reference(IMAGES)).max() < 1e-5
    assert np.abs(model.probabilities(IMAGES[:1]) - reference(IMAGES[:1])).max() < 1e-5, (
        "a batch of one"
    )
    record = json.loads((result.path / "check.json").read_text())
    assert (
        record["passed"]
        and record["inputs"] == "test images"
        and record["images"] == 30 == record["same_class"]
    )


def test_onnx(runs: dict[str, Path], tmp_path: Path) -> None:
    """Resizing, a frozen backbone, standardised features, a head with its own normalisation."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    result = export(runs["frozen"], "onnx", tmp_path / "out")
    assert result.check.passed and result.check.largest_difference < 1e-5
    session = onnxruntime.InferenceSession(
        result.path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    (entry,) = session.get_inputs()
    assert (entry.name, entry.type, entry.shape) == (
        "images",
        "tensor(uint8)",
        ["batch", 12, 12, 3],
    )
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list(
        open_model(result.path).classes
    )
    reference = as_evaluated(read_trained(runs["frozen"]))
    for count in (1, 7, 30):
        (probs,) = session.run(None, {"images": IMAGES[:count]})
        assert (
            probs.shape == (count, CLASSES)
            and np.abs(probs - reference(IMAGES[:count])).max() < 1e-5
        )


@pytest.mark.parametrize("old, new", [(12, 16), (40, 16), (28, 96), (9, 9)])
def test_resizing_by_matrices_is_the_one_of_training(old: int, new: int) -> None:
    image = torch.from_numpy(IMAGES[:1].astype(np.float32)).permute(0, 3, 1, 2)
    image = F.interpolate(image, size=(old, old))
    reference = F.interpolate(
        image, size=(new, new), mode="bilinear", align_corners=False, antialias=True
    )
    matrix = resize_matrix(old, new)
    torch.testing.assert_close(matrix @ image @ matrix.T, reference, rtol=1e-4, atol=1e-3)


def test_description_is_enough_to_use_the_model(runs: dict[str, Path], tmp_path: Path) -> None:
    about = json.loads(
        (export(runs["frozen"], "safetensors", tmp_path / "out").path / "model.json").read_text()
    )
    assert (
        about["classes"]
        == json.loads((runs["frozen"] / "setup.json").read_text())["data"]["classes"]
    )
    assert (about["architecture"], about["head"], about["frozen_backbone"]) == (
        "cnn",
        "centroid",
        True,
    )
    assert (
        about["input"]["height"] == about["input"]["width"] == 12
        and about["inside_model"]["resize_to"] == 16
    )
    assert (
        about["training"]["fingerprint"]
        == json.loads((runs["frozen"] / "result.json").read_text())["fingerprint"]
    )
    assert str(toy_npz().parent) not in json.dumps(about), (
        "paths of the training machine stay private"
    )


# ---- the check ----


def test_a_wrong_file_is_not_exported(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = formats.FORMATS["safetensors"]

    def a_little_off(path: Path, about: object) -> object:
        honest = kind.open(path, about)  # type: ignore[arg-type]
        return lambda images: honest(images) + 2e-4

    monkeypatch.setitem(formats.FORMATS, "safetensors", replace(kind, open=a_little_off))  # type: ignore[arg-type]
    with pytest.raises(FedgscaError) as error:
        export(runs["whole"], "safetensors", tmp_path / "out")
    assert error.value.code == "export.self-check-failed" and "0.0002" in error.value.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", [float("nan"), float("inf")])
def test_infinite_and_missing_numbers_do_not_pass(runs: dict[str, Path], answer: float) -> None:
    trained_model = read_trained(runs["whole"])
    record = compare_models(
        trained_model,
        as_evaluated(trained_model),
        lambda images: np.full((len(images), CLASSES), answer),
    )
    assert not record.passed


@pytest.mark.parametrize("change", ["gone", "changed"])
def test_without_the_data_random_images_are_compared(tmp_path: Path, change: str) -> None:
    data = tmp_path / "data.npz"
    shutil.copy(toy_npz(), data)
    run(toy_config("fedavg", source=data, train__rounds=1), tmp_path / "run")
    if change == "gone":
        data.unlink()
    else:
        shutil.copy(toy_npz(train=60), data)
    result = export(tmp_path / "run", "safetensors", tmp_path / "out")
    assert (
        result.check.passed
        and result.check.inputs == "random images"
        and result.check.fallback_reason
    )
    assert "random images" in (result.path / "MODEL_CARD.md").read_text()


# ---- the card ----


def test_card_contains_the_numbers_of_the_run(runs: dict[str, Path], tmp_path: Path) -> None:
    card = (
        export(runs["whole"], "safetensors", tmp_path / "out").path / "MODEL_CARD.md"
    ).read_text()
    result = json.loads((runs["whole"] / "result.json").read_text())
    for name, part in result["per_class"].items():
        scores = f"{part['f1']:.1f} | {part['recall']:.1f} | {part['precision']:.1f}"
        assert f"| {name} | {scores} | {part['support']} |" in card
    last = read_lines(runs["whole"] / "metrics.jsonl")[-1]["sites"]
    setup = json.loads((runs["whole"] / "setup.json").read_text())["sites"]
    wrong, flagged_share = setup["site-2"]["realised"]["rate"], last["site-2"]["delta"]
    assert (
        f"| site-2 | symmetric 40 % | {100 * wrong:.1f} % | {100 * flagged_share:.1f} % |" in card
    )
    assert f"| site-2 | {setup['site-2']['num_samples']} | " in card
    assert "Licence and consent: **TO FILL IN**" in card and "Not a medical device" in card
    assert str(tmp_path.parent) not in card and str(toy_npz()) not in card


def test_card_of_a_method_that_flags_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    card = (
        export(runs["personal"], "safetensors", tmp_path / "out").path / "MODEL_CARD.md"
    ).read_text()
    assert (
        "No site reported how many of its labels look wrong" in card
        and "Labels flagged" not in card
    )


def test_a_coordinator_that_has_no_images(runs: dict[str, Path], tmp_path: Path) -> None:
    """In a deployment, class counts and test images stay at the sites; the card has neither."""
    copy = tmp_path / "run"
    shutil.copytree(runs["personal"], copy)
    setup = json.loads((copy / "setup.json").read_text())
    config = toy_config(
        "fedrobust",
        train__rounds=2,
        noise__spec="0",
        data__source="sites",
        data__classes=setup["data"]["classes"],
        data__image_size=12,
        federation__sites=list(setup["sites"]),
    )
    (copy / "config.toml").write_text(to_toml(config))
    setup |= {"sites": {name: {} for name in setup["sites"]}, "test": 0}
    (copy / "setup.json").write_text(json.dumps(setup))
    lines = read_lines(copy / "metrics.jsonl")
    for line in lines:
        del line["f1"], line["confusion"]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = export(copy, "safetensors", tmp_path / "out")
    card = (result.path / "MODEL_CARD.md").read_text()
    assert result.check.inputs == "random images" and "No round was tested" in card
    assert (
        "| Site | Images |\n" in card
        and f"| site-1 | {lines[-1]['sites']['site-1']['num_samples']} |" in card
    )
    assert "simulat" not in card


# ---- what is refused ----


def test_unfinished_run(tmp_path: Path) -> None:
    run(toy_config("fedavg", train__rounds=4), tmp_path / "run", stop_after=2)
    with pytest.raises(RunFolderError) as error:
        export(tmp_path / "run", "safetensors", tmp_path / "out")
    assert error.value.code == "run.not-finished" and "2 of 4" in error.value.message
    assert "--checkpoint" in error.value.fix
    result = export(tmp_path / "run", "safetensors", tmp_path / "out", checkpoint=True)
    card = (result.path / "MODEL_CARD.md").read_text()
    assert (
        result.description.training.rounds == 2
        and "not finished" in card
        and "after round 2" in card
    )


def test_folders_that_are_not_runs(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(RunFolderError) as error:
        export(tmp_path, "safetensors", tmp_path / "out")
    assert error.value.code == "run.not-a-run-folder"
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(RunFolderError) as error:
        export(tmp_path, "safetensors", tmp_path / "out")
    assert error.value.code == "export.comparison"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(RunFolderError) as error:
        export(runs["whole"], "safetensors", tmp_path / "full")
    assert error.value.code == "export.folder-not-empty"


def test_another_weights_file_under_the_frozen_backbone(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    from fedgsca.models.build import build_backbone

    copy = tmp_path / "run"
    shutil.copytree(runs["frozen"], copy)
    save_file(dict(build_backbone("cnn", seed=78).state_dict()), tmp_path / "other.safetensors")
    text = (copy / "config.toml").read_text()
    line = next(line for line in text.splitlines() if line.startswith("weights ="))
    (copy / "config.toml").write_text(
        text.replace(line, f'weights = "{tmp_path / "other.safetensors"}"')
    )
    with pytest.raises(WeightsError) as error:
        export(copy, "safetensors", tmp_path / "out")
    assert error.value.code == "weights.other-file"


def test_classes_and_weights_that_do_not_belong_together(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(runs["whole"], copy)
    setup = json.loads((copy / "setup.json").read_text())
    setup["data"]["classes"].append("a fourth")
    (copy / "setup.json").write_text(json.dumps(setup))
    with pytest.raises(WeightsError) as error:
        export(copy, "safetensors", tmp_path / "out")
    assert error.value.code == "weights.do-not-fit" and "head.weight" in error.value.message


def test_damaged_exports(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = export(runs["whole"], "safetensors", tmp_path / "out").path
    good = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(good[:-4] + b"\0\0\0\1")
    with pytest.raises(RunFolderError) as error:
        open_model(folder)
    assert error.value.code == "export.damaged-file"
    (folder / "model.safetensors").unlink()
    with pytest.raises(RunFolderError) as error:
        open_model(folder)
    assert error.value.code == "export.missing-file"
    (folder / "model.json").write_text("{}")
    with pytest.raises(RunFolderError) as error:
        open_model(folder)
    assert error.value.code == "export.damaged-description"
    with pytest.raises(RunFolderError) as error:
        open_model(tmp_path)
    assert error.value.code == "predict.no-model"


def test_damaged_run(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(runs["whole"], copy)
    (copy / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(RunFolderError) as error:
        open_model(copy)
    assert error.value.code == "run.damaged-model"
    (copy / "setup.json").write_text("{")
    with pytest.raises(RunFolderError) as error:
        open_model(copy)
    assert error.value.code == "run.damaged-file"


def test_the_extra_is_named_before_anything_is_done(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as error:
        export(runs["whole"], "onnx", tmp_path / "out")
    assert error.value.code == "extra.onnx-missing" and "fedgsca[onnx]" in error.value.fix
    assert not (tmp_path / "out").exists()


def test_what_a_killed_export_left_is_removed(runs: dict[str, Path], tmp_path: Path) -> None:
    import os
    import platform

    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    litter = tmp_path / f"out.{platform.node()}-{process}-1.tmp"
    litter.mkdir()
    (litter / "model.safetensors").write_bytes(b"half")
    export(runs["whole"], "safetensors", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
