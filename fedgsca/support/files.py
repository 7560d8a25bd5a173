"""Files appear complete or not at all: write a temporary file, flush it to the disk, rename it.

They are private: files 0600 and folders 0700, whatever the umask allows and whoever creates them
first, because almost everything here has images, labels or file names of patients in it. What
others must read (a kit, a wheelhouse) says so. Also checksums, and locks between processes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fedgsca.errors import RunFolderError
from fedgsca.support.text import size_text

if TYPE_CHECKING:
    import numpy as np
    from filelock import BaseFileLock


# The disk is full, the quota is used up, or the shell or container limits the size of files.
_DISK_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)
_DAY = 24 * 3600.0
# Flags of a file that only grows, for os.open; Windows would change line ends without O_BINARY.
GROWING_FILE = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
PRIVATE, PUBLIC = 0o600, 0o644  # modes of files: for the owner only, or for everybody to read
_PRIVATE_FOLDER = 0o700


def is_disk_full(error: OSError) -> bool:
    """Whether a write failed for lack of space rather than for lack of permission."""
    return error.errno in _DISK_FULL


def temporary_path(path: Path) -> Path:
    """A temporary name, unique to this machine, process and thread.

    It is in the same folder, because renaming is atomic only within one.
    """
    return path.with_name(
        f"{path.name}.{platform.node()}-{os.getpid()}-{threading.get_ident()}.tmp"
    )


def is_abandoned(temporary: Path) -> bool:
    """Whether the process that wrote this temporary file has ended.

    That is so if it ran on this machine and does not exist any more, or if it has not written for
    a day.
    """
    try:
        if time.time() - temporary.stat().st_mtime > _DAY:
            return True
        machine, process_id, _ = temporary.name.rsplit("-", 2)
        if not machine.endswith(f".{platform.node()}"):
            return False
        return not process_exists(int(process_id))
    except (OSError, ValueError):
        return False


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Delete the temporary files of processes that were killed."""
    for path in folder.glob(pattern):
        if is_abandoned(path):
            remove_quietly(path)


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut.

    Does nothing where folders cannot be opened (Windows).
    """
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomic(path: Path, data: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file so that readers, and a crash at any moment, find the old content or the new one.

    `mode` applies from the first byte on, less the umask; PUBLIC where others must read it.
    """
    with open_atomic(path, size=len(data), mode=mode) as handle:
        handle.write(data)


@contextlib.contextmanager
def open_atomic(path: Path, *, size: int | None = None, mode: int = PRIVATE) -> Iterator[IO[bytes]]:
    """Like write_atomic for content that comes in pieces: the file appears if the block succeeds.

    `size` in bytes, if given, is part of the error message when the disk is full.
    """
    temporary = temporary_path(path)
    try:
        make_folders(path.parent)
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError as error:
        remove_quietly(temporary)
        raise _write_error(path, error, size) from error
    except BaseException:  # Ctrl-C between writing and renaming: leave no temporary file
        remove_quietly(temporary)
        raise
    sync_folder(path.parent)


def _write_error(path: Path, error: OSError, size: int | None = None) -> RunFolderError:
    """What a person should do when a file cannot be written."""
    if is_disk_full(error):
        size_note = "" if size is None else f" ({size_text(size)})"
        return RunFolderError(
            "file.disk-full",
            f"no space is left to write {path}{size_note}; its previous content is intact",
            fix=f"free some space under {path.parent} or choose another folder with --out,"
            " then run the command again",
        )
    return RunFolderError(
        "file.cannot-write",
        f"{path} cannot be written: {error.strerror or error}",
        fix=f"check that {path.parent} is a folder that you may write to",
    )


class FileBatch:
    """Files that appear together at the end: each like `write_atomic`, but the disk waits once.

    Flushing a file waits for the disk. Of files that were written before the first one is flushed,
    the others are then on the disk as well, so that a batch takes hardly longer than one file.
    Until `commit` nothing has changed but temporary files; a crash leaves no more than those.
    """

    def __init__(self) -> None:
        self._temporaries: dict[Path, Path] = {}  # in the order of writing
        self._surplus: list[Path] = []

    def write(self, path: Path, data: bytes) -> None:
        """Write the content of a file that appears, or is replaced, with the batch."""
        temporary = temporary_path(path)
        try:
            make_folders(path.parent)
            self._temporaries[path] = temporary
            with open(temporary, "wb", opener=open_private) as handle:
                handle.write(data)
        except OSError as error:
            remove_quietly(self._temporaries.pop(path, temporary))
            raise _write_error(path, error, len(data)) from error

    def remove_later(self, path: Path) -> None:
        """Delete a file after the batch has appeared."""
        self._surplus.append(path)

    def commit(self) -> None:
        """Flush the files to the disk, let them appear in the order of writing, then delete."""
        temporaries, surplus = self._temporaries, self._surplus
        self._temporaries, self._surplus = {}, []
        try:
            for path, temporary in temporaries.items():
                with _write_errors(path), open(temporary, "rb+") as handle:
                    os.fsync(handle.fileno())
            for path, temporary in temporaries.items():
                _rename(path, temporary)
        except BaseException:
            _remove_all(temporaries.values())
            raise
        for folder in dict.fromkeys(path.parent for path in temporaries):
            sync_folder(folder)
        _remove_all(surplus)

    def discard(self) -> None:
        """Forget what was written since the last commit."""
        _remove_all(self._temporaries.values())
        self._temporaries, self._surplus = {}, []


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _write_error(path, error) from error


