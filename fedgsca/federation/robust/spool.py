"""Updates that wait until a round is complete: in memory while small, else in a temporary file.

The file has no name, so nothing of it survives a crash.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.wire import Arrays, Update

_MEMORY = 64 * 2**20  # bytes that wait in memory before they go to the disk


@dataclass(frozen=True)
class _Place:
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


@dataclass(frozen=True)
class _Entry:
    site: str
    num_samples: int
    weights: dict[str, _Place]
    extras: dict[str, _Place]


class UpdateSpool:
    """Updates in the order in which they were added; any single array can be read back."""

    def __init__(self, folder: Path | None = None) -> None:
        place = None if folder is None else str(folder)
        # closed by __exit__
        self._file = tempfile.SpooledTemporaryFile(max_size=_MEMORY, dir=place)  # noqa: SIM115
        self._entries: list[_Entry] = []
        self._end = 0

    def __enter__(self) -> UpdateSpool:
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, update: Update) -> None:
        """Append an update."""
        weights = self._write(update.weights)
        extras = self._write(update.extras)
        self._entries.append(_Entry(update.site, update.num_samples, weights, extras))

    def _write(self, arrays: Arrays) -> dict[str, _Place]:
        places = {}
        self._file.seek(self._end)
        for name, value in arrays.items():
            content = np.asarray(value).tobytes()
            places[name] = _Place(self._end, np.shape(value), np.asarray(value).dtype)
            try:
                self._file.write(content)
            except OSError as error:
                raise RunFolderError(
                    "run.cannot-keep-update",
                    f"an update that waits for the other sites cannot be stored: {error.strerror}",
                    fix="free some space in the run folder, then run `fedgsca resume`",
                ) from error
            self._end += len(content)
        return places

    def site(self, position: int) -> str:
        """The site of an update."""
        return self._entries[position].site

    def num_samples(self, position: int) -> int:
        """The number of images that the site claims."""
        return self._entries[position].num_samples

    def weight(self, position: int, name: str) -> np.ndarray:
        """One array of the model of an update."""
        return self._read(self._entries[position].weights[name])

    def extra(self, position: int, name: str) -> np.ndarray:
        """One array beside the model of an update."""
        return self._read(self._entries[position].extras[name])

    def extras(self, position: int) -> dict[str, np.ndarray]:
        """All arrays beside the model of an update."""
        entry = self._entries[position]
        return {name: self._read(place) for name, place in entry.extras.items()}

    def update(self, position: int) -> Update:
        """A complete update."""
        entry = self._entries[position]
        weights = {name: self._read(place) for name, place in entry.weights.items()}
        return self.update_with(position, weights)

    def update_with(self, position: int, weights: Arrays) -> Update:
        """An update with another model."""
        entry = self._entries[position]
        return Update(entry.site, entry.num_samples, weights, self.extras(position))

    def _read(self, place: _Place) -> np.ndarray:
        size = int(np.prod(place.shape, dtype=np.int64)) * place.dtype.itemsize
        self._file.seek(place.offset)
        content = self._file.read(size)
        return np.frombuffer(content, dtype=place.dtype).reshape(place.shape).copy()
