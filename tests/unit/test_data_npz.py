"""Sources by name and MedMNIST-style archives."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.data.load import load
from fedgsca.data.reader import available_readers
from fedgsca.data.readers.npz import read_npz
from fedgsca.data.readers.synthetic import images as synthetic
from fedgsca.data.table import ImageTable
from fedgsca.errors import ConfigError, DataError

REAL = Path(__file__).resolve().parents[2].parent / "shared/data" / "pathmnist_small.npz"

Arrays = dict[str, Any]
Save = Callable[..., Path]


def arrays(n: int = 6, size: int = 8, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    content: Arrays = {}
    for split in ("train", "val", "test"):
        content[f"{split}_images"] = rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8)
        content[f"{split}_labels"] = (np.arange(n) % 3).astype(np.uint8)[:, None]
    return content


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Save:
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "cache"))

    def write(content: Arrays, name: str = "mine.npz") -> Path:
        np.savez_compressed(tmp_path / name, **content)
        return tmp_path / name

    return write


def test_rows_in_order_with_their_splits(save: Save) -> None:
    content = arrays()
    table = load(str(save(content)))
    assert len(table) == 18 and table.name == "mine"
    assert table.split.tolist() == ["train"] * 6 + ["val"] * 6 + ["test"] * 6
    assert table.ids[[0, 5, 6, 17]].tolist() == ["train/0", "train/5", "val/0", "test/5"]
    assert table.labels.tolist() == [0, 1, 2, 0, 1, 2] * 3
    assert table.classes == ("class 0", "class 1", "class 2")
    assert (table.images[table.rows("test")] == content["test_images"]).all()


def test_flat_labels_and_no_validation(save: Save) -> None:
    content = arrays()
    content = {
        k: v.reshape(-1) if k.endswith("labels") else v
        for k, v in content.items()
        if not k.startswith("val")
    }
    table = load(str(save(content)))
    assert set(table.split) == {"train", "test"}


def test_grey_becomes_three_equal_channels(save: Save) -> None:
    content = {k: v[..., 0] if k.endswith("images") else v for k, v in arrays().items()}
    table = load(str(save(content)))
    assert table.images.shape == (18, 8, 8, 3)
    assert (table.images[:6, ..., 2] == content["train_images"]).all()
    assert any("grey" in note for note in table.notes)


def test_column_major_arrays(save: Save) -> None:
    content = arrays()
    content["train_images"] = np.asfortranarray(content["train_images"])
    assert (load(str(save(content))).images[:6] == content["train_images"]).all()


def test_many_blocks(save: Save) -> None:
    content = arrays(n=600)
    assert (load(str(save(content))).images[:600] == content["train_images"]).all()


def test_resized(save: Save) -> None:
    table = load(str(save(arrays())), image_size=16)
    assert table.images.shape == (18, 16, 16, 3)
    assert any("8x8 to 16x16" in note for note in table.notes)


def test_known_class_names(save: Save) -> None:
    table = load(str(save(arrays(), "PathMNIST_64.npz")))
    assert table.num_classes == 9 and table.classes[3] == "lymphocytes"


def test_more_labels_than_known_classes(save: Save) -> None:
    with pytest.raises(DataError) as caught:
        load(str(save(arrays(), "pneumoniamnist.npz")))
    assert caught.value.code == "data.label-range" and "0 to 2" in caught.value.message


def test_fingerprint_follows_the_content(save: Save) -> None:
    first = load(str(save(arrays(), "a.npz"))).fingerprint
    assert load(str(save(arrays(), "b.npz"))).fingerprint == first
    altered_arrays = arrays()
    altered_arrays["train_labels"][0] = 2
    assert load(str(save(altered_arrays, "c.npz"))).fingerprint != first
    altered_arrays = arrays()
    altered_arrays["test_images"][0, 0, 0, 0] ^= 1
    assert load(str(save(altered_arrays, "d.npz"))).fingerprint != first


def test_changed_file_is_read_again(save: Save) -> None:
    load(str(save(arrays())))
    new_arrays = arrays(seed=1)
    path = save(new_arrays)
    os.utime(path, (1, 1))
    assert (load(str(path)).images[:6] == new_arrays["train_images"]).all()


def drop(key: str) -> Callable[[Arrays], Arrays]:
    return lambda content: {k: v for k, v in content.items() if k != key}


def put(key: str, value: Any) -> Callable[[Arrays], Arrays]:
    return lambda content: content | {key: value}


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        (drop("train_labels"), "data.npz-arrays", "train_labels"),
        (drop("val_labels"), "data.npz-arrays", "val_labels"),
        (put("test_labels", np.zeros((6, 14), int)), "data.multi-label", "14 labels per image"),
        (put("train_labels", np.zeros(5, int)), "data.column-length", "6 images"),
        (put("train_labels", np.array([0, 1, np.nan, 0, 1, 1.5])), "data.label-type", "2 of 6"),
        (put("train_labels", np.array([0, 1, -1, 0, 1, 1])), "data.label-type", "1 of 6"),
        (put("train_labels", np.array(list("abcabc"))), "data.label-type", "<U1"),
        (
            put("train_labels", np.array([0, 1, None] * 2, dtype=object)),
            "data.label-type",
            "object",
        ),
        (put("train_images", np.zeros((6, 8, 8, 3), np.float32)), "data.image-shape", "float32"),
        (put("train_images", np.zeros((6, 3, 8, 8), np.uint8)), "data.image-shape", "3, 8, 8"),
        (put("train_images", np.zeros((6, 8, 8, 8, 1), np.uint8)), "data.image-shape", "8, 8, 1"),
        (put("test_images", np.zeros((6, 9, 9, 3), np.uint8)), "data.image-sizes-differ", "9"),
        (put("train_labels", np.zeros((6, 1), np.uint8)), "data.one-class", "'class 0'"),
    ],
)
def test_wrong_contents_are_refused(
    save: Save, change: Callable[[Arrays], Arrays], code: str, value: str
) -> None:
    with pytest.raises(DataError) as caught:
        load(str(save(change(arrays()))))
    assert caught.value.code == code and caught.value.fix
    assert value in caught.value.message


def test_truncated_archive(save: Save) -> None:
    path = save(arrays(n=100))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError) as caught:
        load(str(path))
    assert caught.value.code == "data.damaged-npz"


def test_flipped_byte_inside_the_archive(save: Save, tmp_path: Path) -> None:
    path = save(arrays(n=100))
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("train_images.npy").header_offset
    data = bytearray(path.read_bytes())
    data[start + 5000] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(DataError) as caught:
        load(str(path))
    assert caught.value.code == "data.damaged-npz"
    assert not list((tmp_path / "cache").glob("*.npy*"))


def test_missing_file_and_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(str(tmp_path / "none.npz"))
    assert caught.value.code == "data.npz-not-found"
    with pytest.raises(DataError) as caught:
        load("sinthetic")
    assert caught.value.code == "data.unknown-source"
    assert caught.value.fix.startswith("did you mean synthetic?")
    assert all(reader.form in caught.value.fix for reader in available_readers().values())
    with pytest.raises(DataError) as caught:
        load("npz")
    assert caught.value.fix.startswith("did you mean FILE.npz?")
    (tmp_path / "slides").mkdir()
    with pytest.raises(DataError) as caught:
        load(str(tmp_path / "slide"))
    assert caught.value.fix.startswith(f"did you mean {tmp_path / 'slides'}?\nOr use one of: ")
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(DataError) as caught:
        load(str(tmp_path / "x.txt"))
    assert caught.value.code == "data.unknown-source-type"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"image_size": 1}, "data.image-size"),
        ({"test_fraction": 1.0}, "data.test-fraction"),
        ({"train": 10**6}, "data.too-few-images"),
    ],
)
def test_senseless_options(save: Save, options: dict[str, Any], code: str) -> None:
    with pytest.raises(DataError) as caught:
        load(str(save(arrays())), **options)
    assert caught.value.code == code and str(next(iter(options.values()))) in caught.value.message


def test_subsample_keeps_proportions_and_is_seeded(save: Save) -> None:
    path = str(save(arrays(n=300)))
    table = load(path, train=30, test=15, seed=3)
    assert np.bincount(table.labels[table.rows("train")]).tolist() == [10, 10, 10]
    assert len(table.rows("test")) == 15 and len(table.rows("val")) == 300
    again = load(path, train=30, test=15, seed=3)
    assert again.ids.tolist() == table.ids.tolist() and again.fingerprint == table.fingerprint
    assert load(path, train=30, test=15, seed=4).ids.tolist() != table.ids.tolist()


def test_a_long_tail_falls_from_all_of_the_largest_class_to_a_part_of_it(save: Save) -> None:
    path = str(save(arrays(n=300)))
    table = load(path, long_tail=25, seed=3)
    # three classes of 100: the geometric mean of 1 and 25 is 5
    assert np.bincount(table.labels[table.rows("train")]).tolist() == [100, 20, 4]
    assert len(table.rows("test")) == 300 and len(table.rows("val")) == 300
    assert any("long tail 1:25" in note for note in table.notes)
    again = load(path, long_tail=25, seed=3)
    assert again.ids.tolist() == table.ids.tolist()
    assert load(path, long_tail=25, seed=4).ids.tolist() != table.ids.tolist()
    smaller = load(path, train=30, long_tail=10, seed=3)
    assert np.bincount(smaller.labels[smaller.rows("train")]).tolist() == [10, 3, 1]


def test_only_rendered_images_have_a_difficulty(save: Save) -> None:
    with pytest.raises(ConfigError) as caught:
        load(str(save(arrays())), difficulty=0.5)
    assert caught.value.code == "data.option-not-supported"


def test_synthetic_is_rendered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = synthetic.render(seed=5, train=24, test=24, size=16)
    first = load("synthetic", seed=5, train=24, test=24, image_size=16, cache_dir=tmp_path)

    def again(**_: Any) -> ImageTable:
        raise AssertionError("rendered a second time")

    again.__kwdefaults__ = synthetic.render.__kwdefaults__
    monkeypatch.setattr(synthetic, "render", again)
    second = load("synthetic", seed=5, train=24, test=24, image_size=16, cache_dir=tmp_path)
    for table in (first, second):
        assert (table.images == reference.images).all() and (table.labels == reference.labels).all()
        assert table.fingerprint == reference.fingerprint and table.classes == reference.classes
        assert (
            table.split.tolist() == reference.split.tolist()
            and table.ids.tolist() == reference.ids.tolist()
        )


def write_labels(
    path: Path, table: ImageTable, changes: dict[str, str], header: str = "id,label"
) -> Path:
    rows = {
        str(table.ids[r]): table.classes[table.labels[r]] for r in table.rows("train")
    } | changes
    path.write_text(
        "\n".join([header, *(f"{i},{label}" for i, label in rows.items() if label != "-")])
    )
    return path


def test_corrected_labels_replace_by_id(save: Save, tmp_path: Path) -> None:
    path = save(arrays())
    table = load(str(path))
    # a line that repeats a locked label does no harm
    same = table.classes[table.labels[table.rows("test")[0]]]
    labels_csv = write_labels(
        tmp_path / "fixed.csv", table, {"train/0": "class 2", "train/4": "0", "test/0": same}
    )
    new_table = load(str(path), labels=labels_csv)
    assert new_table.labels[:6].tolist() == [2, 1, 2, 0, 0, 2]
    assert (new_table.labels[6:] == table.labels[6:]).all()
    assert new_table.fingerprint != table.fingerprint
    assert any("2 of 6" in note for note in new_table.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train/99": "class 0", "other": "class 0"}, "unknown ids (2), first: train/99"),
        ({"train/3": "-"}, "training images without a label (1), first: train/3"),
        ({"test/0": "class 1"}, "(these labels are locked) (1), first: test/0"),
        ({"train/1": "class 9"}, "unknown classes (1), first: class 9"),
    ],
)
def test_corrected_labels_that_do_not_fit(
    save: Save, tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    path = save(arrays())
    labels_csv = write_labels(tmp_path / "fixed.csv", load(str(path)), changes)
    with pytest.raises(DataError) as caught:
        load(str(path), labels=labels_csv)
    assert caught.value.code == "data.labels-do-not-fit" and message in caught.value.message


def test_corrected_labels_without_the_columns_or_twice(save: Save, tmp_path: Path) -> None:
    path = save(arrays())
    labels_csv = write_labels(tmp_path / "fixed.csv", load(str(path)), {}, header="name,label")
    with pytest.raises(DataError) as caught:
        load(str(path), labels=labels_csv)
    assert caught.value.code == "data.missing-column"
    labels_csv = write_labels(tmp_path / "fixed.csv", load(str(path)), {})
    labels_csv.write_text(labels_csv.read_text() + "\ntrain/0,class 1")
    with pytest.raises(DataError) as caught:
        load(str(path), labels=labels_csv)
    assert caught.value.code == "data.duplicate-file"
    assert "1 image listed more than once: train/0 (lines 2 and " in caught.value.message


@pytest.mark.skipif(not REAL.exists(), reason="the PathMNIST subsample is not here")
def test_real_pathmnist(tmp_path: Path) -> None:
    table = read_npz(REAL, cache_dir=tmp_path)
    assert [len(table.rows(s)) for s in ("train", "val", "test")] == [2800, 400, 1200]
    assert table.num_classes == 9 and table.images.shape[1:] == (28, 28, 3)
