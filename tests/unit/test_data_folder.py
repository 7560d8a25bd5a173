"""Folders of images: lists as people write them, images as machines write them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgsca.data import build_table
from fedgsca.data.file_list import show_cases
from fedgsca.data.image_files import UnreadableImageError, decode, fit, inspect_image, white_level
from fedgsca.data.load import load
from fedgsca.data.partition import split_rows
from fedgsca.data.readers.folder import list_folder
from fedgsca.data.table import ImageTable
from fedgsca.errors import DataError

Make = Callable[..., Path]


def picture(seed: int, size: tuple[int, int] = (12, 12)) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    )


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A folder with images a0.png .. and a labels.csv; `rows` overrides the lines."""
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "cache"))

    def build(rows: list[str] | None = None, header: str = "file,label", count: int = 10) -> Path:
        root = tmp_path / "set"
        root.mkdir(exist_ok=True)
        for i in range(count):
            picture(i).save(root / f"a{i}.png")
        lines = rows
        if lines is None:
            lines = [f"a{i}.png,{'tumour' if i % 2 else 'normal'}" for i in range(count)]
        (root / "labels.csv").write_text("\n".join([header, *lines]))
        return root

    return build


def read(root: Path) -> ImageTable:
    return load(str(root))


def test_long_lists_of_cases_are_shortened() -> None:
    assert show_cases(["a"]) == "a"
    assert show_cases(list("abcde")) == "a, b, c, d, e"
    assert show_cases(list("abcdef")) == "a, b, c, d, e, ..."


def test_images_labels_and_ids_in_list_order(make: Make) -> None:
    table = read(make())
    assert table.ids.tolist() == [f"a{i}.png" for i in range(10)]
    assert table.classes == ("normal", "tumour") and table.labels.tolist() == [0, 1] * 5
    assert table.images.shape == (10, 12, 12, 3)  # small images of one size keep it
    assert (table.images[3] == np.asarray(picture(3))).all()
    assert table.name == "set"


def test_all_columns(make: Make) -> None:
    rows = []
    for i in range(10):
        split = "test" if i > 7 else "Training"
        site = "north" if i < 5 else "south"
        rows.append(f"a{i}.png,{i % 2},p{i // 4},{split},{site}")
    table = read(make(rows, "file,label,group,split,site"))
    assert table.groups is not None and table.groups[4] == "p1"
    assert table.site is not None and table.site.tolist() == ["north"] * 5 + ["south"] * 5
    assert table.split.tolist() == ["train"] * 8 + ["test"] * 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_encodings_and_separators(make: Make, encoding: str, separator: str) -> None:
    root = make()
    lines = (
        [" File ", "LABEL"],
        *([f"a{i}.png", "gutartig" if i % 2 else "bösartig"] for i in range(10)),
    )
    (root / "labels.csv").write_bytes(
        "\r\n".join(separator.join(line) for line in lines).encode(encoding)
    )
    table = read(root)
    assert table.classes == ("bösartig", "gutartig")
    assert any("Windows-1252" in note for note in table.notes) == (encoding == "cp1252")


def test_numbers_are_ordered_as_numbers(make: Make) -> None:
    assert read(make([f"a{i}.png,{(2, 10, 1)[i % 3]}" for i in range(10)])).classes == (
        "1",
        "2",
        "10",
    )


@pytest.mark.parametrize(
    ("rows", "header", "code", "value"),
    [
        (
            ["a0.png,x", "gone.png,y", "lost.png,y"],
            "file,label",
            "data.file-not-found",
            "2 files not found: gone.png, lost.png",
        ),
        (
            ["a0.png,x", "a1.png,y", "./a0.png,x"],
            "file,label",
            "data.duplicate-file",
            "1 file listed more than once: a0.png (lines 2 and 4, the same label)",
        ),
        (["a0.png,x", "a1.png,"], "file,label", "data.empty-cell", "'label' of labels.csv: line 3"),
        (
            ["a0.png,x", "../cache.png,y", "/etc/x.png,y"],
            "file,label",
            "data.path-outside-folder",
            "../cache.png, /etc/x.png",
        ),
        (["a0.png,x,1"], "file,label,pacient", "data.unknown-column", "'pacient'"),
        (["a0.png,x,later"], "file,label,split", "data.unknown-split", "later"),
        (["a0.png,x,"], "file,label,site", "data.empty-cell", "1 empty cell in column 'site'"),
        (["a0.png,x", "a1.png,y,z"], "file,label", "data.csv-row-too-long", "line 3"),
        (["a0.png,x"], "file,label,label", "data.duplicate-column", "'label'"),
        (["labels.csv,x"], "file,label", "data.unknown-file-type", "labels.csv"),
        ([], "file,label", "data.empty-list", "labels.csv"),
        ([], "", "data.empty-csv", "labels.csv"),
        ([f"a{i}.png,x" for i in range(10)], "file,label", "data.one-class", "'x'"),
        (["a0.png,x"], "file,label", "data.too-few-for-test-set", "1 image"),
        (["a0.png,x,train", "a1.png,y,train"], "file,label,split", "data.no-test-images", "set"),
        (["a0.png,x,test", "a1.png,y,test"], "file,label,split", "data.no-training-images", "set"),
    ],
)
def test_bad_lists_are_refused_with_the_place(
    make: Make, rows: list[str], header: str, code: str, value: str
) -> None:
    root = make(rows, header)
    with pytest.raises(DataError) as caught:
        read(root)
    assert caught.value.code == code and caught.value.fix
    assert value in caught.value.message


