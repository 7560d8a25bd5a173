"""Arrays that are expensive to make (decoded images, frozen features) kept on disk as read-only memory maps.

An entry is two files: `<name>-<digest>.npy`, and a small `<name>.json` manifest that is written last and names the array, its
size and its checksums. Without a manifest there is no entry, so a half-written array is never seen; because the manifest names
the array by content, two processes that build the same key at once cannot mix their halves. Whatever does not match its
manifest is rebuilt and reported, never used.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.errors import DataError
from fedgsca.support.files import (
    abandoned,
    beside,
    no_room,
    remove_quietly,
    size_text,
    sync_folder,
    write_atomic,
)

log = logging.getLogger(__name__)

_WHOLE = (
    64 << 20
)  # arrays up to this size are checked completely on every open, larger ones by sample
_BLOCK = 1 << 20
_SPARE = 16 << 20  # left free on the disk beside the array itself


@dataclass(frozen=True)
class Cached:
    """One cache entry."""

    array: np.ndarray  # read-only memory map
    digest: str  # sha256 of the raw array bytes, without the file's header
    extra: Mapping[str, Any] = field(
        default_factory=dict
    )  # what the maker wanted remembered with the array
    notes: tuple[str, ...] = ()  # "was damaged and has been rebuilt"


def cache_folder(cache_dir: Path | None = None) -> Path:
    """The argument, else $FEDGSCA_CACHE, else ~/.cache/fedgsca."""
    if cache_dir is not None:
        return Path(cache_dir)
    named = os.environ.get("FEDGSCA_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "fedgsca"


def cached_array(
    key: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any] | type,
    fill: Callable[[np.ndarray], None],
    cache_dir: Path | None = None,
) -> np.ndarray:
    """The array of this key: opened if it is cached and sound, otherwise made by `fill`, which writes into it in place.

    The key must name everything the content depends on (version of the maker, its parameters, a fingerprint of its input).
    """
    dtype = np.dtype(dtype)
    if math.prod(shape) == 0:  # nothing to map
        empty = np.empty(shape, dtype)
        empty.setflags(write=False)
        return empty

    def write(path: Path) -> dict[str, Any]:
        _reserve(path, shape, dtype)
        array = np.load(path, mmap_mode="r+")
        fill(array)
        array.flush()
        return {}

    need = math.prod(shape) * dtype.itemsize
    return _entry(key, shape, dtype, need, write, cache_dir).array


def cached_rows(
    key: str,
    row_shape: tuple[int, ...],
    dtype: np.dtype[Any] | type,
    rows: Callable[[dict[str, Any]], Iterable[np.ndarray]],
    at_most: int,
    cache_dir: Path | None = None,
) -> Cached:
    """The same for rows that arrive one block at a time, (k, *row_shape) each; memory stays at one block.

    The number of rows need not be known (unreadable images may drop out), only a bound. `rows` receives a dict for JSON values
    that are stored with the array and come back as `Cached.extra`.
    """
    dtype = np.dtype(dtype)

    def write(path: Path) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        count = 0
        with open(path, "wb") as handle:
            start = handle.write(_header((at_most, *row_shape), dtype))
            for block in rows(extra):
                if block.shape[1:] != row_shape or block.dtype != dtype:
                    raise ValueError(
                        f"a block of {block.shape} {block.dtype} for rows of {row_shape} {dtype}"
                    )
                handle.write(np.ascontiguousarray(block).data)
                count += len(block)
            header = _header((count, *row_shape), dtype)
            if len(header) != start:  # numpy pads headers so that the first axis may shrink
                raise ValueError("the array header changed its length")
            handle.seek(0)
            handle.write(header)
        return extra

    need = at_most * math.prod(row_shape) * dtype.itemsize
    return _entry(key, (None, *row_shape), dtype, need, write, cache_dir)


def _entry(
    key: str,
    shape: tuple[int | None, ...],
    dtype: np.dtype[Any],
    need: int,
    write: Callable[[Path], dict[str, Any]],
    cache_dir: Path | None,
) -> Cached:
    folder = cache_folder(cache_dir)
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    manifest = folder / f"{name}.json"
    notes: tuple[str, ...] = ()
    try:
        found = _open(manifest, key, shape, dtype)
        if found is not None:
            return found
    except (OSError, ValueError, KeyError, TypeError, EOFError) as damage:
        notes = (f"a cached array in {folder} was damaged ({damage}) and has been rebuilt",)
        log.warning(notes[0])
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # decoded images: for this user only
        _sweep(folder)
        _build(manifest, key, need, write)
    except OSError as error:
        raise _explain(error, folder, need) from error
    made = _open(manifest, key, shape, dtype)
    if made is None:
        raise DataError(
            "todo.cache-1",
            f"the cache entry just written to {folder} has vanished",
            fix="keep other programs out of that folder",
        )
    return Cached(made.array, made.digest, made.extra, notes)


def _build(manifest: Path, key: str, need: int, write: Callable[[Path], dict[str, Any]]) -> None:
    folder = manifest.parent
    free = shutil.disk_usage(folder).free
    if free < need + _SPARE:
        raise _too_small(folder, need, free)
    temporary = beside(folder / f"{manifest.stem}.npy")
    try:
        extra = write(temporary)
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        start = _data_start(temporary)
        digest = _digest(temporary, start)
        entry = {
            "key": key,
            "array": f"{manifest.stem}-{digest[:16]}.npy",
            "bytes": temporary.stat().st_size,
            "start": start,
            "header": hashlib.sha256(_head(temporary, start)).hexdigest(),
            "digest": digest,
            "sample": _sample(temporary, start),
            "extra": extra,
        }
        os.replace(temporary, folder / str(entry["array"]))
    except BaseException:
        remove_quietly(temporary)
        raise
    sync_folder(folder)
    write_atomic(manifest, json.dumps(entry, indent=1).encode())


def _open(
    manifest: Path, key: str, shape: tuple[int | None, ...], dtype: np.dtype[Any]
) -> Cached | None:
    """The entry, None if there is none, or an exception that says what is wrong with it."""
    if not manifest.exists():
        return None
    entry = json.loads(manifest.read_bytes())
    if entry["key"] != key:
        raise ValueError("the manifest belongs to another key")
    path = manifest.with_name(entry["array"])
    size, start = path.stat().st_size, int(entry["start"])
    if size != entry["bytes"]:
        raise ValueError(f"{size} bytes instead of {entry['bytes']}")
    if hashlib.sha256(_head(path, start)).hexdigest() != entry["header"]:
        raise ValueError("the header was altered")
    sound = (
        _digest(path, start) == entry["digest"]
        if size <= _WHOLE
        else _sample(path, start) == entry["sample"]
    )
    if not sound:
        raise ValueError("the checksum does not match")
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    fits = len(array.shape) == len(shape) and all(
        want in (None, have) for want, have in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype != dtype:
        raise ValueError(f"it holds {array.shape} {array.dtype}")
    return Cached(array, entry["digest"], entry["extra"])


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    buffer = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


def _reserve(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """An array file with all its blocks allocated: a full disk must raise here, since in a memory map it kills the process."""
    header, size = _header(shape, dtype), math.prod(shape) * dtype.itemsize
    with open(path, "wb") as handle:
        handle.write(header)
        handle.flush()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle.fileno(), 0, len(header) + size)
            return
        zeros = bytes(_BLOCK)
        handle.writelines(zeros[: min(_BLOCK, size - offset)] for offset in range(0, size, _BLOCK))


def _data_start(path: Path) -> int:
    with open(path, "rb") as handle:
        np.lib.format.read_magic(handle)
        np.lib.format.read_array_header_1_0(handle)
        return handle.tell()


def _head(path: Path, start: int) -> bytes:
    with open(path, "rb") as handle:
        return handle.read(start)


def _digest(path: Path, start: int) -> str:
    with open(path, "rb") as handle:
        handle.seek(start)
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _sample(path: Path, start: int) -> str:
    """Checksum of 32 blocks spread evenly, first and last included: notices lost tails and holes without reading gigabytes."""
    last = max(start, path.stat().st_size - _BLOCK)
    result = hashlib.sha256()
    with open(path, "rb") as handle:
        for offset in sorted({start + (last - start) * i // 31 for i in range(32)}):
            handle.seek(offset)
            result.update(handle.read(_BLOCK))
    return result.hexdigest()


def _sweep(folder: Path) -> None:
    """Remove temporary arrays whose maker was killed; they can be as large as the disk."""
    for path in folder.glob("*.npy.*.tmp"):
        if abandoned(path):
            remove_quietly(path)


def _too_small(folder: Path, need: int, free: int) -> DataError:
    return DataError(
        "todo.cache-2",
        f"the cache in {folder} needs {size_text(need)} and the disk has {size_text(free)} left",
        fix="free some space, or set FEDGSCA_CACHE to a folder on a larger disk",
    )


def _explain(error: OSError, folder: Path, need: int) -> DataError:
    if no_room(error):
        return _too_small(folder, need, shutil.disk_usage(folder).free)
    return DataError(
        "todo.cache-3",
        f"cannot use the cache folder {folder}: {error.strerror or error}",
        fix="set FEDGSCA_CACHE to a folder you may write to",
    )
