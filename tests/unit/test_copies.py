"""`data check` names duplicates and leaks; a draw decodes only what it draws; the cache command."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgsca.cli import execute
from fedgsca.data import build_table
from fedgsca.data.checks import check_source
from fedgsca.data.image_files import decode_with_patient
from fedgsca.data.load import load, subsample
from fedgsca.data.reader import ReaderOptions
from fedgsca.rng import stream


def write_images(root: Path, count: int = 60, size: int = 40) -> None:
    """Smooth random pictures of two classes in two splits."""
    root.mkdir()
    rng = stream(0, "copies")
    lines = ["file,label,split"]
    for i in range(count):
        coarse = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)
        picture.save(root / f"{i:02}.png")
        lines.append(f"{i:02}.png,{'ab'[i % 2]},{'test' if i % 3 == 0 else 'train'}")
    (root / "labels.csv").write_text("\n".join(lines))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_images(tmp_path / "x")
    return tmp_path / "x"


def test_copies_are_named_and_saved(root: Path, tmp_path: Path) -> None:
    (root / "04.png").write_bytes((root / "03.png").read_bytes())  # test and train
    picture = Image.open(root / "10.png")
    picture.resize((36, 36)).resize((40, 40)).save(root / "11.png")
    report = check_source(str(root), save=tmp_path / "found")
    files = {(f.kind, tuple(image.file for image in f.images)) for f in report.copies}
    assert files == {
        ("identical", ("03.png", "04.png")),
        ("near-duplicate", ("10.png", "11.png")),
    }
    with open(tmp_path / "found" / "copies.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["file"] for row in rows] == ["03.png", "04.png", "10.png", "11.png"]
    assert {row["split"] for row in rows[:2]} == {"train", "test"}
    assert Image.open(tmp_path / "found" / "copies.png").size[0] > 200


def test_classes_that_differ_only_in_capitals_are_the_first_warning(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (root / "labels.csv").read_text().replace("07.png,b", "07.png,B")
    (root / "labels.csv").write_text(text)
    report = check_source(str(root))
    num_b = text.count(".png,b")
    expected = f"classes that differ only in capitals or spaces: b ({num_b}) and B (1); "
    assert report.warnings[0].startswith(expected)
    assert not any("capitals" in note for note in report.notes)
    assert execute(["data", "check", str(root)]) == 0
    output = capsys.readouterr().out
    assert output.index("warning: classes that differ") == output.index("warning: ")
    assert "note: " not in output[: output.index("warning: ")]
    assert "ready" not in output and "a run would start, but read the warning" in output


def test_spaces_do_not_make_another_class_but_other_signs_do() -> None:
    classes = ("HER2", "HER2-", "Polyp  A", "a", "b", "polypa")
    [text] = build_table.spelling_warnings(np.array([0, 1, 2, 5, 5]), classes)
    assert "polypa (2) and Polyp  A (1);" in text


@pytest.mark.parametrize("has_split", [True, False])
def test_a_draw_decodes_only_its_images(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_split: bool
) -> None:
    if not has_split:
        lines = (root / "labels.csv").read_text().splitlines()
        (root / "labels.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines))
    Image.open(root / "59.png").resize((50, 50)).save(root / "59.png")  # decides the common size
    full = load(str(root), cache_dir=tmp_path / "a")
    expected = subsample(full, ReaderOptions(train=12, test=6))
    names: list[str] = []

    def count(path: Path, *rest: int) -> tuple[np.ndarray, str]:
        names.append(path.name)
        return decode_with_patient(path, *rest)

    monkeypatch.setattr(build_table, "decode_with_patient", count)
    part = load(str(root), cache_dir=tmp_path / "b", train=12, test=6)
    assert sorted(names) == sorted(part.ids.tolist()) and len(names) == 18
    assert part.fingerprint == expected.fingerprint
    assert part.ids.tolist() == expected.ids.tolist()
    assert (part.labels == expected.labels).all() and part.classes == expected.classes


def test_cache_size_and_clear(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("FEDGSCA_CACHE", str(cache))
    load(str(root))
    (cache / "thesis.txt").write_text("not ours")
    assert execute(["data", "cache"]) == 0
    assert "KB in 3 files" in capsys.readouterr().out
    assert execute(["data", "cache", "--clear", "--older-than", "1", "--yes"]) == 0
    assert len(list(cache.iterdir())) == 4
    assert execute(["data", "cache", "--clear", "--yes"]) == 0
    assert [path.name for path in cache.iterdir()] == ["thesis.txt"]
