"""`fedgsca report`: write report.html of a run or a comparison, once or while it happens."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated

import typer

from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.support.console import print_line, print_note, print_warning

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
Live = Annotated[
    bool,
    typer.Option("--live", help="write it again while the run happens; the page refreshes itself"),
]
# seconds between two versions of a live page, and between two looks of the browser
LIVE_SECONDS = 10


def report(paths: Folders, live: Live = False, out: Out = None) -> None:
    """Write the report of a run or a comparison."""
    if len(paths) > 1:
        if live:
            raise ConfigError(
                "cli.conflicting-options",
                "--live cannot be combined with several runs",
                fix="give one run with --live, or several runs without it",
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
    if live:
        _write_live(path)
        return
    if not _has_content(path):
        raise RunFolderError(
            "run.not-a-run-folder",
            f"{path} contains neither a run nor a comparison (no metrics.jsonl, no compare.json)",
            fix="give a folder that `fedgsca run` or `fedgsca compare` has written",
        )
    from fedgsca.lab.report.html_page import write_report

    if (path / "compare.json").is_file():
        from fedgsca.lab.comparison import read_comparison, write_tables

        write_tables(path, read_comparison(path))
    print_line(f"report  {write_report(path, with_figures=True)}", "bold")


def _has_content(path: Path) -> bool:
    return (path / "metrics.jsonl").is_file() or (path / "compare.json").is_file()


def _write_live(path: Path) -> None:
    """Write the page whenever a file of the run has changed, until it is finished or Ctrl-C.

    Nothing listens on any address: the page is a file that the browser reads again by itself.
    """
    from fedgsca.lab.report.html_page import write_report

    if path.exists() and not path.is_dir():
        raise RunFolderError(
            "report.not-a-folder", f"{path} is a file, not a folder", fix="give the folder of a run"
        )
    print_line(f"report  {path / 'report.html'}", "bold")
    print_note(f"written every {LIVE_SECONDS} seconds; Ctrl-C stops this, not the run")
    stamp = None
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            is_finished = (path / "result.json").is_file()
            newest = _newest_change(path)
            if _has_content(path) and newest != stamp:
                stamp = newest
                write_report(path, refresh=0 if is_finished else LIVE_SECONDS)
            if is_finished:
                return
            time.sleep(LIVE_SECONDS)


def _newest_change(path: Path) -> int:
    """When the log of the run, or the numbers of the comparison, were written."""
    times = [0]
    for name in ("metrics.jsonl", "status.json", "compare.json", "result.json"):
        with contextlib.suppress(OSError):
            times.append((path / name).stat().st_mtime_ns)
    return max(times)


def _compare_runs(paths: list[Path], out: Path | None) -> None:
    """Several finished runs as one comparison."""
    from fedgsca.cli.compare import show_comparison
    from fedgsca.lab.comparison import write_tables
    from fedgsca.lab.existing_runs import compare_existing
    from fedgsca.lab.report.html_page import write_report

    folder = out or Path("runs") / "-vs-".join(path.resolve().name for path in paths[:3])
    comparison, warnings = compare_existing(paths, folder)
    for warning in warnings:
        print_warning(warning)
    show_comparison(write_tables(folder, comparison))
    print_line(f"report  {write_report(folder, with_figures=True)}", "bold")
