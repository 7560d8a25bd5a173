"""The cache: made once, never used when damaged, never half there; and atomic files."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.data import cache
from fedgsca.data.cache import cache_folder, cached_array, cached_rows
from fedgsca.errors import DataError, RunFolderError
from fedgsca.support.files import is_abandoned, temporary_path, write_atomic
from fedgsca.support.text import size_text


class Counted:
    """A fill function that counts how often it had to work."""

    def __init__(self, value: int = 7) -> None:
        self.value, self.calls = value, 0

    def __call__(self, array: np.ndarray) -> None:
        self.calls += 1
        array[:] = self.value


def get(fill: Callable[[np.ndarray], None], folder: Path, key: str = "k") -> np.ndarray:
    return cached_array(key, (50, 4), np.uint8, fill, folder)


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def test_made_once_then_opened_read_only(tmp_path: Path) -> None:
    fill = Counted()
    first, second = get(fill, tmp_path), get(fill, tmp_path)
    assert fill.calls == 1
    assert (first == 7).all() and (second == 7).all() and second.shape == (50, 4)
    assert isinstance(second, np.memmap)
    with pytest.raises(ValueError):
        second[0, 0] = 1


def test_other_key_other_array(tmp_path: Path) -> None:
    assert get(Counted(1), tmp_path, "a")[0, 0] == 1
    assert get(Counted(2), tmp_path, "b")[0, 0] == 2
    assert get(Counted(3), tmp_path, "a")[0, 0] == 1


def test_same_key_other_shape_is_rebuilt(tmp_path: Path) -> None:
    get(Counted(), tmp_path)
    assert cached_array("k", (3,), np.float32, Counted(), tmp_path).tolist() == [7.0, 7.0, 7.0]


def test_empty_array_needs_no_file(tmp_path: Path) -> None:
    assert cached_array("k", (0, 4), np.uint8, Counted(), tmp_path).shape == (0, 4)


def truncate(folder: Path) -> None:
    path = only(folder, "*.npy")
    os.truncate(path, path.stat().st_size - 5)


def flip(position: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = only(folder, "*.npy")
        data = bytearray(path.read_bytes())
        data[position] ^= 0x04
        path.write_bytes(bytes(data))

    return damage


def halve_manifest(folder: Path) -> None:
    path = only(folder, "*.json")
    path.write_bytes(path.read_bytes()[:40])


def drop_array(folder: Path) -> None:
    only(folder, "*.npy").unlink()


def empty_manifest(folder: Path) -> None:
    only(folder, "*.json").write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip(0),
        flip(30),
        flip(127),
        flip(150),
        flip(-1),
        halve_manifest,
        drop_array,
        empty_manifest,
    ],
)
def test_damage_is_noticed_rebuilt_and_told(
    tmp_path: Path, damage: Callable[[Path], None], caplog: Any
) -> None:
    fill = Counted()
    get(fill, tmp_path)
    damage(tmp_path)
    assert (get(fill, tmp_path) == 7).all()
    assert fill.calls == 2
    assert "rebuilt" in caplog.text
    get(fill, tmp_path)
    assert fill.calls == 2  # the rebuilt entry is sound


def test_large_arrays_are_checked_by_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_FULL_CHECK_LIMIT", 0)
    fill = Counted()
    get(fill, tmp_path)
    get(fill, tmp_path)
    assert fill.calls == 1
    flip(-1)(tmp_path)
    get(fill, tmp_path)
    assert fill.calls == 2


def test_array_without_manifest_is_not_an_entry(tmp_path: Path) -> None:
    """What a kill between the two renames leaves behind."""
    fill = Counted()
    get(fill, tmp_path)
    only(tmp_path, "*.json").unlink()
    get(fill, tmp_path)
    assert fill.calls == 2


def test_failing_maker_leaves_nothing(tmp_path: Path) -> None:
    def fail(array: np.ndarray) -> None:
        array[0] = 1
        raise RuntimeError("decoder broke")

    with pytest.raises(RuntimeError, match="decoder broke"):
        get(fail, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_remains_of_a_killed_maker_are_swept(tmp_path: Path) -> None:
    dead = multiprocessing.get_context("spawn").Process(target=int)
    dead.start()
    dead.join()
    name = temporary_path(tmp_path / "x.npy").name.replace(f"-{os.getpid()}-", f"-{dead.pid}-")
    (tmp_path / name).write_bytes(b"half")
    own_file = temporary_path(tmp_path / "y.npy")
    own_file.write_bytes(b"in progress")
    assert is_abandoned(tmp_path / name) and not is_abandoned(own_file)
    get(Counted(), tmp_path)
    assert not (tmp_path / name).exists() and own_file.exists()


def die(array: np.ndarray) -> None:
    array[:10] = 1
    os.kill(os.getpid(), signal.SIGKILL)


def test_maker_killed_half_way(tmp_path: Path) -> None:
    victim = multiprocessing.get_context("spawn").Process(target=get, args=(die, tmp_path))
    victim.start()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL and len(list(tmp_path.glob("*.tmp"))) == 1
    assert (get(Counted(), tmp_path) == 7).all()
    assert not list(tmp_path.glob("*.tmp"))


def test_rows_stream_with_fewer_than_announced(tmp_path: Path) -> None:
    calls = []

    def rows(extra: dict[str, Any]) -> Iterator[np.ndarray]:
        calls.append(1)
        yield np.full((3, 2, 2), 1, np.uint8)
        yield np.full((1, 2, 2), 2, np.uint8)
        extra["skipped"] = ["a.jpg"]

    for _ in range(2):
        entry = cached_rows("k", (2, 2), np.uint8, rows, 1000, tmp_path)
        assert entry.array[:, 0, 0].tolist() == [1, 1, 1, 2]
        assert entry.extra == {"skipped": ["a.jpg"]}
    assert len(calls) == 1


def test_digest_names_the_content(tmp_path: Path) -> None:
    def entry(key: str, value: int) -> cache.CacheEntry:
        return cached_rows(
            key, (2,), np.uint8, lambda extra: [np.full((4, 2), value, np.uint8)], 4, tmp_path
        )

    assert entry("a", 1).digest == entry("b", 1).digest != entry("c", 2).digest


def build(folder: str) -> int:
    return int(
        cached_array("k", (200, 200), np.uint8, lambda a: a.fill(os.getpid() % 251), Path(folder))[
            0, 0
        ]
    )


def test_two_processes_build_the_same_key(tmp_path: Path) -> None:
    """Their contents differ on purpose: each reads back one whole array, never a mixture."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        values = pool.map(build, [str(tmp_path)] * 6, chunksize=1)
    assert len(set(values)) <= 2
    last = cached_array("k", (200, 200), np.uint8, Counted(), tmp_path)
    assert len(np.unique(last)) == 1 and int(last[0, 0]) in values


