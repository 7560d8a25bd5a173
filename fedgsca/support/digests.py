"""Checksums of files: the names by which contents are compared."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256_file(path: Path) -> str:
    """The sha256 of a file's content as 64 hexadecimal digits. Streams, so any size will do."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
