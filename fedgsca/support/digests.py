"""Checksums of files: the names by which contents are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


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
