"""What is known about each source file (checksum, size, depth), measured once and remembered while the file is unchanged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fedgsca.data.cache import cache_folder
from fedgsca.errors import FedgscaError
from fedgsca.support.files import write_atomic

# a file changed twice within one tick of the clock looks unchanged: what was modified this recently is measured again next time
_SETTLED = 2.0
WORKERS = max(1, min(4, os.cpu_count() or 1))


def sha256_file(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def measure_files(
    root: Path,
    names: Sequence[str],
    measure: Callable[[Path], Any],
    version: str,
    cache_dir: Path | None = None,
) -> list[Any]:
    """`measure(root / name)` for every name, in order; unchanged files (same size and time) come from memory.

    Values must survive JSON. The memory only saves time: if it is lost, damaged or cannot be written, files are measured.
    """
    place = hashlib.sha256(f"{version} {root.resolve()}".encode()).hexdigest()[:32]
    memory = cache_folder(cache_dir) / f"files-{place}.json"
    known = _recall(memory)
    stamps = [_stamp(root / name) for name in names]
    fresh = [i for i, name in enumerate(names) if known.get(name, (None,))[0] != stamps[i]]
    now = time.time_ns()
    with ThreadPoolExecutor(WORKERS) as pool:  # hashing and decoding release the interpreter lock
        measured = dict(
            zip(
                fresh, pool.map(lambda i: measure(root / names[i]), fresh, chunksize=8), strict=True
            )
        )
    values = [measured[i] if i in measured else known[name][1] for i, name in enumerate(names)]
    if fresh:
        settled = now - int(_SETTLED * 1e9)
        for i in fresh:
            known[names[i]] = [stamps[i], values[i]]
        keep = {name: entry for name, entry in known.items() if entry[0][1] < settled}
        with contextlib.suppress(
            FedgscaError
        ):  # the cache proper reports an unusable folder; here it only costs time
            write_atomic(memory, json.dumps(keep).encode())
    return values


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _recall(memory: Path) -> dict[str, Any]:
    try:
        found = json.loads(memory.read_bytes())
        return {
            str(name): entry
            for name, entry in found.items()
            if len(entry) == 2 and len(entry[0]) == 2
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
