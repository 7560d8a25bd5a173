"""`fedgsca table --list`: all experiments of the paper, their grids, and what they cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fedgsca.support.console import make_table, print_json, print_line, print_table


@dataclass(frozen=True)
class ExperimentSummary:
    """One experiment of the paper; the fields are those of `--json`."""

    command: str
    paper: str  # "Table 4"
    title: str
    rows: tuple[str, ...]
    settings: tuple[str, ...]
    runs: dict[str, int]  # by scale
    paper_hours: int


def show_list(*, as_json: bool) -> None:
    """Print the experiments as a table, or as JSON."""
    from fedgsca.paper.experiments import SEEDS
    from fedgsca.paper.scales import SEEDS_OF

    experiments = list_experiments()
    if as_json:
        print_json({"experiments": [asdict(experiment) for experiment in experiments]})
        return
    header = ["command", "paper", "", "rows", "settings", "runs", "cost", "mini runs"]
    rows = [_table_cells(experiment) for experiment in experiments]
    print_table(make_table(header, rows, text_columns=3))
    print_line(f"runs: {SEEDS} seeds at paper scale, {SEEDS_OF['mini']} at mini scale.", "dim")
    print_line(
        "cost: hours on the paper's machine (two RTX 3090), estimated from its 133 s per FedAvg"
        " round, the methods' passes over the data",
        "dim",
    )
    print_line("and the number of images; not measured.", "dim")


def list_experiments() -> list[ExperimentSummary]:
    """All experiments of the paper."""
    from fedgsca.paper.experiments import GRIDS, TABLES
    from fedgsca.paper.printed_numbers import printed
    from fedgsca.paper.run_time import paper_hours
    from fedgsca.paper.scales import SEEDS_OF

    experiments = []
    for name, grid in GRIDS.items():
        command = f"fedgsca table {name}" if name in TABLES else f"fedgsca {name}"
        summary = ExperimentSummary(
            command=command,
            paper=printed(name).place,
            title=grid.title,
            rows=tuple(row.key for row in grid.rows),
            settings=tuple(column.key for column in grid.columns),
            runs={scale: seeds * grid.size for scale, seeds in SEEDS_OF.items()},
            paper_hours=round(paper_hours(grid)),
        )
        experiments.append(summary)
    return experiments


def _table_cells(experiment: ExperimentSummary) -> list[str]:
    return [
        experiment.command,
        experiment.paper,
        experiment.title,
        str(len(experiment.rows)),
        str(len(experiment.settings)),
        str(experiment.runs["paper"]),
        f"{experiment.paper_hours} h",
        str(experiment.runs["mini"]),
    ]
