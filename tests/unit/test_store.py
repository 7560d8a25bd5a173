"""A site's private memory: a repeated round sees what was there before it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedgsca.errors import RunFolderError
from fedgsca.methods.site_store import Store
from fedgsca.support.files import FileBatch


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store" / "north")


def value(store: Store, round: int) -> float | None:
    result = store.read_before(round)
    return float(result["x"]) if result else None


def put(store: Store, round: int, x: float) -> None:
    store.write(round, {"x": np.array(x)})


def test_empty_at_first(store: Store) -> None:
    assert store.read_before(0) == {} and store.read_before(9) == {}


def test_a_round_sees_the_newest_memory_before_it(store: Store) -> None:
    put(store, 0, 0.5)
    put(store, 2, 2.5)
    assert [value(store, r) for r in range(5)] == [None, 0.5, 0.5, 2.5, 2.5]


def test_a_repeated_round_does_not_see_what_the_failed_attempt_wrote(store: Store) -> None:
    put(store, 0, 0.5)
    put(store, 1, 1.5)  # then killed before the checkpoint of round 1
    assert value(store, 1) == 0.5
    put(store, 1, 7.0)
    assert value(store, 2) == 7.0


def test_going_back_two_rounds_forgets_the_later_ones(store: Store) -> None:
    for r in range(6):
        put(store, r, float(r))
    put(store, 4, 40.0)  # the checkpoint of round 5 was damaged
    assert value(store, 5) == 40.0 and value(store, 9) == 40.0


def test_keeps_only_what_a_restart_may_need(store: Store) -> None:
    for r in range(30):
        put(store, r, float(r))
    assert len(list(store.folder.glob("round-*"))) == 5
    assert value(store, 29) == 28.0 and value(store, 28) == 27.0
    assert value(store, 26) == 25.0, "the oldest of four checkpoints"


def test_numbers_and_types_come_back(store: Store) -> None:
    arrays = {
        "count": np.array(3),
        "flags": np.array([True, False]),
        "probs": np.arange(6.0).reshape(2, 3).T,
    }
    store.write(0, arrays)
    back = store.read_before(1)
    assert all(
        back[n].shape == a.shape and back[n].dtype == a.dtype and np.array_equal(back[n], a)
        for n, a in arrays.items()
    )


def test_damage_is_named(store: Store) -> None:
    put(store, 0, 1.0)
    path = next(store.folder.glob("round-*"))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RunFolderError) as error:
        store.read_before(1)
    assert error.value.code == "site.damaged-memory" and str(path) in error.value.message


# ---- a batch of files ----


def test_a_batch_appears_with_its_commit_and_not_before(tmp_path: Path) -> None:
    files = FileBatch()
    store = Store(tmp_path, files)
    store.write(3, {"x": np.array(1.0)})
    store.part("inner").write(3, {"x": np.array(2.0)})
    assert store.versions() == [] and not (tmp_path / "index.json").exists()
    files.commit()
    assert store.versions() == [3] and store.part("inner").versions() == [3]
    assert value(store, 4) == 1.0 and value(store.part("inner"), 4) == 2.0
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_batch_has_the_files_of_single_writes(tmp_path: Path) -> None:
    files = FileBatch()
    batch_store, single_store = Store(tmp_path / "batch", files), Store(tmp_path / "single")
    for r in (0, 1, 2, 3, 4, 5, 6, 4, 5):  # two rounds are repeated
        for store in (batch_store, single_store):
            put(store, r, float(r))
        files.commit()
    contents = []
    for store in (batch_store, single_store):
        contents.append({path.name: path.read_bytes() for path in store.folder.iterdir()})
    assert contents[0] == contents[1] and len(contents[0]) == 5  # four versions and the list


def test_the_second_write_of_a_round_counts(tmp_path: Path) -> None:
    files = FileBatch()
    store = Store(tmp_path, files)
    put(store, 0, 1.0)
    put(store, 0, 2.0)
    files.commit()
    assert value(store, 1) == 2.0


def test_a_batch_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    for r in range(5):
        put(store, r, float(r))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    files = FileBatch()
    put(Store(tmp_path, files), 5, 5.0)

    def refuse(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunFolderError) as error:
        files.commit()
    assert error.value.code == "file.disk-full"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_is_discarded_leaves_no_file(tmp_path: Path) -> None:
    files = FileBatch()
    put(Store(tmp_path, files), 0, 1.0)
    files.discard()
    files.commit()
    assert list(tmp_path.iterdir()) == []
