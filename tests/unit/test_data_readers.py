"""A new reader is one file: it registers itself, and is listed, loaded and checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgsca.data.checks import check_source
from fedgsca.data.file_list import FileList, ImageRow
from fedgsca.data.load import load
from fedgsca.data.reader import READERS, Reader, ReaderOptions, available_readers
from fedgsca.errors import DataError
from fedgsca.support.csv_table import read_label_lines

READER = """
from fedgsca.data.file_list import FileList, ImageRow
from fedgsca.data.reader import READERS, Reader


def list_alphabet(root, options):
    file_list = FileList(root, columns=("file", "label"))
    for path in sorted(root.glob("*.png")):
        file_list.rows.append(ImageRow(path.name, path.stem[0]))
    return file_list


READERS.register(
    "alphabet", Reader("alphabet:ROOT", "labels by first letter", list_images=list_alphabet)
)
"""


def test_readers_are_listed_in_their_order() -> None:
    names = ["synthetic", "features", "npz", "folder", "dicom", "kvasir", "odir", "chaoyang"]
    assert list(available_readers())[: len(names)] == names


def test_a_reader_from_outside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "alphabet_reader.py").write_text(READER)
    root = tmp_path / "letters"
    root.mkdir()
    rng = np.random.default_rng(0)
    for i in range(20):
        pixels = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{'ab'[i % 2]}{i}.png")
    monkeypatch.syspath_prepend(tmp_path)
    READERS.load()
    __import__("alphabet_reader")
    try:
        assert "alphabet" in available_readers()
        table = load(f"alphabet:{root}", train=8, test=2)
        assert table.classes == ("a", "b") and len(table.rows("train")) == 8
        assert check_source(f"alphabet:{root}").ok
        with pytest.raises(DataError) as caught:
            load(f"alphabett:{root}")
        assert caught.value.fix.startswith("did you mean alphabet:ROOT?")
    finally:
        READERS.unregister("alphabet")


def test_files_that_a_reader_lists_must_exist(tmp_path: Path) -> None:
    """A reader need not check this itself."""

    def list_nothing(root: Path, options: ReaderOptions) -> FileList:
        rows = [ImageRow("gone.png", "a"), ImageRow("lost.png", "b")]
        return FileList(root, rows=rows, columns=("file", "label"))

    READERS.register("nothing", Reader("nothing:ROOT", "no files", list_images=list_nothing))
    try:
        with pytest.raises(DataError) as caught:
            load(f"nothing:{tmp_path}", cache_dir=tmp_path)
        assert caught.value.code == "data.file-not-found"
        assert "2 files not found: gone.png, lost.png" in caught.value.message
        report = check_source(f"nothing:{tmp_path}", cache_dir=tmp_path)
        assert [problem.code for problem in report.problems] == ["data.file-not-found"]
    finally:
        READERS.unregister("nothing")


def test_a_reader_may_recognise_plain_paths(tmp_path: Path) -> None:
    def list_one(root: Path, options: ReaderOptions) -> FileList:
        return FileList(root, rows=[ImageRow(root.name, "a")], columns=("file", "label"))

    reader = Reader(
        "FILE.one", "one image", list_images=list_one, recognises=lambda p: p.suffix == ".one"
    )
    READERS.register("one", reader)
    try:
        from fedgsca.data.load import find_reader

        assert find_reader("x.one") == (reader, "x.one")
    finally:
        READERS.unregister("one")


def test_loading_the_registry_imports_no_decoder() -> None:
    """`fedgsca data list` is fast: Pillow, pydicom and openpyxl are imported when needed."""
    program = (
        "import sys; from fedgsca.data.reader import available_readers; available_readers();"
        "print([name for name in ('PIL', 'pydicom', 'openpyxl', 'torch') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("column", ["file", "id", " File "])
def test_one_reader_of_labels_for_all_spellings(
    tmp_path: Path, separator: str, column: str
) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(f"{column}{separator}Label\na.png{separator}x\n\nb.png{separator}y\n")
    lines = [line[:3] for line in read_label_lines(path)]
    assert lines == [(2, "a.png", "x"), (4, "b.png", "y")]


def test_labels_without_the_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("image,label\na.png,x\n")
    with pytest.raises(DataError) as caught:
        read_label_lines(path)
    assert caught.value.code == "data.missing-column" and "image" in caught.value.message
