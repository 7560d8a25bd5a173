"""The audit of one folder without a federation."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedgsca
from fedgsca.cli import execute
from fedgsca.config import Config
from fedgsca.data.load import load
from fedgsca.data.table import ImageTable
from fedgsca.errors import DataError, RunFolderError
from fedgsca.labels import audits as alone
from fedgsca.labels import site_data
from fedgsca.labels.audit_table import read_audit

COLOURS = {"benign": (200, 60, 60), "malignant": (60, 60, 200), "normal": (60, 200, 60)}


# ---- a folder of images ----


def mean_colours(config: Config, table: ImageTable) -> np.ndarray:
    """(n, 6): a stand-in for the backbone."""
    means = np.asarray(table.images, dtype=np.float32).mean(axis=(1, 2)) / 40.0
    return np.concatenate([means, means**2 / 10.0], axis=1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """60 images of three colours, five with a wrong label, two images per patient."""
    monkeypatch.setattr(alone, "frozen_features", mean_colours)
    monkeypatch.setattr(site_data, "frozen_features", mean_colours)
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "images"
    root.mkdir()
    rng = np.random.default_rng(0)
    names = sorted(COLOURS)
    lines = ["file,label,group"]
    for number in range(60):
        name = names[number % 3]
        pixels = np.array(COLOURS[name]) + rng.normal(scale=12, size=(8, 8, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"{number:02d}.png")
        label = names[(number + 1) % 3] if number < 5 else name
        lines.append(f"{number:02d}.png,{label},patient-{number // 2}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


def test_all_images_are_audited_and_wrong_ones_found(folder: Path, tmp_path: Path) -> None:
    audit = fedgsca.audit_folder(folder, tmp_path / "out")
    assert audit.summary.labels == 60
    first_ids = [suspect.id for suspect in audit.ranked_labels()][:5]
    assert sorted(first_ids) == [f"{number:02d}.png" for number in range(5)]
    for path in audit.path.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path.name
    assert audit.path.stat().st_mode & 0o077 == 0
    page = (audit.path / "gallery.html").read_text()
    assert "judged by a regression" in page and "FedGSCA" not in page
    assert "round" not in next(iter(audit.ranked_labels())).reason


def test_decisions_become_corrected_labels_for_the_next_audit(folder: Path, tmp_path: Path) -> None:
    audit = fedgsca.audit_folder(folder, tmp_path / "out")
    suspect = next(iter(audit.ranked_labels()))
    fedgsca.record_decisions(audit, {suspect.id: suspect.suggestion}, reviewer="M. Rossi")
    corrections = fedgsca.apply_decisions(audit)
    assert corrections.file is not None
    with corrections.file.open() as file:
        labels = {row["file"]: row["label"] for row in csv.DictReader(file)}
    assert len(labels) == 60
    assert labels[suspect.id] == suspect.suggestion
    # a run draws its test images from all of them, and accepts the file all the same
    for seed in range(5):
        table = load(str(folder), labels=corrections.file, seed=seed)
        row = table.ids.tolist().index(suspect.id)
        assert table.classes[table.labels[row]] == suspect.suggestion
    again = fedgsca.audit_folder(folder, tmp_path / "again", labels=corrections.file)
    assert suspect.id not in [label.id for label in again.ranked_labels()][:4]


def test_the_next_command_fits_a_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = fedgsca.audit_folder(folder, tmp_path / "out")
    suspect = next(iter(audit.ranked_labels()))
    fedgsca.record_decisions(audit, {suspect.id: suspect.suggestion}, reviewer="M. Rossi")
    assert execute(["apply", str(audit.path)]) == 0
    assert f"fedgsca run --data {folder} --labels" in capsys.readouterr().out.replace("\n", " ")


def test_the_same_call_reads_the_evidence_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fedgsca.audit_folder(folder, tmp_path / "out")
    content = (first.path / "audit.csv").read_bytes()

    def refuse(*arguments: object) -> None:
        raise AssertionError("the evidence is computed again")

    monkeypatch.setattr(alone, "judge_alone", refuse)
    second = fedgsca.audit_folder(folder, tmp_path / "out")
    assert (second.path / "audit.csv").read_bytes() == content


def test_another_folder_of_images_needs_another_out(folder: Path, tmp_path: Path) -> None:
    fedgsca.audit_folder(folder, tmp_path / "out")
    text = (folder / "labels.csv").read_text().replace("07.png,malignant", "07.png,benign")
    (folder / "labels.csv").write_text(text)
    with pytest.raises(RunFolderError) as error:
        fedgsca.audit_folder(folder, tmp_path / "out")
    assert error.value.code == "audit.other-folder"


def test_foreign_files_are_not_touched(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError) as error:
        fedgsca.audit_folder(folder, out)
    assert error.value.code == "audit.folder-not-empty"


def test_a_handful_of_labels_is_refused(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "labels.csv").read_text().splitlines()[:11]
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError) as error:
        fedgsca.audit_folder(folder, tmp_path / "out")
    assert error.value.code == "audit.too-few-labels"


def test_test_images_of_a_split_column_stay_locked(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "labels.csv").read_text().splitlines()
    rows = [lines[0] + ",split"]
    for number, line in enumerate(lines[1:]):
        rows.append(f"{line},{'test' if number >= 48 else 'train'}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    audit = fedgsca.audit_folder(folder, tmp_path / "out")
    assert audit.summary.labels == 48


# ---- contradicting copies ----


def copy_image(folder: Path, old: str, new: str, label: str) -> None:
    """Add a copy of an image with another label, of the same patient."""
    (folder / new).write_bytes((folder / old).read_bytes())
    with open(folder / "labels.csv", "a") as file:
        file.write(f"{new},{label},patient-{int(old[:2]) // 2}\n")


def test_contradicting_copies_come_first_whatever_the_evidence_says(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = sorted(COLOURS)
    copy_image(folder, "20.png", "60.png", names[0])  # the colour of 20 is that of names[2]
    audit = fedgsca.audit_folder(folder, tmp_path / "out", quota=0.0)
    one, two = audit.window(0, 2)
    assert {one.id, two.id} == {"20.png", "60.png"}
    assert one.suggestion == two.given and two.suggestion == one.given
    assert one.copies == ((two.row, two.id, two.given),) and one.priority and two.priority
    assert "a copy of the image is labelled" in one.reason
    copies = audit.summary.copies
    assert copies is not None and (copies.pairs, copies.labels, copies.least_wrong) == (1, 2, 1)
    assert audit.summary.estimated_wrong.low >= 1
    assert "The same image with different labels" in (audit.path / "gallery.html").read_text()
    assert execute(["audit", str(tmp_path / "out")]) == 0
    assert "first on the list" in " ".join(capsys.readouterr().out.split())
    # one of the two is confirmed: the other one is wrong, and still on the list
    right = one if one.id == "20.png" else two
    fedgsca.record_decisions(audit, {"20.png": right.given}, reviewer="M. Rossi")
    labels = fedgsca.apply_decisions(audit).file
    second = fedgsca.audit_folder(folder, tmp_path / "second", labels=labels)
    assert second.window(0, 1)[0].id == "60.png"
    copies = second.summary.copies
    assert copies is not None and (copies.labels, copies.least_wrong) == (1, 1)
    # the other one is corrected: nothing contradicts any more
    fedgsca.record_decisions(second, {"60.png": right.given}, reviewer="M. Rossi")
    labels = fedgsca.apply_decisions(second).file
    assert fedgsca.audit_folder(folder, tmp_path / "third", labels=labels).summary.copies is None


def test_so_many_labels_as_there_is_time_for(folder: Path, tmp_path: Path) -> None:
    audit = alone.audit_folder(folder, tmp_path / "out", review=7)
    assert [suspect.rank for suspect in audit.suspects()] == list(range(1, 8))
    assert execute(["audit", str(tmp_path / "out"), "--review", "3"]) == 0
    assert read_audit(tmp_path / "out").num_suspects == 3
