"""A site's private memory on its own disk, one file per round in which it changed.

A round that is repeated after a crash must see the memory as it was before that round, not what the
crashed attempt wrote. So every write carries its round, and a read takes the newest version that is
older than the round that asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.support.files import write_atomic

# the coordinator can go back to any of four checkpoints; one more for a round that was cut short
_MAX_VERSIONS = 5


class Store:
    """Named arrays, one version per round in which they were written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read_before(self, round: int) -> Mapping[str, np.ndarray]:
        """The newest arrays that were written in an earlier round; empty if there are none."""
        from safetensors.numpy import load

        older = [version for version in self._versions() if version < round]
        if not older:
            return {}
        path = self._path(older[-1])
        try:
            return load(path.read_bytes())
        except Exception as error:
            raise RunFolderError(
                "site.damaged-memory",
                f"the site's memory {path} is damaged: {error}",
                fix="restore the file from a backup, or start a new run",
            ) from error

    def write(self, round: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the version of a round, and delete those that no restart can need."""
        from safetensors.numpy import save

        # not ascontiguousarray: it turns a single number, shape (), into shape (1,)
        tensors = {name: np.asarray(a, order="C") for name, a in arrays.items()}
        write_atomic(self._path(round), save(tensors))
        versions = self._versions()
        current = [version for version in versions if version <= round]
        # left behind by an attempt that is being repeated
        later = [version for version in versions if version > round]
        for version in later + current[:-_MAX_VERSIONS]:
            self._path(version).unlink(missing_ok=True)

    def part(self, name: str) -> Store:
        """A memory of its own below this one, for a part that has other arrays."""
        return Store(self.folder / name)

    def _versions(self) -> list[int]:
        paths = self.folder.glob("round-*.safetensors")
        return sorted(int(path.stem.split("-")[1]) for path in paths)

    def _path(self, version: int) -> Path:
        return self.folder / f"round-{version:06d}.safetensors"
