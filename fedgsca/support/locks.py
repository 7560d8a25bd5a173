"""Locks between processes, through the package filelock: it works on Linux, macOS and Windows.

The lock of a process that dies is released by the operating system. Lock files are left in place:
removing one would let two processes hold locks on two files of the same name.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedgsca.errors import RunFolderError

if TYPE_CHECKING:
    from filelock import BaseFileLock

_POLL_SECONDS = 0.02


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Let one process at a time run the block: wait until no other process holds this lock file.

    Threads of one process take turns, too.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
