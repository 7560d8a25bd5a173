"""Facts about each source file (checksum, size, depth), measured once per version of the file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgsca.data.cache import cache_folder
from fedgsca.errors import FedgscaError
from fedgsca.support.activity import activity
from fedgsca.support.files import write_atomic

# A file that changes twice within one tick of the clock looks unchanged, so a file that was
# modified less than this many seconds ago is measured again next time.
_SETTLING_SECONDS = 2.0
WORKERS = max(1, min(4, os.cpu_count() or 1))


@dataclass(frozen=True)
class FileStamp:
    """What tells an unchanged file from a changed one, without reading it."""

    size: int
    modified_ns: int


@dataclass(frozen=True)
class FileMeasurement:
    """The value measured for a file, and the state of the file at that time."""

    stamp: FileStamp
    value: Any  # whatever survives JSON


Measurements = dict[str, FileMeasurement]


def measure_files(
    root: Path,
    names: Sequence[str],
    measure: Callable[[Path], Any],
    version: str,
    cache_dir: Path | None = None,
) -> list[Any]:
    """`measure(root / name)` for every name, in order.

    Files with the same size and time as before are not measured again. Values must survive JSON.
    The stored measurements only save time: if they are lost, damaged or cannot be written, the
    files are measured again.
    """
    place = hashlib.sha256(f"{version} {root.resolve()}".encode()).hexdigest()[:32]
    path = cache_folder(cache_dir) / f"files-{place}.json"
    measurements = _read_measurements(path)
    stamps = {name: _stamp(root / name) for name in names}
    pending = []
    for name in dict.fromkeys(names):
        if name not in measurements or measurements[name].stamp != stamps[name]:
            pending.append(name)
    if pending:
        now = time.time_ns()
        # hashing and decoding release the interpreter lock
        with ThreadPoolExecutor(WORKERS) as pool, activity("checking files", len(pending)) as tick:
            values = pool.map(lambda name: measure(root / name), pending, chunksize=8)
            for name, value in zip(pending, values, strict=True):
                measurements[name] = FileMeasurement(stamps[name], value)
                tick(1)
        _write_measurements(path, measurements, now)
    return [measurements[name].value for name in names]


def _stamp(path: Path) -> FileStamp:
    status = path.stat()
    return FileStamp(status.st_size, status.st_mtime_ns)


def _read_measurements(path: Path) -> Measurements:
    """The file holds {name: [[size, time], value]}; entries of another form are ignored."""
    try:
        content = json.loads(path.read_bytes())
        measurements = {}
        for name, entry in content.items():
            if len(entry) == 2 and len(entry[0]) == 2:
                measurements[str(name)] = FileMeasurement(FileStamp(*entry[0]), entry[1])
        return measurements
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _write_measurements(path: Path, measurements: Measurements, now: int) -> None:
    """Store the measurements of files that have not been modified just now."""
    latest = now - int(_SETTLING_SECONDS * 1e9)
    content = {}
    for name, measurement in measurements.items():
        stamp = measurement.stamp
        if stamp.modified_ns < latest:
            content[name] = [[stamp.size, stamp.modified_ns], measurement.value]
    # the cache of arrays reports an unusable folder; here it only costs time
    with contextlib.suppress(FedgscaError):
        write_atomic(path, json.dumps(content).encode())