def test_a_misspelled_column_is_both_unknown_and_missing(make: Make) -> None:
    root = make(["a0.png,x"], "file,lable")
    assert [problem.code for problem in list_folder(root).problems] == [
        "data.unknown-column",
        "data.missing-column",
    ]
    with pytest.raises(DataError) as caught:
        read(root)
    assert caught.value.code == "data.several-problems"
    assert "did you mean label?" in caught.value.message


@pytest.mark.parametrize(
    ("name", "meaning"),
    [("Patient", "group"), ("Hospital", "site"), ("dx", "label"), ("Patient ID", "group")],
)
def test_usual_names_of_columns_are_translated(make: Make, name: str, meaning: str) -> None:
    """A hospital's export says patient and diagnosis."""
    root = make(["a0.png,x,1"], f"file,label,{name}")
    [problem] = list_folder(root).problems
    assert f"{name!r} (did you mean {meaning}?)" in problem.message


def test_all_problems_at_once(make: Make) -> None:
    rows = ["a0.png,x", "a0.png,y", "../b.png,x", "a2.png,", *(f"no{i}.png,x" for i in range(8))]
    root = make(rows)
    assert {problem.code for problem in list_folder(root).problems} == {
        "data.duplicate-file",
        "data.path-outside-folder",
        "data.empty-cell",
        "data.file-not-found",
    }
    with pytest.raises(DataError) as caught:
        read(root)
    text = caught.value.message
    assert caught.value.code == "data.several-problems" and "4 problems" in text
    assert "8 files not found: no0.png, no1.png, no2.png, no3.png, no4.png, ..." in text
    assert text.count(str(root)) == 1  # the place is named once


def test_repeated_lines_say_where_they_are_and_whether_they_agree(make: Make) -> None:
    root = make(["a0.png,x", "a1.png,y", "a0.png,y", *["a1.png,y"] * 6])
    [problem] = list_folder(root).problems
    assert "a0.png (lines 2 and 4, different labels)" in problem.message
    assert "a1.png (lines 3, 5, 6, 7, 8 and 2 more, the same label)" in problem.message
    assert problem.fix == "keep one line per image; where the labels differ, keep the correct one"
    [problem] = list_folder(make(["a0.png,x", "a0.png,x"])).problems
    assert problem.fix == "keep one line per image"


def test_missing_folder(tmp_path: Path) -> None:
    (problem,) = list_folder(tmp_path / "none").problems
    assert problem.code == "data.folder-not-found" and str(tmp_path / "none") in problem.message


def test_empty_folder_and_loose_images(tmp_path: Path) -> None:
    root = tmp_path / "set"
    root.mkdir()
    with pytest.raises(DataError) as caught:
        read(root)
    assert caught.value.code == "data.no-images"
    picture(0).save(root / "a.png")
    (root / "meta.csv").write_text("x")
    with pytest.raises(DataError) as caught:
        read(root)
    assert caught.value.code == "data.unlabelled-image"
    assert "a.png" in caught.value.message and "meta.csv" in caught.value.fix


def test_class_folders(make: Make, tmp_path: Path) -> None:
    make(count=0)
    root = tmp_path / "classes"
    for name in ("normal", "tumour"):
        (root / name).mkdir(parents=True)
        for i in range(5):
            picture(i).save(root / name / f"{i}.PNG")
    (root / "normal" / ".DS_Store").write_text("")
    (root / "readme.txt").write_text("")
    table = read(root)
    assert table.classes == ("normal", "tumour") and len(table) == 10
    assert table.ids[0] == "normal/0.PNG"
    assert any("1 file ignored" in note for note in table.notes)


def test_class_folders_below_splits(make: Make, tmp_path: Path) -> None:
    make(count=0)
    root = tmp_path / "splits"
    for split in ("train", "test"):
        for name in ("normal", "tumour"):
            (root / split / name).mkdir(parents=True)
            picture(1).save(root / split / name / "1.png")
    table = read(root)
    assert table.classes == ("normal", "tumour")
    assert sorted(zip(table.split.tolist(), table.labels.tolist(), strict=True)) == [
        ("test", 0),
        ("test", 1),
        ("train", 0),
        ("train", 1),
    ]


