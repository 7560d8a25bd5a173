"""The built-in tissue set: same seed same bytes, stable prefixes, structure not colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgsca.data.readers.synthetic.images import CLASSES, render
from fedgsca.data.sheets import contact_sheet, save_sheet
from fedgsca.data.table import ImageTable
from fedgsca.errors import ConfigError
from fedgsca.noise.candidates import table_for


@pytest.fixture(scope="module")
def small() -> ImageTable:
    return render(seed=3, train=150, val=30, test=75)


def test_same_seed_same_bytes_other_seed_other_images(small: ImageTable) -> None:
    again = render(seed=3, train=150, val=30, test=75)
    assert again.fingerprint == small.fingerprint
    assert again.images.tobytes() == small.images.tobytes()
    assert render(seed=4, train=30, test=0).images.tobytes() != small.images[:30].tobytes()


def test_more_images_never_change_the_earlier_ones(small: ImageTable) -> None:
    smaller = render(seed=3, train=40, val=0, test=10)
    for split, count in (("train", 40), ("test", 10)):
        smaller_rows, rows = smaller.rows(split), small.rows(split)[:count]
        assert np.array_equal(smaller.images[smaller_rows], small.images[rows])
        assert np.array_equal(smaller.labels[smaller_rows], small.labels[rows])
        assert smaller.groups is not None and small.groups is not None
        assert smaller.groups[smaller_rows].tolist() == small.groups[rows].tolist()
        assert smaller.ids[smaller_rows].tolist() == small.ids[rows].tolist()


def test_splits_have_the_asked_sizes_and_differ(small: ImageTable) -> None:
    assert [len(small.rows(split)) for split in ("train", "val", "test")] == [150, 30, 75]
    flat = small.images.reshape(len(small), -1)
    assert len(np.unique(flat, axis=0)) == len(small)


def test_every_class_is_there_and_the_largest_is_three_to_five_times_the_smallest(
    small: ImageTable,
) -> None:
    counts = np.bincount(small.labels[small.rows("train")], minlength=len(CLASSES))
    assert len(CLASSES) >= 4 and counts.min() > 0
    assert 3 <= counts.max() / counts.min() <= 5


def test_slides_never_cross_splits_and_hold_several_classes(small: ImageTable) -> None:
    assert small.groups is not None
    per_split = [set(small.groups[small.rows(split)]) for split in ("train", "val", "test")]
    assert not (
        per_split[0] & per_split[1] or per_split[0] & per_split[2] or per_split[1] & per_split[2]
    )
    first = small.labels[small.groups == small.groups[0]]
    assert len(np.unique(first)) >= 4


def test_images_of_a_slide_share_its_stain(small: ImageTable) -> None:
    """Within a class, the mean colour varies less inside a slide than between slides."""
    assert small.groups is not None
    train = small.rows("train")
    colour = small.images[train].mean(axis=(1, 2))
    within: list[float] = []
    between: list[float] = []
    for a in range(len(train)):
        for b in range(a):
            if small.labels[train[a]] == small.labels[train[b]]:
                same = small.groups[train[a]] == small.groups[train[b]]
                (within if same else between).append(np.abs(colour[a] - colour[b]).mean())
    assert np.mean(within) < 0.8 * np.mean(between)


def test_colour_alone_does_not_tell_the_classes_apart() -> None:
    """Nearest class mean in mean colour and contrast is far below a network; chance is 1 in 6."""
    table = render(seed=0, train=192, test=192)
    summary = np.concatenate(
        [table.images.mean(axis=(1, 2)), table.images.std(axis=(1, 2))], axis=1
    )
    summary = (summary - summary.mean(axis=0)) / summary.std(axis=0)
    train, test = table.rows("train"), table.rows("test")
    centres = np.stack(
        [summary[train][table.labels[train] == c].mean(axis=0) for c in range(table.num_classes)]
    )
    guess = ((summary[test][:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    recall = [float((guess[table.labels[test] == c] == c).mean()) for c in range(table.num_classes)]
    assert np.mean(recall) < 0.75


@pytest.mark.parametrize("size", [28, 45, 64, 128])
def test_a_field_is_the_same_scene_at_every_size(size: int) -> None:
    """Averaged down to 4 x 4 tiles, another resolution shows the same picture."""
    from PIL import Image

    small = render(seed=1, train=12, test=0, size=32).images
    resized_images = render(seed=1, train=12, test=0, size=size).images
    assert resized_images.shape == (12, size, size, 3)

    def tiles(image: np.ndarray) -> np.ndarray:
        return np.asarray(Image.fromarray(image).resize((4, 4), Image.Resampling.BOX), dtype=float)

    differences = [np.abs(tiles(a) - tiles(b)) for a, b in zip(small, resized_images, strict=True)]
    assert np.mean(differences) < 4


def test_a_size_that_cannot_be_drawn_is_refused_with_a_fix() -> None:
    with pytest.raises(ConfigError) as caught:
        render(train=10, test=0, size=8)
    assert caught.value.code == "data.synthetic-size" and "got 8" in caught.value.message


def test_every_class_has_two_other_classes_as_candidates() -> None:
    candidates = table_for(CLASSES)
    assert candidates is not None and set(candidates) == set(range(len(CLASSES)))
    for label, others in candidates.items():
        assert len(set(others)) == 2 and label not in others


def test_contact_sheet_shows_each_class_in_its_row(small: ImageTable) -> None:
    sheet = contact_sheet(small, per_class=4, gap=2)
    assert sheet.shape == (len(CLASSES) * 34 + 2, 4 * 34 + 2, 3)
    for label in range(len(CLASSES)):
        tile = sheet[2 + label * 34 : 34 + label * 34, 2:34]
        source = np.flatnonzero((small.images == tile).all(axis=(1, 2, 3)))
        assert len(source) == 1
        assert small.labels[source[0]] == label and small.split[source[0]] == "train"


def test_contact_sheet_leaves_white_where_a_class_has_too_few_images(small: ImageTable) -> None:
    rarest = int(np.bincount(small.labels[small.rows("train")]).argmin())
    sheet = contact_sheet(small, per_class=100, gap=2)
    assert (sheet[2 + rarest * 34 : 34 + rarest * 34, -34:] == 255).all()


def test_saved_sheet_has_room_for_the_names(small: ImageTable, tmp_path: Path) -> None:
    from PIL import Image

    path = save_sheet(small, tmp_path / "sheet.png")
    with Image.open(path) as page:
        assert (
            page.width > 2 * contact_sheet(small).shape[1]
            and page.height == 2 * contact_sheet(small).shape[0]
        )


def test_difficulty_changes_the_images_but_not_the_labels(small: ImageTable) -> None:
    easy = render(seed=3, train=60, test=0, difficulty=0.0)
    hard = render(seed=3, train=60, test=0, difficulty=1.0)
    assert easy.images.tobytes() == small.images[:60].tobytes()
    assert hard.labels.tolist() == easy.labels.tolist()
    assert hard.images.tobytes() != easy.images.tobytes()
