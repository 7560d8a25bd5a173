"""Runs the cells of an experiment and renders its table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedgsca.cli.compare import Shown
from fedgsca.engine.progress import Display, display
from fedgsca.errors import RunFolderError
from fedgsca.support.console import print_json, print_line, print_note, resume_hint
from fedgsca.support.text import duration

if TYPE_CHECKING:
    from fedgsca.engine.base import RunObserver
    from fedgsca.experiment.records import RunResult
    from fedgsca.grid.runner import GridCell, Results, Shard
    from fedgsca.paper.request import Request
    from fedgsca.paper.table_result import TableResult


class Timed:
    """Tells after every cell how long the rest will take."""

    def __init__(self, display: Display, cells: Sequence[GridCell], results: Results) -> None:
        self.shown, self.display, self.cells, self.results = Shown(display), display, cells, results

    def observe(self, cell: GridCell) -> RunObserver:
        return self.shown.observe(cell)

    def on_run_done(self, cell: GridCell, result: RunResult) -> None:
        self.shown.on_run_done(cell, result)
        left = time_left(self.cells, self.results)
        if left:
            self.display.print(left, "dim")

    def on_run_failed(self, cell: GridCell, error: Exception) -> None:
        self.shown.on_run_failed(cell, error)


def time_left(cells: Sequence[GridCell], results: Results) -> str:
    from fedgsca.paper.run_time import seconds_left

    missing = sum(cell.name not in results for cell in cells)
    left = seconds_left(cells, results)
    if not missing:
        return ""
    return f"{missing} run{'s' * (missing > 1)} to do" + (
        f", about {duration(left)}" if left is not None else ""
    )


def execute(
    request: Request,
    out: Path,
    shard: Shard,
    merge: Sequence[Path],
    *,
    only_render: bool,
    jobs: int,
    quiet: bool,
    json: bool,
) -> None:
    """Start or continue; then, also when stopped, the table of what is finished."""
    from fedgsca.grid.runner import (
        check_folder,
        drop_checkpoints,
        finished_cells,
        raise_failures,
        run_cells,
    )
    from fedgsca.paper.collect_scores import import_cells
    from fedgsca.paper.request import FILE, merge_request

    if only_render and not (out / FILE).exists() and not merge:
        raise RunFolderError(
            "todo.paper-table-run-1",
            f"{out} has no experiment to render",
            fix="run it first, or give its folder with --out",
        )
    asked = request.cells()
    check_folder(asked, out, marker=FILE, kind="experiment")
    whole = merge_request(request, out)
    for other in merge:
        copied = import_cells(whole.cells(), other, out)
        print_note(f"{len(copied)} runs taken from {other}", "green")
    mine = shard.part(asked)
    results = finished_cells(asked, out)
    if not quiet:
        _show_state(asked, mine, results, shard)
    failed: dict[str, str] = {}
    todo = [] if only_render else mine
    try:
        with (
            resume_hint(out),
            display(quiet=quiet, runs=sum(cell.name not in results for cell in todo)) as progress,
        ):
            failed = run_cells(
                todo,
                out,
                Timed(progress, mine, results),
                results,
                jobs=jobs,
                on_result=lambda cell: drop_checkpoints(cell, out),
            )
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):  # pressed again: he means it
            finish(whole, out, quiet=True, json=False)
        raise
    finish(whole, out, quiet=quiet, json=json)
    raise_failures(failed, len(mine), out)


def _show_state(
    asked: Sequence[GridCell], mine: Sequence[GridCell], results: Results, shard: Shard
) -> None:
    """What is done and what is to do."""
    part = f"; shard {shard} has {len(mine)} of them" if shard.count > 1 else ""
    print_note(f"{len(results)} of {len(asked)} runs are done{part}", "green")
    if results:
        rows = dict.fromkeys(cell.row for cell in asked)
        done = {row: sum(cell.name in results for cell in asked if cell.row == row) for row in rows}
        total = {row: sum(cell.row == row for cell in asked) for row in rows}
        print_note("  " + ", ".join(f"{row} {done[row]}/{total[row]}" for row in rows))
    left = time_left(mine, results)
    if left:
        print_note(left)


def finish(request: Request, out: Path, *, quiet: bool, json: bool) -> TableResult:
    """table.json and everything rendered from it. Shards take turns, and each reads all cells: the last one has the whole table."""
    from fedgsca.paper.collect_scores import collect
    from fedgsca.paper.render import print_result, render
    from fedgsca.paper.table_result import save
    from fedgsca.support.files import file_lock

    with file_lock(out / ".lock"):
        result = collect(request, out)
        save(result, out)
        written = render(result, out)
    if json:
        print_json({**result.to_json(), "path": str(out), "files": [str(path) for path in written]})
    elif not quiet:
        print_result(result)
        for path in written:
            if path.suffix == ".html":
                print_line(f"report  {path}", "bold")
    return result
