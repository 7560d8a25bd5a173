"""Runs the cells of an experiment of the paper and renders its table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedgsca.cli.compare import GridDisplay
from fedgsca.engine.progress import display
from fedgsca.errors import RunFolderError
from fedgsca.support.console import print_json, print_line, print_note, resume_hint
from fedgsca.support.text import duration, plural

if TYPE_CHECKING:
    from fedgsca.grid.runner import GridCell, Results, Shard
    from fedgsca.paper.request import Request


@dataclass(frozen=True)
class TableOptions:
    """How a table is run and shown."""

    shard: Shard
    merge: Sequence[Path] = field(default_factory=tuple)
    only_render: bool = False
    jobs: int = 1
    quiet: bool = False
    as_json: bool = False


def remaining_text(cells: Sequence[GridCell], results: Results) -> str:
    """ "3 runs to do, about 20 min 5 s"; empty if all are finished."""
    from fedgsca.paper.run_time import seconds_left

    num_open = sum(cell.name not in results for cell in cells)
    if not num_open:
        return ""
    seconds = seconds_left(cells, results)
    text = f"{plural(num_open, 'run')} to do"
    return text if seconds is None else f"{text}, about {duration(seconds)}"


def resume_table(request: Request, out: Path, *, jobs: int, quiet: bool, as_json: bool) -> None:
    """Continue the table of a folder."""
    from fedgsca.grid.runner import Shard

    run_table(request, out, TableOptions(Shard(), jobs=jobs, quiet=quiet, as_json=as_json))


def run_table(request: Request, out: Path, options: TableOptions) -> None:
    """Start or resume; then, also after Ctrl-C, render the table of the finished runs."""
    from fedgsca.grid.runner import check_folder, finished_cells, raise_failures
    from fedgsca.paper.collect_scores import import_cells
    from fedgsca.paper.request import FILE, merge_request

    if options.only_render and not (out / FILE).exists() and not options.merge:
        raise RunFolderError(
            "table.nothing-to-render",
            f"{out} contains no experiment to render",
            fix="run it first, or give its folder with --out",
        )
    requested_cells = request.cells()
    check_folder(requested_cells, out, marker=FILE, kind="experiment")
    full_request = merge_request(request, out)
    for source in options.merge:
        names = import_cells(full_request.cells(), source, out)
        print_note(f"{plural(len(names), 'run')} copied from {source}", "green")
    shard_cells = options.shard.part(requested_cells)
    results = finished_cells(requested_cells, out)
    if not options.quiet:
        _show_state(requested_cells, shard_cells, results, options.shard)
    failures: dict[str, str] = {}
    try:
        if not options.only_render:
            failures = _run_cells(shard_cells, results, out, options)
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):  # pressed a second time: stop without the table
            render_table(full_request, out, quiet=True, as_json=False)
        raise
    render_table(full_request, out, quiet=options.quiet, as_json=options.as_json)
    raise_failures(failures, len(shard_cells), out)


def _run_cells(
    cells: Sequence[GridCell], results: Results, out: Path, options: TableOptions
) -> dict[str, str]:
    """Run the unfinished cells; returns those that failed, with the reason."""
    from fedgsca.grid.runner import drop_checkpoints, run_cells

    num_open = sum(cell.name not in results for cell in cells)
    with resume_hint(out), display(quiet=options.quiet, runs=num_open) as progress:
        return run_cells(
            cells,
            out,
            GridDisplay(progress, lambda: remaining_text(cells, results)),
            results,
            jobs=options.jobs,
            on_result=lambda cell: drop_checkpoints(cell, out),
        )


def _show_state(
    requested_cells: Sequence[GridCell],
    shard_cells: Sequence[GridCell],
    results: Results,
    shard: Shard,
) -> None:
    """What is done and what is to do."""
    part = f"; shard {shard} has {len(shard_cells)} of them" if shard.count > 1 else ""
    print_note(f"{len(results)} of {len(requested_cells)} runs are done{part}", "green")
    if results:
        total: dict[str, int] = {}
        finished_runs: dict[str, int] = {}
        for cell in requested_cells:
            total[cell.row] = total.get(cell.row, 0) + 1
            is_finished = cell.name in results
            finished_runs[cell.row] = finished_runs.get(cell.row, 0) + is_finished
        print_note("  " + ", ".join(f"{row} {finished_runs[row]}/{total[row]}" for row in total))
    text = remaining_text(shard_cells, results)
    if text:
        print_note(text)


def render_table(request: Request, out: Path, *, quiet: bool, as_json: bool) -> None:
    """Write table.json and everything rendered from it.

    Shards take turns, and each reads all cells: the last one writes the complete table.
    """
    from fedgsca.paper.collect_scores import collect
    from fedgsca.paper.render import print_result, render
    from fedgsca.paper.table_result import save
    from fedgsca.support.files import file_lock

    with file_lock(out / ".lock"):
        result = collect(request, out)
        save(result, out)
        files = render(result, out)
    if as_json:
        paths = [str(path) for path in files]
        print_json({**result.to_json(), "path": str(out), "files": paths})
    elif not quiet:
        print_result(result)
        for path in files:
            if path.suffix == ".html":
                print_line(f"report  {path}", "bold")
