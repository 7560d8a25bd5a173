"""`fedgsca predict` repeats the answers of the run, in order and in little memory."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgsca.cli import execute
from fedgsca.errors import DataError
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_lines
from fedgsca.lab.export.prediction import (
    ImageFile,
    LoadedModel,
    find_images,
    find_labelled_images,
    open_model,
    predict,
    write_predictions,
)
from fedgsca.lab.export.write_export import export
from tests.toys import CLASSES, toy_config, toy_images


def image_folder(root: Path, *, deep: bool = False, count: int = 72) -> Path:
    """Images of 20 x 16 pixels, which are cropped to squares; every third is for testing.

    All but one of the deep (16-bit) images are dark.
    """
    labels = np.arange(count) % CLASSES
    lines = ["file,label,split,site"]
    for i, (label, image) in enumerate(zip(labels, toy_images(labels, size=20), strict=True)):
        name = f"img/{i:03d}.png"
        (root / "img").mkdir(parents=True, exist_ok=True)
        if deep:
            grey = image[:16].mean(axis=-1).astype(np.uint16)
            Image.fromarray(grey * np.uint16(16 if i == 0 else 1)).save(root / name)
        else:
            Image.fromarray(image[:16]).save(root / name)
        lines.append(f"{name},class {label},{'test' if i // 3 % 3 == 2 else 'train'},{'ab'[i % 2]}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("predict")


@pytest.fixture(scope="module")
def data(base: Path) -> Path:
    return image_folder(base / "set")


@pytest.fixture(scope="module")
def run_folder(base: Path, data: Path) -> Path:
    run(
        toy_config("fedavg", source=data, noise__spec="0", train__rounds=4, data__image_size=12),
        base / "run",
    )
    return base / "run"


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def last_confusion(run: Path) -> list[list[int]]:
    return list(read_lines(run / "metrics.jsonl")[-1]["confusion"])


@pytest.mark.parametrize("kind", ["whole", "frozen", "deep", "dicom"])
def test_predict_repeats_the_test_of_the_run(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Images of any shape, 16-bit grey values on the scale of the training set, DICOM windows."""
    if kind == "dicom":
        pytest.importorskip("pydicom")
        from tests.dicoms import dicom_folder

        labels = np.arange(36) % CLASSES
        root = dicom_folder(
            tmp_path / "set",
            labels,
            toy_images(labels),
            split=["test" if i % 4 == 3 else "train" for i in range(36)],
        )
    else:
        root = image_folder(tmp_path / "set", deep=kind == "deep")
    config = toy_config(
        "fedavg",
        frozen=kind == "frozen",
        source=root,
        data__partition="stratified",
        train__rounds=4,
    )
    run(config, tmp_path / "run")
    folder = export(tmp_path / "run", "torchscript", tmp_path / "out").path
    for model in (tmp_path / "run", folder):
        words = [
            "predict",
            str(model),
            str(root),
            "--score",
            "--split",
            "test",
            "--out",
            str(tmp_path / "p.csv"),
            "--json",
        ]
        capsys.readouterr()
        assert execute(words) == 0
        summary = json.loads(capsys.readouterr().out)
        assert summary["confusion"] == last_confusion(tmp_path / "run")
        assert summary["f1"] == pytest.approx(
            read_lines(tmp_path / "run" / "metrics.jsonl")[-1]["f1"]
        )


def test_the_white_level_of_the_training_set_is_kept(tmp_path: Path) -> None:
    """Alone, a dark 16-bit image looks like an 8-bit one, sixteen times as bright."""
    root = image_folder(tmp_path / "set", deep=True)
    run(toy_config("fedavg", source=root, noise__spec="0", train__rounds=1), tmp_path / "run")
    batches: list[np.ndarray] = []

    def watch(images: np.ndarray) -> np.ndarray:
        batches.append(images)
        return np.full((len(images), CLASSES), 1 / CLASSES)

    model = open_model(tmp_path / "run")
    assert (
        model.white
        == 4095
        == open_model(export(tmp_path / "run", "safetensors", tmp_path / "out").path).white
    )
    dark = root / "img" / "004.png"
    write_predictions(
        replace(model, probabilities=watch), [ImageFile("x", dark)], io.BytesIO(), batch_size=1
    )
    write_predictions(
        replace(model, probabilities=watch, white=None),
        [ImageFile("x", dark)],
        io.BytesIO(),
        batch_size=1,
    )
    with_level, without_level = batches
    assert with_level.max() <= 255 * 255 // 4095 + 1 < without_level.max()