def test_corrupt_and_truncated_images_are_named(make: Make) -> None:
    root = make()
    (root / "a2.png").write_bytes(b"not an image")
    (root / "a5.png").write_bytes((root / "a5.png").read_bytes()[:200])
    with pytest.raises(DataError) as caught:
        read(root)
    assert caught.value.code == "data.unreadable-images" and "--list-bad" in caught.value.fix
    assert "2 of 10 images" in caught.value.message and "a5.png" in caught.value.message
    bad_files = build_table.find_bad_files(list_folder(root))
    assert [bad.name for bad in bad_files] == ["a2.png", "a5.png"]
    assert bad_files[0].reason == "not a JPEG, PNG, TIFF or BMP image"
    table = load(str(root), skip_unreadable=True)
    assert len(table) == 8 and "a2.png" not in table.ids
    assert (table.images[table.ids.tolist().index("a6.png")] == np.asarray(picture(6))).all()
    assert any("2 of 10 images" in note for note in table.notes)


def test_truncated_jpeg(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    picture(0, (600, 600)).save(path)
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(UnreadableImageError, match="truncated"):
        decode(path, 64)


def test_nothing_readable(make: Make) -> None:
    root = make()
    for i in range(10):
        (root / f"a{i}.png").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        load(str(root), skip_unreadable=True)
    assert caught.value.code == "data.unreadable-images"
    assert len(build_table.find_bad_files(list_folder(root))) == 10


def test_a_repaired_image_is_read_again(make: Make) -> None:
    root = make()
    good = (root / "a4.png").read_bytes()
    (root / "a4.png").write_bytes(b"broken")
    with pytest.raises(DataError):
        read(root)
    (root / "a4.png").write_bytes(good)
    assert len(read(root)) == 10


def test_second_reading_decodes_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make()
    for i in range(10):
        os.utime(root / f"a{i}.png", (1e9, 1e9))  # settled files: their checksums may be remembered
    first = read(root)

    def fail(*_: object) -> None:
        raise AssertionError("touched a file's content")

    monkeypatch.setattr(build_table, "decode_with_patient", fail)
    monkeypatch.setattr(build_table, "_measure", fail)
    second = read(root)
    assert isinstance(second.images, np.memmap) and second.fingerprint == first.fingerprint
    picture(77).save(root / "a3.png")
    with pytest.raises(AssertionError):
        read(root)


def test_freshly_written_files_are_not_trusted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writes within one tick of the clock leave size and time alike; the content must win."""
    root = make()
    old_table = read(root)
    status = (root / "a0.png").stat()
    picture(99).save(root / "a0.png", compress_level=0)
    picture(0).save(root / "a1.png", compress_level=0)
    data = (root / "a0.png").read_bytes()
    (root / "a0.png").write_bytes(data)
    os.utime(root / "a0.png", ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert read(root).fingerprint != old_table.fingerprint


def test_damaged_cache_is_rebuilt_with_a_note(make: Make, tmp_path: Path) -> None:
    root = make()
    first = read(root)
    (array,) = (tmp_path / "cache").glob("*.npy")
    os.truncate(array, 500)
    again = read(root)
    assert again.fingerprint == first.fingerprint
    assert any("rebuilt" in note for note in again.notes)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".TIFF", ".jpg", ".jpeg"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    pixels = np.full((20, 20, 3), (200, 40, 90), np.uint8)
    Image.fromarray(pixels).save(tmp_path / f"x{suffix}")
    assert np.abs(decode(tmp_path / f"x{suffix}", 20).astype(int) - pixels).max() <= 3


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK"])
def test_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    suffix = ".tif" if mode == "CMYK" else ".png"
    picture(0).convert(mode).save(tmp_path / f"x{suffix}")
    expected = np.asarray(picture(0).convert(mode).convert("RGB")).astype(int)
    assert np.abs(decode(tmp_path / f"x{suffix}", 12) - expected).max() <= 1


def test_transparency_is_white(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (10, 20, 30, 0)).save(tmp_path / "x.png")
    assert (decode(tmp_path / "x.png", 8) == 255).all()


@pytest.mark.parametrize(
    ("peak", "white"),
    [(200, 255), (255, 255), (256, 4095), (4095, 4095), (4096, 65535), (65535, 65535)],
)
def test_white_level(peak: int, white: int) -> None:
    assert white_level(peak) == white


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bit_grey(tmp_path: Path, suffix: str) -> None:
    values = np.linspace(0, 65535, 144).astype(np.uint16).reshape(12, 12)
    Image.fromarray(values).save(tmp_path / f"x{suffix}")
    assert inspect_image(tmp_path / f"x{suffix}").peak == 65535
    pixels = decode(tmp_path / f"x{suffix}", 12, 65535)
    assert (pixels[..., 0] == np.rint(values / 257)).all() and (
        pixels[..., 0] == pixels[..., 2]
    ).all()


def test_one_scale_for_all_deep_images_of_a_set(make: Make) -> None:
    """A dark image stays dark beside a bright one: the largest value of the set decides."""
    root = make()
    for i in range(10):
        Image.fromarray(np.full((12, 12), 4000 if i else 1000, np.uint16)).save(root / f"a{i}.png")
    table = read(root)
    assert table.images[0].max() == round(1000 * 255 / 4095)
    assert table.images[1].max() == round(4000 * 255 / 4095)
    assert any("4095 is white" in note for note in table.notes)


def test_float_pixels_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(UnreadableImageError, match="floating-point"):
        decode(tmp_path / "x.tif", 4)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
def test_exif_rotation(tmp_path: Path, suffix: str) -> None:
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, 20:] = 255  # white on the right; turned clockwise it is at the bottom
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / f"x{suffix}", exif=exif)
    facts = inspect_image(tmp_path / f"x{suffix}")
    assert (facts.width, facts.height) == (20, 40)
    pixels_upright = decode(tmp_path / f"x{suffix}", 20)
    assert pixels_upright[0].max() < 30 and pixels_upright[-1].min() > 220


def test_large_jpeg_equals_plain_decoding(tmp_path: Path) -> None:
    smooth = np.asarray(picture(0, (8, 6)).resize((800, 600), Image.Resampling.BICUBIC))
    Image.fromarray(smooth).save(tmp_path / "x.jpg", quality=95)
    Image.fromarray(smooth).save(tmp_path / "x.png")
    difference = decode(tmp_path / "x.jpg", 64).astype(int) - decode(tmp_path / "x.png", 64)
    assert np.abs(difference).mean() < 2


def test_middle_is_kept() -> None:
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 255
    assert (fit(pixels, 10) == 255).all()
    assert fit(pixels, 20).shape == (20, 20, 3) and fit(pixels, 3).shape == (3, 3, 3)


def test_default_size(make: Make) -> None:
    root = make()
    assert read(root).images.shape[1] == 12
    picture(0, (13, 12)).save(root / "a0.png")
    table = read(root)
    assert table.images.shape[1:3] == (224, 224)
    assert any("224x224" in note for note in table.notes)
    assert load(str(root), image_size=20).images.shape[1:3] == (20, 20)


def test_several_pages(make: Make) -> None:
    root = make()
    rows = [f"{'b.tif' if i == 0 else f'a{i}.png'},{i % 2}" for i in range(10)]
    picture(5).save(root / "b.tif", save_all=True, append_images=[picture(6)])
    (root / "labels.csv").write_text("file,label\n" + "\n".join(rows))
    table = read(root)
    assert (table.images[0] == np.asarray(picture(5))).all()
    assert any("more than one page" in note for note in table.notes)


def test_made_split_is_seeded_stratified_and_told(make: Make) -> None:
    root = make(count=40)
    table = load(str(root), seed=1)
    test = table.rows("test")
    assert np.bincount(table.labels[test]).tolist() == [4, 4]
    assert any("no split column: 8 of 40 images" in note for note in table.notes)
    assert (
        load(str(root), seed=1).split.tolist()
        == table.split.tolist()
        != load(str(root), seed=2).split.tolist()
    )
    assert len(load(str(root), test_fraction=0.5).rows("test")) == 20


def test_made_split_keeps_groups_whole() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), rng.integers(1, 9, 60)).astype(str)
    labels = rng.integers(0, 4, len(groups))
    split = split_rows(labels, groups, 0.25, 0)
    for name in np.unique(groups):
        assert len(set(split[groups == name])) == 1
    share = [np.mean(split[labels == c] == "test") for c in range(4)]
    assert max(abs(s - 0.25) for s in share) < 0.08


def test_made_split_never_takes_a_whole_class() -> None:
    groups = np.array(["a"] * 5 + ["b"] * 50 + ["c"] * 3)
    labels = np.array([0] * 5 + [1] * 50 + [1] * 3)
    split = split_rows(labels, groups, 0.2, 0)
    assert set(split[labels == 0]) == {"train"} and "test" in split
    with pytest.raises(DataError) as caught:
        split_rows(labels, np.array(["a"] * len(labels)), 0.2, 0)
    assert caught.value.code == "data.too-few-for-test-set"
    assert "1 group" in caught.value.message


def test_empty_group_is_its_own(make: Make) -> None:
    table = read(
        make([f"a{i}.png,{i % 2},{'p' if i < 4 else ''}" for i in range(10)], "file,label,group")
    )
    assert table.groups is not None and len(set(table.groups.tolist())) == 7
    assert any("6 images without a group" in note for note in table.notes)
