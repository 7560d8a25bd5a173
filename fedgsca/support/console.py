"""Where text goes: results to stdout, progress and warnings to stderr; with --json nothing but one JSON object on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PIPE_WIDTH = 200  # a pipe has no width: wide enough that no table of ours wraps


def console(*, stderr: bool = False) -> Console:
    """A fresh one each time: it follows whatever sys.stdout is now. Our texts hold paths and class names, so no markup."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def say(text: str = "", style: str | None = None) -> None:
    """A line of the result."""
    console().print(text, style=style, soft_wrap=True)


def note(text: str, style: str | None = "dim") -> None:
    """A line for the person at the terminal, not part of the result."""
    console(stderr=True).print(text, style=style, soft_wrap=True)


def warn(text: str) -> None:
    note(f"warning: {text}", "yellow")


def complain(message: str, fix: str) -> None:
    """What is wrong and what to do about it."""
    err = console(stderr=True)
    err.print(f"Error: {message}", style="bold red", soft_wrap=True)
    err.print(f"Fix: {fix}", soft_wrap=True)


def emit(value: Any) -> None:
    """The JSON object of --json, alone on stdout."""
    print(json.dumps(value, indent=1, sort_keys=False, default=str))


def grid(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    title: str | None = None,
) -> Table:
    """A plain table: the first `left` columns are text, the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        padding=(0, 1, 0, 0),
    )
    for i, header in enumerate(headers):
        table.add_column(
            header, justify="left" if i < left else "right", overflow="fold", no_wrap=i >= left
        )
    for row in rows:
        table.add_row(*row)
    return table


def show(table: Table) -> None:
    console().print(table)


@contextmanager
def stoppable(out: Path) -> Iterator[None]:
    """Ctrl-C while something runs in this folder: nothing is lost, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        note(f"\nstopped; continue with `fedgsca resume {out}`", "bold yellow")
        raise
