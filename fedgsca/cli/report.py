"""`fedgsca report`: write report.html again, for a run or a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedgsca.cli.screen import say
from fedgsca.errors import RunFolderError

Folder = Annotated[Path, typer.Argument(metavar="PATH", help="folder of a run (also an unfinished one) or of a comparison")]


def add(app: typer.Typer) -> None:
    app.command("report", help="Write the report of a run or a comparison.", rich_help_panel="Train")(report)


def report(path: Folder) -> None:
    if not ((path / "metrics.jsonl").is_file() or (path / "compare.json").is_file()):
        raise RunFolderError(
            f"{path} holds neither a run nor a comparison (no metrics.jsonl, no compare.json)",
            fix="give the folder that `fedgsca run` or `fedgsca compare` wrote to",
        )
    from fedgsca.report.html import write_report

    if (path / "compare.json").is_file():
        from fedgsca.compare import write_tables

        write_tables(path, json.loads((path / "compare.json").read_bytes()))
    write_report(path)
    say(f"report  {path / 'report.html'}", "bold")