def _rename(path: Path, temporary: Path) -> None:
    with _write_errors(path):
        os.replace(temporary, path)


def _remove_all(paths: Iterable[Path]) -> None:
    for path in paths:
        remove_quietly(path)


def make_private_folder(folder: Path) -> None:
    """Create a folder, with its parents, that only its owner can open; restrict one that exists.

    A folder of another owner, or on a file system without permissions, stays as it is.
    """
    try:
        make_folders(folder)
    except OSError as error:
        raise RunFolderError(
            "file.cannot-write",
            f"the folder {folder} cannot be made: {error.strerror or error}",
            fix=f"check that {folder.parent} is a folder that you may write to",
        ) from None
    with contextlib.suppress(OSError):
        folder.chmod(_PRIVATE_FOLDER)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A private folder beside it, which becomes `folder` at the end: complete or not at all.

    Raises OSError if `folder` is there and not empty.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        prefix = f"{folder.name}."
        temporary = Path(tempfile.mkdtemp(prefix=prefix, suffix=".tmp", dir=folder.parent))
    except OSError as error:
        raise RunFolderError(
            "file.cannot-write",
            f"{folder.parent} cannot be written to: {error.strerror}",
            fix="choose another folder",
        ) from None
    try:
        yield temporary
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents, each for the owner only; others stay as they are."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)


def open_private(name: str, flags: int) -> int:
    """For `open(path, mode, opener=open_private)`: a file that is created is for its owner only."""
    return os.open(name, flags, PRIVATE)


def read_bytes_from(handle: int, start: int, end: int) -> bytes:
    """The bytes from `start` to `end` of an open file; fewer if it ends before."""
    os.lseek(handle, start, os.SEEK_SET)
    data = b""
    while piece := os.read(handle, end - start - len(data)):
        data += piece
    return data


def remove_quietly(path: Path) -> None:
    """Delete a file if it exists; cleaning up must not hide the error that made it necessary."""
    with contextlib.suppress(OSError):
        path.unlink()


# ---- checksums ----


def sha256_file(path: Path) -> str:
    """The sha256 of a file's content as 64 hexadecimal digits. Streams, so any size will do."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def arrays_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """The sha256 of named arrays: names, types, shapes and values."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        sha.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


# ---- locks ----
# Through the package filelock, which works on Linux, macOS and Windows. The lock of a process that
# dies is released by the operating system. Lock files are left in place: removing one would let two
# processes hold locks on two files of the same name.


_POLL_SECONDS = 0.02


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Let one process at a time run the block: wait until no other process holds this lock file.

    Threads of one process take turns, too.
    """
    try:
        make_folders(path.parent)
        lock = wait_for_lock(path)
    except OSError as error:
        raise RunFolderError(
            "file.cannot-write",
            f"the lock file {path} cannot be written: {error.strerror or error}",
            fix=f"check that {path.parent} is a folder that you may write to, or choose another"
            " folder with --out",
        ) from None
    try:
        yield
    finally:
        lock.release()


def wait_for_lock(path: Path) -> BaseFileLock:
    """Take the lock, until its `release`, as soon as no other process holds it.

    Raises OSError if the lock file cannot be written.
    """
    lock = _make_lock(path)
    lock.acquire(poll_interval=_POLL_SECONDS)
    return lock


def try_lock(path: Path) -> BaseFileLock | None:
    """Take the lock if it is free, until its `release`; None if another process holds it.

    Raises OSError if the lock file cannot be written.
    """
    from filelock import Timeout

    lock = _make_lock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def _make_lock(path: Path) -> BaseFileLock:
    from filelock import FileLock

    # not per thread: a lock may be taken in one thread and released in another
    return FileLock(path, mode=0o600, thread_local=False)


def process_exists(process_id: int) -> bool:
    """Whether a process with this id exists. On Windows always True: there is no harmless signal.

    os.kill(id, 0) would send Ctrl-C there.
    """
    if sys.platform == "win32":
        return True
    try:
        os.kill(process_id, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True