def test_the_table(run_folder: Path, data: Path, tmp_path: Path) -> None:
    assert (
        execute(["predict", str(run_folder), str(data), "--out", str(tmp_path / "p.csv"), "-q"])
        == 0
    )
    rows = table(tmp_path / "p.csv")
    assert list(rows[0]) == ["file", "predicted", "probability", "class 0", "class 1", "class 2"]
    assert [row["file"] for row in rows] == [f"img/{i:03d}.png" for i in range(72)]
    for row in rows:
        probs = {name: float(row[name]) for name in row if name.startswith("class")}
        assert sum(probs.values()) == pytest.approx(1, abs=1e-5)
        assert row["predicted"] == max(probs, key=probs.__getitem__) and float(
            row["probability"]
        ) == max(probs.values())


def test_batches_change_nothing_and_bound_the_memory(run_folder: Path, data: Path) -> None:
    model = open_model(run_folder)
    largest = 0

    def watch(images: np.ndarray) -> np.ndarray:
        nonlocal largest
        largest = max(largest, len(images))
        return model.probabilities(images)

    tables = []
    for batch in (1, 7, 64):
        largest = 0
        to = io.BytesIO()
        write_predictions(
            replace(model, probabilities=watch), find_images([data]), to, batch_size=batch
        )
        assert largest == batch
        numbers = np.genfromtxt(io.BytesIO(to.getvalue()), delimiter=",", skip_header=1)[:, 2:]
        assert numbers.shape == (72, 1 + CLASSES)
        tables.append(numbers)
    assert np.abs(tables[0] - tables[1]).max() < 1e-5
    assert np.abs(tables[0] - tables[2]).max() < 1e-5


