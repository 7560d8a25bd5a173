"""OIA-ODIR: two layouts, two rules for the label, both eyes of a patient together."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedgsca.data.checks import check_source
from fedgsca.data.file_list import FolderCount
from fedgsca.data.load import load
from fedgsca.data.readers.odir import CLASSES, class_of_eye
from fedgsca.errors import DataError, MissingExtraError
from fedgsca.noise.candidates import ODIR, table_for
from tests import papers

pytest.importorskip("openpyxl")
TABLE = "Training Set/Annotation/training annotation (English).xlsx"


@pytest.fixture(scope="session")
def complete_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return papers.odir(tmp_path_factory.mktemp("odir"), train=32)


@pytest.fixture
def root(complete_root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(complete_root, tmp_path / "odir"))


def test_published_layout_by_patient(complete_root: Path) -> None:
    table = load(f"odir:{complete_root}")
    assert table.classes == CLASSES and Counter(table.split.tolist()) == {"train": 64, "test": 48}
    assert table.groups is not None
    for patient in ("3", "40"):
        assert set(table.labels[table.groups == patient].tolist()) == {int(patient) % 8}, (
            "both eyes have the patient's class"
        )
    assert np.bincount(table.labels[table.split == "train"]).tolist() == [8] * 8
    assert {"split published", "label patient"} <= {note.split(":")[0] for note in table.notes}


def test_by_eye_the_other_eye_may_be_normal(complete_root: Path) -> None:
    table = load(f"odir:{complete_root}", label="eye")
    label = {
        str(i).rsplit("/", 1)[1]: CLASSES[c] for i, c in zip(table.ids, table.labels, strict=True)
    }
    assert (label["2_left.jpg"], label["2_right.jpg"]) == ("Glaucoma", "Normal")
    assert label["3_left.jpg"] == label["3_right.jpg"] == "Cataract"


@pytest.mark.parametrize(
    ("keywords", "name"),
    [
        ("normal fundus", "Normal"),
        ("lens dust，normal fundus", "Normal"),
        ("abnormal fundus", "Other"),
        ("moderate non proliferative retinopathy，hypertensive retinopathy", "Diabetes"),
        ("hypertensive retinopathy,diabetic retinopathy", "Hypertension"),
        ("Mild nonproliferative retinopathy", "Diabetes"),
        ("suspected glaucoma", "Glaucoma"),
        ("glucoma", "Glaucoma"),
        ("cataracts", "Cataract"),
        ("hypertensive retinopathty", "Hypertension"),
        ("wet age-related macular degeneration", "AMD"),
        ("myopia retinopathy", "Myopia"),
        ("pathological  myopia", "Myopia"),
        ("drusen，cataract", "Other"),
        ("central serous chorioretinopathy", "Other"),
        ("low image quality，maculopathy", "Other"),
        ("low image quality", ""),
        ("no fundus image，", ""),
        ("optic disk photographically invisible", ""),
        ("", ""),
    ],
)
def test_the_first_finding_of_an_eye_decides(keywords: str, name: str) -> None:
    assert class_of_eye(keywords) == name


def test_eyes_without_a_diagnosis_are_left_out_and_counted(root: Path) -> None:
    rows = papers.patients(32)
    rows[5][5] = "low image quality"
    papers.workbook(root / TABLE, rows)
    table = load(f"odir:{root}", label="eye")
    assert len(table) == 111 and any("1 eye without a diagnosis" in note for note in table.notes)
    assert len(load(f"odir:{root}")) == 112


@pytest.mark.parametrize("inner", ["", "ODIR-5K"])
def test_kaggle_layout_draws_a_test_set_of_whole_patients(tmp_path: Path, inner: str) -> None:
    table = load(f"odir:{papers.odir_kaggle(tmp_path, 32) / inner}")
    assert table.groups is not None and len(table) == 64
    assert not set(table.groups[table.split == "train"]) & set(table.groups[table.split == "test"])
    assert any("split patient" in note for note in table.notes)


def test_the_papers_candidates_apply(complete_root: Path) -> None:
    table = table_for(load(f"odir:{complete_root}").classes)
    assert table is not None and len(table) == len(ODIR)
    assert {CLASSES[c]: [CLASSES[w] for w in wrong] for c, wrong in table.items()}["Diabetes"] == [
        "Glaucoma",
        "Hypertension",
    ]


def test_check_compares_with_the_published_numbers(complete_root: Path) -> None:
    report = check_source(f"odir:{complete_root}", fast=True)
    assert (
        report.ok
        and report.fingerprint == ""
        and report.group_word == "patient"
        and report.groups == 56
    )
    assert report.tree[0] == FolderCount("Training Set/Images/", 64, 7000)
    assert (
        report.published_counts["train"] == {"all": 7000, "Normal": 2280} and len(report.lists) == 3
    )
    assert any("instead of 7000" in warning for warning in report.warnings)


# ---- mistakes ----


def refused(root: Path, **options: str) -> DataError:
    with pytest.raises(DataError) as caught:
        load(f"odir:{root}", **options)  # type: ignore[arg-type]
    assert "\n" not in caught.value.message and len(caught.value.fix) > 5
    return caught.value


def test_invalid_tables(root: Path) -> None:
    header = [name for name in papers.HEADER if name != "Right-Fundus"]
    papers.workbook(root / TABLE, [row[:4] + row[5:] for row in papers.patients(32)], header)
    error = refused(root)
    assert error.code == "data.missing-column" and "Right-Fundus" in error.message
    (root / TABLE).write_text("ID,Left-Fundus\n")
    assert refused(root).code == "data.invalid-xlsx"
    (root / TABLE).unlink()
    assert refused(root).code == "data.lists-not-found"


def test_headers_in_other_spellings_are_read(root: Path) -> None:
    papers.workbook(
        root / TABLE,
        papers.patients(32),
        [name.upper().replace("-", " ") for name in papers.HEADER],
    )
    assert len(load(f"odir:{root}")) == 112


def test_rows_that_say_nothing(root: Path) -> None:
    rows = papers.patients(32)
    rows[0][7:] = [0] * 8
    rows[1][3] = None
    papers.workbook(root / TABLE, rows)
    error = refused(root)
    assert error.code == "data.several-problems"
    assert "without a 1 in the columns NDGCAHMO: line 2" in error.message
    assert "without a patient or a file: line 3" in error.message


def test_half_a_data_set(root: Path) -> None:
    shutil.rmtree(root / "On-site Test Set")
    error = refused(root)
    assert error.code == "data.folder-not-found" and "On-site Test Set" in error.message
    shutil.rmtree(root / "Off-site Test Set")
    assert any("split patient" in note for note in load(f"odir:{root}").notes)
    error = refused(root, split="published")
    assert error.code == "data.no-test-images" and "data.split=patient" in error.fix
    (root / "Training Set" / "Images" / "4_left.jpg").unlink()
    error = refused(root)
    assert error.code == "data.file-not-found"
    assert "1 of 64 listed images not found: Training Set/Images/4_left.jpg" in error.message
    (root / "Training Set" / "Images").rename(root / "Training Set" / "Pictures")
    error = refused(root)
    assert error.code == "data.folder-not-found" and "Images" in error.message


def test_wrong_roots(root: Path, tmp_path: Path) -> None:
    for wrong_root in (tmp_path, root / "Training Set"):
        error = refused(wrong_root)
        assert error.code == "data.wrong-root" and error.fix == f"use --data odir:{root}"
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty").code == "data.unknown-layout"


def test_without_the_extra_the_line_that_installs_it_is_told(
    complete_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgsca.support.csv_table.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        load(f"odir:{complete_root}")
    assert caught.value.code == "extra.odir-missing" and "fedgsca[odir]" in caught.value.fix
