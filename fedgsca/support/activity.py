"""Signs of life from long work: decoding, computing features. Who listens decides what is shown.

The code that works says how far it is:

    with activity("decoding images", len(names)) as advance:
        for block in blocks:
            ...
            advance(len(block))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class ActivityListener(Protocol):
    """Shows the progress of an activity to a person."""

    def on_activity(self, phase: str, position: int, total: int, seconds: float) -> None:
        """`position` of `total` items are done, after `seconds` of this phase."""
        ...


_listeners: list[ActivityListener] = []


@contextmanager
def listen(listener: ActivityListener) -> Iterator[None]:
    """Inside the block, `listener` is told about every activity of this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def activity(phase: str, total: int) -> Iterator[Callable[[int], None]]:
    """A phase of `total` items. The block receives a function that counts finished items."""
    start = time.monotonic()
    position = 0

    def advance(count: int) -> None:
        nonlocal position
        position += count
        _tell(phase, position, total, time.monotonic() - start)

    _tell(phase, 0, total, 0.0)
    yield advance


def _tell(phase: str, position: int, total: int, seconds: float) -> None:
    for listener in _listeners:
        listener.on_activity(phase, position, total, seconds)
