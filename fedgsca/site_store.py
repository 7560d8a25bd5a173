"""A site's private memory on its own disk, one file per round in which it changed.

A round that is run again after a crash must see the memory as it was before that round, not what the crashed attempt wrote.
So every write carries its round, and a read takes the newest version older than the round that asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.support.files import write_atomic

_KEEP = 4  # the checkpoint may lag by two rounds; one more for safety


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _versions(self) -> list[int]:
        return sorted(
            int(path.stem.split("-")[1]) for path in self.folder.glob("round-*.safetensors")
        )

    def _path(self, version: int) -> Path:
        return self.folder / f"round-{version:06d}.safetensors"

    def before(self, round: int) -> Mapping[str, np.ndarray]:
        from safetensors.numpy import load

        older = [version for version in self._versions() if version < round]
        if not older:
            return {}
        path = self._path(older[-1])
        try:
            return load(path.read_bytes())
        except Exception as error:
            raise RunFolderError(
                "todo.site-store-1",
                f"the site's memory {path} is damaged: {error}",
                fix="restore the file from a backup, or start the run anew",
            ) from error

    def write(self, round: int, arrays: Mapping[str, np.ndarray]) -> None:
        from safetensors.numpy import save

        # not ascontiguousarray: it turns a single number, shape (), into shape (1,)
        write_atomic(
            self._path(round), save({name: np.asarray(a, order="C") for name, a in arrays.items()})
        )
        versions = self._versions()
        stale = [v for v in versions if v > round]  # left by an attempt that is being repeated
        for version in stale + [v for v in versions if v <= round][:-_KEEP]:
            self._path(version).unlink(missing_ok=True)
