"""`fedgsca report`: write report.html again, for a run or a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.support.console import print_line, print_warning

Folders = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        help="folder of a run (also an unfinished one) or of a comparison; several finished runs"
        " are compared",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="for several runs: folder of the comparison; default runs/A-vs-B"),
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


def report(paths: Folders, previous: PreviousRunFolder = None, out: Out = None) -> None:
    """`fedgsca report`."""
    if len(paths) > 1:
        if previous is not None:
            raise ConfigError(
                "cli.conflicting-options",
                "--before cannot be combined with several runs",
                fix="give one run with --before, or several runs without it",
            )
        _compare_runs(paths, out)
        return
    if out is not None:
        raise ConfigError(
            "cli.conflicting-options",
            "--out is the folder for a comparison of several runs",
            fix="give at least two runs, or leave --out away",
        )
    path = paths[0]
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


def _compare_runs(paths: list[Path], out: Path | None) -> None:
    """Several finished runs as one comparison."""
    from fedgsca.cli.compare import show_table
    from fedgsca.grid.comparison import ComparisonResult, write_tables
    from fedgsca.grid.existing_runs import compare_existing
    from fedgsca.report.html_page import write_report

    folder = out or Path("runs") / "-vs-".join(path.resolve().name for path in paths[:3])
    comparison, warnings = compare_existing(paths, folder)
    for warning in warnings:
        print_warning(warning)
    comparison = write_tables(folder, comparison)
    show_table(ComparisonResult(folder, comparison, {}))
    print_line(f"report  {write_report(folder)}", "bold")
