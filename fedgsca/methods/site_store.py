"""A site's private memory on its own disk, one file per round in which it changed.

A round that is repeated after a crash must see the memory as it was before that round, not what the
crashed attempt wrote. So every write carries its round, and a read takes the newest version that is
older than the round that asks.

Every version has its checksum, and index.json lists the versions that must exist: with a damaged or
missing file a run stops, because it would otherwise end in another model.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.support.files import FileBatch, arrays_digest
from fedgsca.wire import Arrays, read_metadata, save_tensors

# the coordinator can go back to any of four checkpoints; one more for a round that was cut short
_MAX_VERSIONS = 5
_INDEX = "index.json"
_PREFIX, _SUFFIX = "round-", ".safetensors"


class Store:
    """Named arrays, one version per round in which they were written.

    With `files`, a batch of files, a version appears when the batch is committed.
    """

    def __init__(self, folder: Path, files: FileBatch | None = None) -> None:
        self.folder = folder
        self.files = files

    def read_before(self, round: int) -> Mapping[str, np.ndarray]:
        """The newest arrays that were written in an earlier round; empty if there are none."""
        older = [version for version in self.versions() if version < round]
        newest = older[-1] if older else -1
        for version in self._read_index():
            if newest < version < round:
                self.require(version)
        return self._read_version(newest) if older else {}

    def require(self, version: int) -> None:
        """Stop with an error if this version, which was written, is not there."""
        if not self._path(version).is_file():
            raise RunFolderError(
                "site.missing-memory",
                f"the site's memory {self._path(version)} is missing; without it, the run would"
                " end in another model",
                fix="restore the file from a backup, or start a new run",
            )

    def write(self, round: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the version of a round, and delete those that no restart can need."""
        files = FileBatch() if self.files is None else self.files
        metadata = {"digest": arrays_digest(arrays), "round": round}
        files.write(self._path(round), save_tensors(arrays, metadata))
        versions = self.versions()
        older = [version for version in versions if version < round]
        # left behind by an attempt that is being repeated
        later = [version for version in versions if version > round]
        current = [*older, round]
        index = {"versions": current[-_MAX_VERSIONS:]}
        files.write(self.folder / _INDEX, json.dumps(index).encode())
        for version in later + current[:-_MAX_VERSIONS]:
            files.remove_later(self._path(version))
        if self.files is None:
            files.commit()

    def rewrite(self, change: Callable[[Mapping[str, np.ndarray]], Arrays]) -> None:
        """Change the arrays of every version, when the batch is committed."""
        assert self.files is not None
        for version in self.versions():
            arrays = change(self._read_version(version))
            metadata = {"digest": arrays_digest(arrays), "round": version}
            self.files.write(self._path(version), save_tensors(arrays, metadata))

    def versions(self) -> list[int]:
        """The rounds whose memory is on the disk."""
        versions = []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.folder):  # noqa: PTH208 - a Path for each takes longer
                number = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
                if number.isdecimal() and name == f"{_PREFIX}{number}{_SUFFIX}":
                    versions.append(int(number))
        return sorted(versions)

    def _read_version(self, version: int) -> Mapping[str, np.ndarray]:
        from safetensors.numpy import load

        path = self._path(version)
        try:
            content = path.read_bytes()
            arrays: Mapping[str, np.ndarray] = load(content)
            metadata = read_metadata(content)
            if metadata != {"digest": arrays_digest(arrays), "round": version}:
                raise ValueError("its content does not match its checksum")
        except Exception as error:
            raise RunFolderError(
                "site.damaged-memory",
                f"the site's memory {path} is damaged: {error}",
                fix="restore the file from a backup, or start a new run",
            ) from error
        return arrays

    def part(self, name: str) -> Store:
        """A memory of its own below this one, for a part that has other arrays."""
        return Store(self.folder / name, self.files)

    def _read_index(self) -> list[int]:
        """Versions that must exist."""
        path = self.folder / _INDEX
        if not path.exists():
            return []
        try:
            versions = json.loads(path.read_bytes())["versions"]
            return sorted(int(version) for version in versions)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunFolderError(
                "site.damaged-memory",
                f"the list of the site's memory {path} is damaged: {error}",
                fix="restore the file from a backup, or start a new run",
            ) from None

    def _path(self, version: int) -> Path:
        return self.folder / f"{_PREFIX}{version:06d}{_SUFFIX}"
