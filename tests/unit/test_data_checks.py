"""`data check` reports everything at once and raises nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgsca.data.checks import check_source
from fedgsca.data.table import ImageTable, check_table, with_fingerprint
from fedgsca.errors import DataError
from fedgsca.support.csv_table import read_csv_table


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = ["file,label,group,split,site"]
    for i in range(40):
        Image.fromarray(rng.integers(0, 256, (10, 12, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        split = "test" if i >= 32 else "train"
        site = "north" if i % 3 else "south"
        lines.append(f"{i}.png,{'ab'[i % 2]},p{i // 4},{split},{site}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


def test_sound_folder(root: Path) -> None:
    report = check_source(str(root))
    assert report.ok and report.problems == () and report.warnings == ()
    assert report.counts == {"train": {"a": 16, "b": 16}, "test": {"a": 4, "b": 4}}
    assert report.file_sizes == (("12x10", 40),) and report.shape == (10, 10, 3)
    assert report.groups == 10 and report.sites == {"north": 26, "south": 14}
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


def test_unreadable_files_are_a_problem_and_the_rest_is_still_counted(root: Path) -> None:
    (root / "5.png").write_bytes(b"no")
    report = check_source(str(root))
    assert not report.ok and [bad.name for bad in report.bad] == ["5.png"]
    assert report.problems[0].code == "data.unreadable-images"
    assert "1 of 40 images" in report.problems[0].text
    assert report.counts["train"] == {"a": 16, "b": 15}


def test_problems_of_the_list_and_of_the_images_together(root: Path) -> None:
    (root / "5.png").write_bytes(b"no")
    (root / "6.png").unlink()
    report = check_source(str(root))
    problems = {problem.code: problem for problem in report.problems}
    assert set(problems) == {"data.file-not-found", "data.unreadable-images"}
    assert "6.png" in problems["data.file-not-found"].text
    assert "5.png" in problems["data.unreadable-images"].text
    assert all(problem.fix for problem in report.problems)


def test_warnings_about_leaks_copies_classes_and_empty_frames(root: Path) -> None:
    Image.new("RGB", (12, 10)).save(root / "0.png")
    (root / "33.png").write_bytes((root / "1.png").read_bytes())
    text = (
        (root / "labels.csv")
        .read_text()
        .replace("39.png,b,p9", "39.png,c,p0")
        .replace("38.png,a", "38.png,c")
    )
    (root / "labels.csv").write_text(text)
    report = check_source(str(root))
    warnings = "\n".join(report.warnings)
    assert report.ok
    assert "train: no image of c" in warnings
    assert "1 of 10 groups are in more than one split" in warnings
    assert "duplicate images across splits: 1 image" in warnings
    assert "1 image of a single colour" in warnings


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("sinthetic", "data.unknown-source"),
        ("no/such/folder", "data.unknown-source"),
        ("nothing.npz", "data.npz-not-found"),
    ],
)
def test_unknown_sources_are_reported(source: str, code: str) -> None:
    report = check_source(source)
    assert not report.ok
    assert report.problems[0].code == code and report.problems[0].fix


def test_empty_folder_and_all_unreadable(tmp_path: Path, root: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert check_source(str(tmp_path / "empty")).problems[0].code == "data.no-images"
    for path in root.glob("*.png"):
        path.write_bytes(b"")
    report = check_source(str(root))
    assert len(report.bad) == 40 and "40 of 40" in report.problems[0].text


def test_one_class_is_a_problem(root: Path) -> None:
    (root / "labels.csv").write_text((root / "labels.csv").read_text().replace(",b,", ",a,"))
    assert check_source(str(root)).problems[0].code == "data.one-class"


def test_other_sources(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8)
    labels = np.arange(30) % 2
    np.savez(
        tmp_path / "x.npz",
        train_images=images,
        train_labels=labels,
        test_images=images[:5],
        test_labels=labels[:5],
    )
    report = check_source(str(tmp_path / "x.npz"), cache_dir=tmp_path)
    assert report.ok and report.counts["train"] == {"class 0": 15, "class 1": 15}
    assert report.warnings == (
        "duplicate images across splits: 5 images, 5 copies in the test set",
    )
    assert report.bad == ()


def table(**changes: object) -> ImageTable:
    parts: dict[str, object] = {
        "name": "t",
        "images": np.zeros((4, 2, 2, 3), np.uint8),
        "labels": np.array([0, 1, 0, 1]),
        "classes": ("a", "b"),
        "split": np.array(["train", "train", "test", "test"]),
        "ids": np.array(list("wxyz")),
        "fingerprint": "",
    }
    return ImageTable(**(parts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "code", "value"),
    [
        ({"images": np.zeros((4, 2, 2), np.uint8)}, "data.image-shape", "(4, 2, 2)"),
        ({"images": np.zeros((5, 2, 2, 3), np.uint8)}, "data.column-length", "5 entries"),
        ({"groups": np.array(["a"])}, "data.column-length", "1 entries"),
        ({"labels": np.array([0, 2, 0, 1])}, "data.label-range", "0 to 2"),
        (
            {"split": np.array(["train", "trian", "test", "test"])},
            "data.unknown-split",
            "'trian'",
        ),
        ({"split": np.array(["test"] * 4)}, "data.no-training-images", "t"),
        ({"labels": np.array([1, 1, 0, 0])}, "data.one-class", "'b'"),
    ],
)
def test_every_table_is_checked(changes: dict[str, object], code: str, value: str) -> None:
    check_table(table())
    with pytest.raises(DataError) as caught:
        check_table(table(**changes))
    assert caught.value.code == code and value in caught.value.message


def test_fingerprint_covers_every_part() -> None:
    t = table()
    images = t.images.copy()
    images[0, 0, 0, 0] = 1
    changes: list[dict[str, object]] = [
        {},
        {"images": images},
        {"labels": t.labels[::-1]},
        {"classes": ("a", "c")},
        {"split": t.split[::-1]},
        {"images": t.images.reshape(4, 1, 4, 3)},
        {"features": np.zeros((4, 2), np.float32)},
    ]
    marks = {with_fingerprint(t, **change).fingerprint for change in changes}
    assert len(marks) == 7


def test_sheet_survives_spreadsheets(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('Image File;label;;\r\n"a;b.png";  x ;;\r\n\r\nc.png;y\r\n')
    sheet = read_csv_table(path)
    assert sheet.columns == ("imagefile", "label")
    assert sheet.rows == (
        (2, {"imagefile": "a;b.png", "label": "x"}),
        (4, {"imagefile": "c.png", "label": "y"}),
    )