def test_no_space_is_noticed_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("usage", (), {"free": 3_000_000})()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError) as caught:
        cached_array("k", (9_000_000, 1000), np.uint8, Counted(), tmp_path)
    assert caught.value.code == "data.cache-disk-full"
    assert "9.0 GB" in caught.value.message and "3.0 MB" in caught.value.message
    assert str(tmp_path) in caught.value.message and "FEDGSCA_CACHE" in caught.value.fix
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def tiny_files() -> Iterator[None]:
    """Files of at most 64 KB: the kernel really refuses the write, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_fills_up_while_writing(tmp_path: Path, tiny_files: None) -> None:
    with pytest.raises(DataError) as caught:
        cached_array("k", (1000, 1000), np.uint8, Counted(), tmp_path)
    assert caught.value.code == "data.cache-disk-full"
    with pytest.raises(DataError) as caught:
        cached_rows(
            "k", (1000,), np.uint8, lambda extra: [np.zeros((1000, 1000), np.uint8)], 1000, tmp_path
        )
    assert caught.value.code == "data.cache-disk-full"
    assert list(tmp_path.iterdir()) == []


def test_unusable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError) as caught:
        get(Counted(), tmp_path / "file")
    assert caught.value.code == "data.cache-not-writable" and "FEDGSCA_CACHE" in caught.value.fix


def test_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGSCA_CACHE", str(tmp_path / "env"))
    assert cache_folder() == tmp_path / "env"
    assert cache_folder(tmp_path) == tmp_path
    monkeypatch.delenv("FEDGSCA_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "fedgsca"


def test_write_atomic_replaces_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


def test_write_atomic_keeps_the_old_file_when_the_disk_is_full(
    tmp_path: Path, tiny_files: None
) -> None:
    path = tmp_path / "b.json"
    write_atomic(path, b"old")
    with pytest.raises(RunFolderError) as caught:
        write_atomic(path, bytes(100_000))
    assert caught.value.code == "file.disk-full"
    assert path.read_bytes() == b"old" and caught.value.exit_code == 7
    assert [p.name for p in tmp_path.iterdir()] == ["b.json"]


def test_write_atomic_interrupted_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b.json"
    write_atomic(path, b"old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["b.json"]


def test_write_atomic_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(RunFolderError) as caught:
        write_atomic(tmp_path / "b.json", b"")
    assert caught.value.code == "file.cannot-write" and "Permission denied" in caught.value.message


def test_manifest_is_plain_json(tmp_path: Path) -> None:
    get(Counted(), tmp_path)
    assert json.loads(only(tmp_path, "*.json").read_text())["key"] == "k"


@pytest.mark.parametrize(
    ("size", "text"), [(812, "812 B"), (3_400_000, "3.4 MB"), (6_000_000_000_000, "6.0 TB")]
)
def test_size_text(size: int, text: str) -> None:
    assert size_text(size) == text
