"""Files appear whole or not at all: write beside, flush to the disk, rename over."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fedgsca.errors import RunFolderError
from fedgsca.support.text import size_text

# disk full, quota used up, and the file-size limit of the shell or container: all mean "no room"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def no_room(error: OSError) -> bool:
    """Whether the write failed for want of space rather than for want of permission."""
    return error.errno in _NO_ROOM


def beside(path: Path) -> Path:
    """A temporary name in the same folder (rename is atomic only there), unique to this machine, process and thread."""
    return path.with_name(
        f"{path.name}.{platform.node()}-{os.getpid()}-{threading.get_ident()}.tmp"
    )


def abandoned(temporary: Path) -> bool:
    """Whether the maker of this temporary file is gone: a dead process of this machine, or a day without a write."""
    try:
        if time.time() - temporary.stat().st_mtime > 24 * 3600:
            return True
        maker, process, _ = temporary.name.rsplit("-", 2)
        if not maker.endswith(f".{platform.node()}"):
            return False
        os.kill(int(process), 0)  # signal 0 asks only whether the process exists
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut; a no-op where folders cannot be opened (Windows)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomic(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old content or the new one and nothing between.

    `mode` is that of the file from its first byte on, less the umask: 0o600 for a secret.
    """
    with open_atomic(path, size=len(data), mode=mode) as handle:
        handle.write(data)


@contextlib.contextmanager
def open_atomic(path: Path, *, size: int | None = None, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """The same for content that comes in pieces: the file appears when the block ends well, and not otherwise.

    `size`, where it is known, goes into the message of a full disk.
    """
    temporary = beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError as error:
        remove_quietly(temporary)
        if no_room(error):
            much = f" ({size_text(size)})" if size is not None else ""
            raise RunFolderError(
                "todo.files-1",
                f"no space left to write {path}{much}; the file's previous content is untouched",
                fix=f"free some space under {path.parent}, or choose another place with --out, then run the command again",
            ) from error
        raise RunFolderError(
            "todo.files-2",
            f"cannot write {path}: {error.strerror or error}",
            fix=f"check that {path.parent} is a folder you may write to",
        ) from error
    except BaseException:  # Ctrl-C between write and rename: leave no litter
        remove_quietly(temporary)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time: waits until no other holds this lock file. A process that dies lets go of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise RunFolderError(
            "todo.files-3",
            f"cannot write to {path.parent}: {error.strerror}",
            fix="free some space there, or choose another --out",
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def remove_quietly(path: Path) -> None:
    """Delete a file if it is there; cleaning up must not hide the error that made it necessary."""
    with contextlib.suppress(OSError):
        path.unlink()
