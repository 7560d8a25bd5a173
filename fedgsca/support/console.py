"""Where text goes: results to stdout, progress and warnings to stderr.

With --json, stdout holds nothing but one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedgsca.support.text import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table


_PIPE_WIDTH = 200  # a pipe has no width: wide enough that none of our tables wraps
_NAME_WIDTH = 12  # a name keeps so many characters of a line, in however narrow a terminal


def console(*, stderr: bool = False) -> Console:
    """A new console, because sys.stdout may have been replaced since the last call.

    Markup is off: our texts contain paths and class names.
    """
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        """Shows what texts contain, and obeys none of it: no escape sequences of file names."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                if segment.control:
                    yield segment
                else:
                    yield Segment(printable(segment.text), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return PrintableConsole(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def print_line(text: str = "", style: str | None = None) -> None:
    """Print a line of the result on stdout."""
    console().print(text, style=style, soft_wrap=True)


def print_note(text: str, style: str | None = "dim") -> None:
    """Print a line for the person at the terminal, not part of the result, on stderr."""
    console(stderr=True).print(text, style=style, soft_wrap=True)


def print_start(text: str, *, quiet: bool) -> None:
    """Say on stderr what begins, before the data is read and PyTorch is imported.

    Both take seconds in which nobody should look at an empty screen.
    """
    if not quiet:
        print_note(f"{text} ...")


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    print_note(f"warning: {text}", "yellow")


def print_error(code: str, message: str, fix: str) -> None:
    """Print what is wrong and what to do about it on stderr."""
    err = console(stderr=True)
    err.print(f"Error [{code}]: {message}", style="bold red", soft_wrap=True)
    err.print(f"Fix: {fix}", soft_wrap=True)


class JsonOutput:
    """Whether the JSON object of --json has been printed: stdout holds one and no more."""

    is_printed = False


def print_json(value: object) -> None:
    """Print the JSON object of --json, alone on stdout."""
    JsonOutput.is_printed = True
    print(json.dumps(value, indent=1, sort_keys=False, default=str))


def make_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    text_columns: int = 1,
    title: str | None = None,
) -> Table:
    """A plain table: the first `text_columns` columns are text, the others numbers.

    In a narrow terminal long headings of numbers wrap first; numbers stay on one line.
    """
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
    )
    lines = [list(row) for row in rows]
    for i, header in enumerate(headers):
        cell_width = max((len(line[i]) for line in lines if i < len(line)), default=0)
        if i < text_columns:
            width = min(cell_width, _NAME_WIDTH)
            table.add_column(header, justify="left", overflow="fold", min_width=width)
        else:
            longest_word = max((len(word) for word in header.split()), default=0)
            table.add_column(
                header,
                justify="right",
                overflow="fold",
                no_wrap=len(header) <= cell_width,
                min_width=max(cell_width, longest_word),
            )
    for line in lines:
        table.add_row(*line)
    return table


def print_table(table: Table) -> None:
    """Print a table of the result on stdout."""
    console().print(table)


@contextmanager
def resume_hint(out: Path) -> Iterator[None]:
    """If the user presses Ctrl-C inside the block, print how to resume the run in this folder."""
    try:
        yield
    except KeyboardInterrupt:
        print_note(f"\nstopped; continue with `fedgsca resume {out}`", "bold yellow")
        raise


# ---- signs of life from long work: decoding, computing features ----


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