def test_names_of_files_and_of_several_folders(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    assert find_images([Path("set")])[0].name == "img/000.png"
    assert [p.name for p in find_images([Path("set/img/003.png"), Path("set/img/001.png")])] == [
        "set/img/003.png",
        "set/img/001.png",
    ]
    assert find_images([Path("set"), Path("set/img")])[72].name == "set/img/000.png"


def test_one_image_to_stdout(
    run_folder: Path, data: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert execute(["predict", str(run_folder), str(data / "img" / "000.png")]) == 0
    out, err = capfdbinary.readouterr()
    assert (
        len(out.splitlines()) == 2
        and out.startswith(b"file,predicted,probability,")
        and b"1 image" in err
    )


def test_score_compares_with_the_labels(
    run_folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert (
        execute(
            [
                "predict",
                str(run_folder),
                str(data),
                "--score",
                "--out",
                str(tmp_path / "p.csv"),
                "--json",
            ]
        )
        == 0
    )
    summary = json.loads(capsys.readouterr().out)
    labels = {f"img/{i:03d}.png": f"class {i % CLASSES}" for i in range(72)}
    right = sum(row["predicted"] == labels[row["file"]] for row in table(tmp_path / "p.csv"))
    assert summary["accuracy"] == pytest.approx(100 * right / 72) and summary["images"] == 72
    assert (
        execute(
            ["predict", str(run_folder), str(data), "--score", "--out", str(tmp_path / "p.csv")]
        )
        == 0
    )
    output = capsys.readouterr().err
    assert f"accuracy {100 * right / 72:.1f}" in output and "marked for training" in output


# ---- from Python ----


def test_predict_from_python_gives_the_numbers_of_the_csv(
    run_folder: Path, data: Path, tmp_path: Path
) -> None:
    predictions = predict(run_folder, data, batch_size=10)
    assert (
        execute(["predict", str(run_folder), str(data), "-o", str(tmp_path / "p.csv"), "-q"]) == 0
    )
    rows = table(tmp_path / "p.csv")
    assert len(predictions) == 72 and predictions.probabilities.shape == (72, CLASSES)
    assert list(predictions.files) == [row["file"] for row in rows]
    assert list(predictions.labels) == [row["predicted"] for row in rows]
    confidences = [float(row["probability"]) for row in rows]
    assert predictions.confidences == pytest.approx(confidences, abs=1e-5)
    assert predictions.probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert predictions.unreadable == ()


def test_predict_takes_an_opened_model_files_and_strings(run_folder: Path, data: Path) -> None:
    model = open_model(run_folder)
    path = data / "img" / "003.png"
    single = predict(model, str(path))
    pair = predict(str(run_folder), [path, data / "img" / "004.png"])
    assert single.files == (str(path),) and len(pair) == 2
    assert single.classes == model.classes and single.labels[0] == pair.labels[0]


def test_predict_lists_unreadable_files_and_refuses_to_return_nothing(
    run_folder: Path, mixed_folder: Path
) -> None:
    predictions = predict(run_folder, mixed_folder)
    assert predictions.files == ("a.png",)
    assert [file.name for file in predictions.unreadable] == ["b.png", "c.jpg"]
    (mixed_folder / "a.png").unlink()
    with pytest.raises(DataError) as error:
        predict(run_folder, mixed_folder)
    assert error.value.code == "predict.unreadable-images"


# ---- mistakes ----


@pytest.fixture
def mixed_folder(tmp_path: Path, data: Path) -> Path:
    root = tmp_path / "mixed"
    root.mkdir()
    good = (data / "img" / "000.png").read_bytes()
    (root / "a.png").write_bytes(good)
    (root / "b.png").write_bytes(good[: len(good) // 2])
    (root / "c.jpg").write_bytes(b"")
    (root / "notes.txt").write_text("no image, and not asked for")
    return root


def test_unreadable_files_are_named_and_have_no_row(
    run_folder: Path, mixed_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", str(run_folder), str(mixed_folder), "--out", str(tmp_path / "p.csv")]
    assert execute(words) == 3
    output = capsys.readouterr().err
    assert (
        "unreadable: b.png" in output
        and "unreadable: c.jpg" in output
        and "2 of 3 images" in output
        and "notes" not in output
    )
    assert [row["file"] for row in table(tmp_path / "p.csv")] == ["a.png"]
    assert execute([*words, "--skip-unreadable"]) == 0
    (mixed_folder / "a.png").unlink()
    assert execute([*words, "--skip-unreadable"]) == 3, "not one image could be read"


@pytest.mark.parametrize(
    "words, exit_code, code",
    [
        (["{run}", "{base}/nowhere"], 3, "predict.file-not-found"),
        (["{run}", "{base}/empty"], 3, "predict.no-images"),
        (["{run}", "{data}/labels.csv"], 3, "predict.unreadable-images"),
        (["{base}/nowhere", "{data}"], 7, "run.folder-not-found"),
        (["{data}", "{data}"], 7, "predict.no-model"),
        (["{run}", "{data}", "--json"], 2, "predict.json-needs-out"),
        (["{run}", "{data}", "--split", "test"], 2, "predict.split-needs-score"),
        (["{run}", "{data}/img/000.png", "--score"], 2, "predict.score-needs-folder"),
        (["{run}", "{data}", "--score", "--split", "val"], 3, "predict.empty-split"),
        (["{run}", "{base}/other", "--score"], 3, "predict.unknown-label"),
        (["{run}", "{base}/other", "--score", "--split", "test"], 3, "predict.no-split-column"),
        (["{run}", "{data}", "--out", "{data}"], 2, "predict.out-is-folder"),
    ],
)
def test_mistakes(
    run_folder: Path,
    data: Path,
    base: Path,
    words: list[str],
    exit_code: int,
    code: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (base / "empty").mkdir(exist_ok=True)
    (base / "other").mkdir(exist_ok=True)
    (base / "other" / "x.png").write_bytes((data / "img" / "000.png").read_bytes())
    (base / "other" / "labels.csv").write_text("file,label\nx.png,zebra\n")
    arguments = [word.format(run=run_folder, base=base, data=data) for word in words]
    assert execute(["predict", *arguments]) == exit_code
    output = capsys.readouterr()
    assert f"[{code}]" in output.err or json.loads(output.out)["error"]["code"] == code


def test_a_failure_leaves_the_old_table(
    run_folder: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.csv").write_text("old")
    real = open_model(run_folder)
    calls = 0

    def fails(images: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise KeyboardInterrupt
        return real.probabilities(images)

    def broken(path: Path) -> LoadedModel:
        return replace(real, probabilities=fails)

    monkeypatch.setattr("fedgsca.lab.export.prediction.open_model", broken)
    assert (
        execute(
            [
                "predict",
                str(run_folder),
                str(data),
                "--batch",
                "8",
                "--out",
                str(tmp_path / "p.csv"),
            ]
        )
        == 130
    )
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"] and (
        tmp_path / "p.csv"
    ).read_text() == "old"


def test_a_full_disk(run_folder: Path, data: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "wb", buffering=0) as to, pytest.raises(OSError):
        write_predictions(open_model(run_folder), find_images([data])[:2], to, batch_size=2)


def test_a_reader_that_has_seen_enough(
    run_folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`| head -1` is not a bug."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert execute(["predict", str(run_folder), str(data)]) == 0


def test_labels_of_a_folder_keep_the_order_of_the_list(data: Path) -> None:
    pictures = find_labelled_images(data, ["class 0", "class 1", "class 2"], "test")
    assert (
        len(pictures) == 24 and pictures[0].label == "class 0" and pictures[0].name == "img/006.png"
    )
