"""Arrays that are expensive to compute (decoded images, frozen features), kept on disk.

They are opened as read-only memory maps. An entry is two files: `<name>-<digest>.npy`, and a small
manifest `<name>.json` that is written last and names the array, its size and its checksums. Without
a manifest there is no entry, so nobody opens a half-written array; because the manifest names the
array by content, two processes that build the same key at once cannot mix their halves. An array
that does not match its manifest is rebuilt and reported, never used.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.errors import DataError
from fedgsca.support.files import (
    is_abandoned,
    is_disk_full,
    make_folders,
    open_private,
    remove_quietly,
    sync_folder,
    temporary_path,
    write_atomic,
)
from fedgsca.support.text import size_text

log = logging.getLogger(__name__)

# arrays up to this size are checked completely each time they are opened, larger ones by sample
_FULL_CHECK_LIMIT = 64 << 20
_BLOCK = 1 << 20
# <name>.json, <name>-<digest>.npy, files-<name>.json, and temporary forms of these
_CACHE_FILE = re.compile(r"(files-)?[0-9a-f]{32}(-[0-9a-f]{16})?\.(json|npy)(\..*tmp)?")
_SPARE = 16 << 20  # free space that must remain on the disk beside the array itself

# JSON values that are stored with an array
Extra = dict[str, Any]
Shape = tuple[int, ...]


# of manifests: versions of the package with another one do not see each other's entries
FORMAT = 2


@dataclass(frozen=True)
class CacheEntry:
    """An array from the cache, with what was stored beside it."""

    # read-only memory map
    array: np.ndarray
    # sha256 of the raw array bytes, without the file's header
    digest: str
    # JSON values that the function which filled the array stored with it
    extra: Mapping[str, Any] = field(default_factory=dict)
    # for people: "was damaged and has been rebuilt"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CacheManifest:
    """The JSON file of an entry. `digest` and `sample` are sha256 checksums."""

    key: str
    array: str  # name of the array file in the same folder
    bytes: int  # its size
    digest: str  # of all data, without the header
    sample: str  # of 32 blocks spread over the file
    extra: Extra


@dataclass(frozen=True)
class _Recipe:
    """What an entry must be, and where its rows come from."""

    key: str
    row_shape: Shape
    dtype: np.dtype[Any]
    rows: Callable[[Extra], Iterable[np.ndarray]]
    at_most: int

    @property
    def size(self) -> int:
        """An upper bound in bytes."""
        return self.at_most * math.prod(self.row_shape) * self.dtype.itemsize


def cache_folder(cache_dir: Path | None = None) -> Path:
    """The argument, else $FEDGSCA_CACHE, else ~/.cache/fedgsca."""
    if cache_dir is not None:
        return Path(cache_dir)
    variable = os.environ.get("FEDGSCA_CACHE")
    if variable:
        return Path(variable).expanduser()
    return Path.home() / ".cache" / "fedgsca"


def cached_array(
    key: str,
    shape: Shape,
    dtype: np.dtype[Any] | type,
    fill: Callable[[np.ndarray], None],
    cache_dir: Path | None = None,
) -> np.ndarray:
    """The array of this key: opened if a sound one is in the cache, otherwise filled by `fill`.

    `fill` receives an array of this shape and dtype, in memory, and writes into it. The key must
    name everything the content depends on: the version of the code, its parameters, a fingerprint
    of its input.
    """

    def rows(extra: Extra) -> Iterable[np.ndarray]:
        array = np.empty(shape, dtype)
        fill(array)
        return [array]

    return cached_rows(key, shape[1:], dtype, rows, shape[0], cache_dir).array


def cached_rows(
    key: str,
    row_shape: Shape,
    dtype: np.dtype[Any] | type,
    rows: Callable[[Extra], Iterable[np.ndarray]],
    at_most: int,
    cache_dir: Path | None = None,
) -> CacheEntry:
    """The same for rows that arrive in blocks of shape (k, *row_shape); memory holds one block.

    Only an upper bound `at_most` on the number of rows is needed (unreadable images may drop out).
    `rows` receives a dict for JSON values that are stored with the array and come back as
    `CacheEntry.extra`.
    """
    recipe = _Recipe(key, row_shape, np.dtype(dtype), rows, at_most)
    folder = cache_folder(cache_dir)
    manifest = _manifest_path(key, cache_dir)
    notes: tuple[str, ...] = ()
    if recipe.size == 0:  # nothing to map
        empty = np.empty((at_most, *row_shape), dtype)
        empty.setflags(write=False)
        return CacheEntry(empty, "")
    try:
        entry = _open(manifest, recipe)
        if entry is not None:
            return entry
    except (OSError, ValueError, KeyError, TypeError, EOFError) as damage:
        notes = (f"a cached array in {folder} was damaged ({damage}) and has been rebuilt",)
        log.warning(notes[0])
    try:
        make_folders(folder)
        _sweep(folder)
        _build(manifest, recipe)
    except OSError as error:
        raise _cache_error(error, folder, recipe.size) from error
    entry = _open(manifest, recipe)
    if entry is None:
        raise DataError(
            "data.cache-entry-removed",
            f"the cache entry that was just written to {folder} was removed by another program",
            fix="keep other programs out of that folder, or set FEDGSCA_CACHE to another one",
        )
    return replace(entry, notes=notes)


@dataclass(frozen=True)
class CachedFile:
    """A file of the cache."""

    path: Path
    size: int


def list_cache(
    older_than_days: float | None = None, cache_dir: Path | None = None
) -> list[CachedFile]:
    """The files that this package wrote into the cache folder, and no others.

    `older_than_days`: only those that were neither read nor written for so long.
    """
    files = []
    for path in sorted(cache_folder(cache_dir).glob("*")):
        if not _CACHE_FILE.fullmatch(path.name) or not path.is_file():
            continue
        status = path.stat()
        age_days = (time.time() - max(status.st_atime, status.st_mtime)) / 86400
        if older_than_days is None or age_days > older_than_days:
            files.append(CachedFile(path, status.st_size))
    return files


def remove_cached(files: Iterable[CachedFile]) -> None:
    """Remove files of the cache, manifests first: an array without one is never opened."""
    for file in sorted(files, key=lambda file: file.path.suffix != ".json"):
        remove_quietly(file.path)


def _manifest_path(key: str, cache_dir: Path | None) -> Path:
    name = hashlib.sha256(f"{FORMAT}|{key}".encode()).hexdigest()[:32]
    return cache_folder(cache_dir) / f"{name}.json"


def _build(path: Path, recipe: _Recipe) -> None:
    """Write the array, then its manifest at `path`."""
    folder = path.parent
    free = shutil.disk_usage(folder).free
    if free < recipe.size + _SPARE:
        raise _disk_full(folder, recipe.size, free)
    temporary = temporary_path(folder / f"{path.stem}.npy")
    try:
        extra = _write_rows(temporary, recipe)
        digest = _digest(temporary)
        manifest = CacheManifest(
            key=recipe.key,
            array=f"{path.stem}-{digest[:16]}.npy",
            bytes=temporary.stat().st_size,
            digest=digest,
            sample=_sample(temporary),
            extra=extra,
        )
        os.replace(temporary, folder / manifest.array)
    except BaseException:
        remove_quietly(temporary)
        raise
    sync_folder(folder)
    write_atomic(path, json.dumps(asdict(manifest), indent=1).encode())


def _write_rows(path: Path, recipe: _Recipe) -> Extra:
    extra: Extra = {}
    count = 0
    row_shape, dtype = recipe.row_shape, recipe.dtype
    with open(path, "wb", opener=open_private) as handle:
        start = handle.write(_header((recipe.at_most, *row_shape), dtype))
        for block in recipe.rows(extra):
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
        handle.flush()
        os.fsync(handle.fileno())
    return extra


def _open(path: Path, recipe: _Recipe) -> CacheEntry | None:
    """The entry of a manifest, None if there is none; an exception says what is damaged."""
    if not path.exists():
        return None
    manifest = CacheManifest(**json.loads(path.read_bytes()))
    if manifest.key != recipe.key:
        raise ValueError("the manifest belongs to another key")
    array_path = path.with_name(manifest.array)
    size = array_path.stat().st_size
    if size != manifest.bytes:
        raise ValueError(f"{size} bytes instead of {manifest.bytes}")
    is_sound = _sample(array_path) == manifest.sample
    if size <= _FULL_CHECK_LIMIT:
        is_sound = is_sound and _digest(array_path) == manifest.digest
    if not is_sound:
        raise ValueError("the checksum does not match")
    array = np.load(array_path, mmap_mode="r", allow_pickle=False)
    if array.shape[1:] != recipe.row_shape or array.dtype != recipe.dtype:
        raise ValueError(f"it holds {array.shape} {array.dtype}")
    return CacheEntry(array, manifest.digest, manifest.extra)


def _header(shape: Shape, dtype: np.dtype[Any]) -> bytes:
    """The bytes before the data in a .npy file."""
    buffer = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


def _digest(path: Path) -> str:
    with open(path, "rb") as handle:
        np.lib.format.read_magic(handle)
        np.lib.format.read_array_header_1_0(handle)
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _sample(path: Path) -> str:
    """Checksum of 32 blocks spread evenly, first and last included.

    It notices lost tails and holes without reading gigabytes.
    """
    last = max(0, path.stat().st_size - _BLOCK)
    result = hashlib.sha256()
    with open(path, "rb") as handle:
        for offset in sorted({last * i // 31 for i in range(32)}):
            handle.seek(offset)
            result.update(handle.read(_BLOCK))
    return result.hexdigest()


def _sweep(folder: Path) -> None:
    """Remove temporary arrays of processes that were killed; they can be as large as the disk."""
    for path in folder.glob("*.npy.*.tmp"):
        if is_abandoned(path):
            remove_quietly(path)


def _disk_full(folder: Path, size: int, free: int) -> DataError:
    return DataError(
        "data.cache-disk-full",
        f"the cache in {folder} needs {size_text(size)}, but the disk has only "
        f"{size_text(free)} left",
        fix="free some space, or set FEDGSCA_CACHE to a folder on a larger disk",
    )


def _cache_error(error: OSError, folder: Path, size: int) -> DataError:
    if is_disk_full(error):
        return _disk_full(folder, size, shutil.disk_usage(folder).free)
    return DataError(
        "data.cache-not-writable",
        f"the cache folder {folder} cannot be used: {error.strerror or error}",
        fix="set FEDGSCA_CACHE to a folder that you may write to",
    )
