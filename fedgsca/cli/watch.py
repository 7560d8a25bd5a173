"""`fedgsca watch`: a local live page of one or several runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedgsca.errors import RunFolderError
from fedgsca.support.console import print_line, print_note
from fedgsca.support.text import plural

WatchedFolders = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="folders of runs, comparisons, or of the coordinator's run; a run may start later",
    ),
]
WatchPort = Annotated[
    int | None,
    typer.Option("--port", min=1024, max=65535, help="default: the first free one from 8765 on"),
]


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "watch",
        help="Show runs while they happen, on a local page.",
        rich_help_panel="Train",
    )(watch)


def watch(folders: WatchedFolders, port: WatchPort = None) -> None:
    """`fedgsca watch`."""
    from fedgsca.review.serve import require_server_packages, serve_page

    require_server_packages()
    from fedgsca.watch.snapshot import MAX_RUNS, WatchList
    from fedgsca.watch.watch_app import build_watch_app

    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise RunFolderError(
                "watch.not-a-folder",
                f"{folder} is a file, not a folder",
                fix="give folders of runs",
            )
    if len(folders) > MAX_RUNS:
        raise RunFolderError(
            "watch.too-many-runs",
            f"{len(folders)} runs do not fit on one page",
            fix=f"give at most {MAX_RUNS} folders",
        )
    watches = WatchList(folders)

    def announce(address: str) -> None:
        print_line(f"watch   {address}", "bold")
        print_note(
            f"{plural(len(folders), 'folder')}; the page only reads; Ctrl-C stops it, not the runs"
        )

    serve_page(partial(build_watch_app, watches), port, announce)
