"""`fedgsca compare`: methods x noises x seeds, each cell resumable, one table at the end."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedgsca.cli.options import (
    ConfigFile,
    Data,
    Frozen,
    Jobs,
    Json,
    Labels,
    Model,
    Partition,
    Preset,
    Quiet,
    Rounds,
    Sets,
    Sites,
    SkipUnreadable,
    make_tree,
    short,
)
from fedgsca.engine.progress import Display, display
from fedgsca.errors import FedgscaError
from fedgsca.support.console import (
    make_table,
    print_json,
    print_line,
    print_note,
    print_table,
    print_warning,
    resume_hint,
)

if TYPE_CHECKING:
    from fedgsca.engine.base import RunObserver
    from fedgsca.experiment.records import RunResult
    from fedgsca.grid.comparison import ComparisonResult, ComparisonPlan
    from fedgsca.grid.runner import GridCell

Methods = Annotated[str, typer.Option("--methods", help="names joined by commas, or all")]
Noises = Annotated[
    list[str] | None, typer.Option("--noise", help="repeatable; default 0-S40-P20-C20")
]
Seeds = Annotated[str, typer.Option("--seeds", help="how many (3: seeds 0, 1, 2) or which (0,4,7)")]
Ceiling = Annotated[
    bool,
    typer.Option(
        "--ceiling/--no-ceiling", help="also FedAvg without the wrong labels: needed for recovery"
    ),
]
Clean = Annotated[bool, typer.Option("--clean", help="also FedAvg without noise, for reference")]
Out = Annotated[Path | None, typer.Option("--out", help="folder; default runs/compare-<data>")]
_SCORES = {"f1": "macro F1", "recall": "recall", "precision": "precision"}
Title = Annotated[str | None, typer.Option("--title", help="heading of the report")]
Tuned = Annotated[
    Path | None,
    typer.Option("--tuned", help="TOML with settings for each method, [METHOD.SECTION]"),
]


def add(app: typer.Typer) -> None:
    app.command(
        "compare", help="Compare methods under noise over several seeds.", rich_help_panel="Train"
    )(compare)


def compare(
    methods: Methods = "fedavg,fedgsca",
    noise: Noises = None,
    seeds: Seeds = "3",
    data: Data = None,
    rounds: Rounds = None,
    sites: Sites = None,
    partition: Partition = None,
    labels: Labels = None,
    model: Model = None,
    frozen: Frozen = False,
    skip_unreadable: SkipUnreadable = False,
    config: ConfigFile = None,
    sets: Sets = None,
    preset: Preset = None,
    ceiling: Ceiling = True,
    clean: Clean = False,
    out: Out = None,
    title: Title = None,
    tuned: Tuned = None,
    jobs: Jobs = 1,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    from fedgsca.grid.comparison import (
        ComparisonPlan,
        parse_methods,
        parse_noises,
        parse_seeds,
        read_tuned,
    )

    tree = make_tree(
        config, sets, data=data, rounds=rounds, sites=sites, partition=partition, labels=labels, model=model, frozen=frozen,
        skip_unreadable=skip_unreadable, preset=preset,
    )  # fmt: skip
    plan = ComparisonPlan(
        parse_methods(methods), parse_noises(noise or ["0-S40-P20-C20"]), parse_seeds(seeds), tree, ceiling, clean, title or "",
        read_tuned(tuned) if tuned else {},
    )  # fmt: skip
    source = plan.cells()[0].config.data.source
    if not quiet:
        _explain(plan)
    execute(
        plan, out or Path("runs") / f"compare-{short(source)}", jobs=jobs, quiet=quiet, json=json
    )


def _explain(plan: ComparisonPlan) -> None:
    from fedgsca.cli.show_config import explain_preset

    for cell in {cell.config.method: cell for cell in plan.cells()}.values():
        explain_preset(cell.config)
    if plan.ceiling and "fedavg" not in plan.methods:
        print_warning("recovery is measured against FedAvg: add fedavg to --methods to see it")


class Shown:
    """The comparison's observer: hands the engine a observer per cell and names what failed."""

    def __init__(self, display: Display) -> None:
        self.display = display

    def observe(self, cell: GridCell) -> RunObserver:
        return self.display.observe(cell.name)

    def on_run_done(self, cell: GridCell, result: RunResult) -> None:
        self.display.finish_run(cell.name, f"F1 {result.f1:.1f}")

    def on_run_failed(self, cell: GridCell, error: Exception) -> None:
        self.display.finish_run(cell.name, "failed")
        if isinstance(error, FedgscaError):
            self.display.print(f"{cell.name} failed: {error.message}\nFix: {error.fix}", "red")
        else:
            self.display.print(
                f"{cell.name} failed; this is a bug, please report it:\n{''.join(traceback.format_exception(error))}",
                "red",
            )


def execute(plan: ComparisonPlan, out: Path, *, jobs: int, quiet: bool, json: bool) -> ComparisonResult:
    """Start or continue; then tables, report and, if cells failed, an error."""
    from fedgsca.grid.comparison import check_folder, run_plan, write_tables
    from fedgsca.grid.runner import finished_cells, raise_failures

    cells = {cell.name: cell for cell in plan.cells()}
    check_folder(cells.values(), out)
    done = finished_cells(cells.values(), out)
    if done and not quiet:
        print_note(
            f"{len(done)} of {len(cells)} runs are done"
            + (": " + ", ".join(done) if len(done) < len(cells) else ""),
            "green",
        )
    with resume_hint(out), display(quiet=quiet, runs=len(cells) - len(done)) as progress:
        outcome = run_plan(plan, out, Shown(progress), jobs=jobs)
    if outcome.comparison.cells:
        from fedgsca.report.html_page import write_report

        write_tables(out, outcome.comparison)
        write_report(out)
        if json:
            print_json(
                {
                    **outcome.comparison.to_json(),
                    "failed": outcome.failures,
                    "path": str(out),
                    "report": str(out / "report.html"),
                }
            )
        elif not quiet:
            show_table(outcome)
            print_line(f"report  {out / 'report.html'}", "bold")
    raise_failures(outcome.failures, len(cells), out)
    return outcome


def show_table(outcome: ComparisonResult) -> None:
    """A table per noise: mean ± standard deviation over seeds; the best of each noise is marked."""
    from fedgsca.report.comparison_tables import recovery_text, score_text

    rows = outcome.rows
    print_line(f"\n{outcome.comparison.title}", "bold")
    for noise in dict.fromkeys(row.noise for row in rows):
        cells = []
        for row in (row for row in rows if row.noise == noise):
            scores = [score_text(row, key) + ("*" if key in row.best else " ") for key in _SCORES]
            seconds = row.stats.get("seconds_per_round")
            cells.append(
                [
                    row.label,
                    *scores,
                    recovery_text(row),
                    f"{seconds.mean:.2f}" if seconds else "–",
                    str(row.seeds),
                ]
            )
        print_table(
            make_table(
                ["method", *_SCORES.values(), "recovery", "s/round", "seeds"],
                cells,
                title=f"noise {noise}",
            )
        )
    if outcome.comparison.clean:
        clean = list(outcome.comparison.clean.values())
        print_line(f"FedAvg on clean labels: F1 {sum(clean) / len(clean):.1f}")
    print_line(
        "* best under this noise; recovery: share of the distance from FedAvg to the ceiling", "dim"
    )
