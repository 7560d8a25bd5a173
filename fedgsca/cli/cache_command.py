"""`fedgsca cache`: how large the cache of decoded images and features is, and how to empty it."""

from __future__ import annotations

from typing import Annotated

import typer

from fedgsca.cli.options import Json
from fedgsca.support.console import print_json, print_line
from fedgsca.support.text import plural, size_text

Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
OlderThan = Annotated[
    float | None,
    typer.Option("--older-than", min=0, metavar="DAYS", help="only what was not read for so long"),
]

group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(
        group,
        name="cache",
        help="Size of the cache of decoded images and features; empty it.",
        rich_help_panel="Data and noise",
    )


@group.command("size")
def size(as_json: Json = False) -> None:
    """Show where the cache is and how large it is.

    It contains decoded images, so treat it like the images themselves.
    """
    from fedgsca.data.cache import cache_folder, list_cache

    files = list_cache()
    total = sum(file.size for file in files)
    if as_json:
        print_json({"folder": str(cache_folder()), "files": len(files), "bytes": total})
        return
    print_line(f"{cache_folder()}: {size_text(total)} in {plural(len(files), 'file')}")
    if files:
        print_line("It contains decoded images. Empty it with `fedgsca cache clear`.")


@group.command("clear")
def clear(older_than: OlderThan = None, yes: Yes = False, as_json: Json = False) -> None:
    """Remove decoded images and features; they are made again when they are needed.

    Do not clear the cache during a run.
    """
    from fedgsca.data.cache import cache_folder, list_cache, remove_cached

    files = list_cache(older_than)
    total = sum(file.size for file in files)
    if files and not (yes or as_json):
        question = f"Remove {plural(len(files), 'file')} ({size_text(total)}) in {cache_folder()}?"
        typer.confirm(question, abort=True)
    remove_cached(files)
    if as_json:
        print_json({"folder": str(cache_folder()), "files": len(files), "bytes": total})
    else:
        print_line(f"removed {size_text(total)} in {plural(len(files), 'file')}")
