"""The contract of a filter: what an update passes between a site's reply and the method's mean.

    replies --> examine, one by one --> judge --> the method's mean --> remember

A filter is one small class with the functions that it needs:

    start      a round begins, or begins again because too few sites answered
    examine    an update arrives: returns it, perhaps changed, or raises UpdateError to leave it out
    judge      all updates that passed `examine` of every filter, as a stream; a filter that
               compares them keeps them in an `UpdateSpool` until the last one is there,
               any other one lets them pass
    remember   the round counts: what is kept here reaches the checkpoint through `to_arrays`

Filters act in the order of the list that `make_filters` (rule.py) returns: an update passes
`examine` of all of them before any of them judges it. Replies come in the order of the sites' names
and leave in this order, so the bytes of a run do not depend on who answers first. As long as no
filter of the list waits, one update at a time is in memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np

from fedgsca.errors import RunFolderError, UpdateError
from fedgsca.federation.base import Reply
from fedgsca.federation.records import SiteValue
from fedgsca.wire import Arrays, Payload, Update

# the fix of a refusal that only the site can explain
ASK_THE_SITE = "look at the data and the software of the site"


@dataclass
class RoundContext:
    """The round as filters see it."""

    payload: Payload  # what was sent out
    folder: Path  # where updates may wait
    tell: Callable[[str], None]  # a line of the log
    refuse: Callable[[str, UpdateError], None]  # leave out the update of a site, for `judge`
    # site -> numbers that metrics.jsonl shows beside those of the method
    site_values: dict[str, dict[str, SiteValue]] = field(default_factory=dict)
    # sites that the round names as far from all others (distance.py)
    distant_sites: tuple[str, ...] = ()

    def note(self, site: str, name: str, value: SiteValue) -> None:
        """Write a number of a site to metrics.jsonl, if its update is used."""
        self.site_values.setdefault(site, {})[name] = value


@dataclass(frozen=True)
class UpdateContext:
    """One update: the reply that brought it, and its round."""

    reply: Reply
    round: RoundContext

    @property
    def payload(self) -> Payload:
        """What the site received: the payload of this round, or of an earlier one if it is late."""
        return self.round.payload if self.reply.late_to is None else self.reply.late_to


class UpdateFilter:
    """A filter that lets everything pass."""

    # begins the names of its arrays in a checkpoint
    name: ClassVar[str]

    def start(self, context: RoundContext) -> None:
        """A round begins, or begins again: forget what an unfinished round left."""

    def examine(self, update: Update, context: UpdateContext) -> Update:
        """The update as it is used. Raises UpdateError if it is not."""
        return update

    def judge(self, updates: Iterator[Update], context: RoundContext) -> Iterator[Update]:
        """The updates of the round, in their order, as they are used; others: `context.refuse`.

        Late updates are rebased by now: all changes are from `context.payload.weights`.
        """
        return updates

    def remember(self, sites: Collection[str], context: RoundContext) -> None:
        """The round counts; `sites` are those whose updates were used."""

    def to_arrays(self) -> Arrays:
        """What is known from earlier rounds, for a checkpoint."""
        return {}

    def from_arrays(self, arrays: Arrays) -> None:
        """The inverse of `to_arrays`, for a filter that knows nothing yet."""


def memory_of(filters: Sequence[UpdateFilter]) -> dict[str, np.ndarray]:
    """The memory of all filters, as arrays for a checkpoint."""
    arrays = {}
    for item in filters:
        for key, value in item.to_arrays().items():
            arrays[f"{item.name}/{key}"] = value
    return arrays


def restore_memory(filters: Sequence[UpdateFilter], arrays: Arrays) -> None:
    """The inverse of `memory_of`; without arrays, as before the first round."""
    for item in filters:
        prefix = f"{item.name}/"
        keys = [key for key in arrays if key.startswith(prefix)]
        if keys:
            item.from_arrays({key.removeprefix(prefix): arrays[key] for key in keys})


def numbers_of(values: Mapping[str, int], names: Sequence[str], missing: int = -1) -> np.ndarray:
    """(K,) int64: a number for each name, in this order."""
    return np.array([values.get(name, missing) for name in names], dtype=np.int64)


# ---- updates that wait until the round is complete ----

_MEMORY = 64 * 2**20  # bytes that wait in memory before they go to the disk


@dataclass(frozen=True)
class SpooledArray:
    """An array that waits."""

    file: IO[bytes]
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def read(self) -> np.ndarray:
        """A copy in memory."""
        self.file.seek(self.offset)
        content = self.file.read(math.prod(self.shape) * self.dtype.itemsize)
        return np.frombuffer(content, dtype=self.dtype).reshape(self.shape).copy()


class WaitingUpdate(NamedTuple):
    """An update of which any single array can be read back."""

    site: str
    num_samples: int
    weights: Mapping[str, SpooledArray]
    extras: Mapping[str, SpooledArray]


class UpdateSpool:
    """Updates in memory while they are small, else in a temporary file.

    The file has no name, so nothing of it survives a crash.
    """

    def __init__(self, folder: Path | None = None) -> None:
        place = None if folder is None else str(folder)
        # closed by __exit__
        self._file = SpooledTemporaryFile(max_size=_MEMORY, dir=place)  # noqa: SIM115
        self.updates: list[WaitingUpdate] = []

    def __enter__(self) -> UpdateSpool:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, update: Update) -> None:
        """Append an update."""
        weights, extras = self._write(update.weights), self._write(update.extras)
        self.updates.append(WaitingUpdate(update.site, update.num_samples, weights, extras))

    def _write(self, arrays: Arrays) -> dict[str, SpooledArray]:
        places = {}
        for name, value in arrays.items():
            offset = self._file.seek(0, os.SEEK_END)
            places[name] = SpooledArray(self._file, offset, np.shape(value), value.dtype)
            try:
                self._file.write(np.asarray(value).tobytes())
            except OSError as error:
                raise RunFolderError(
                    "run.cannot-keep-update",
                    f"an update that waits for the other sites cannot be stored: {error.strerror}",
                    fix="free some space in the run folder, then run `fedgsca resume`",
                ) from error
        return places
