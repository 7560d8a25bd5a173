"""`fedgsca report`: write report.html again, for a run or a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgsca.errors import RunFolderError
from fedgsca.support.console import print_line

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="folder of a run (also an unfinished one) or of a comparison"
    ),
]

PreviousRunFolder = Annotated[
    Path | None,
    typer.Option(
        "--before", metavar="RUN", help="a run on the uncorrected labels, to compare with"
    ),
]


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "report", help="Write the report of a run or a comparison.", rich_help_panel="Train"
    )(report)


def report(path: Folder, previous: PreviousRunFolder = None) -> None:
    """`fedgsca report`."""
    if not ((path / "metrics.jsonl").is_file() or (path / "compare.json").is_file()):
        raise RunFolderError(
            "run.not-a-run-folder",
            f"{path} contains neither a run nor a comparison (no metrics.jsonl, no compare.json)",
            fix="give a folder that `fedgsca run` or `fedgsca compare` has written",
        )
    from fedgsca.report.html_page import write_report

    if (path / "compare.json").is_file():
        from fedgsca.grid.comparison import read_comparison, write_tables

        write_tables(path, read_comparison(path))
    if previous is not None:
        from fedgsca.report.paired_scores import write_difference
        from fedgsca.report.previous_run import remember_previous

        remember_previous(path, previous)
        write_difference(path, previous)
    write_report(path)
    print_line(f"report  {path / 'report.html'}", "bold")
