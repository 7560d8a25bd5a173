"""`fedgsca table --list`: all experiments of the paper, their grids, and what they cost."""

from __future__ import annotations

from typing import Any

from fedgsca.support.console import make_table, print_json, print_line, print_table


def show_list(*, json: bool) -> None:
    from fedgsca.paper.experiments import GRIDS, SEEDS, TABLES
    from fedgsca.paper.printed_numbers import printed
    from fedgsca.paper.run_time import paper_hours
    from fedgsca.paper.scales import SEEDS_OF

    found: list[dict[str, Any]] = [
        {
            "command": f"fedgsca table {name}" if name in TABLES else f"fedgsca {name}",
            "paper": printed(name).place,
            "title": each.title,
            "rows": [line.key for line in each.rows],
            "settings": [column.key for column in each.columns],
            "runs": {scale: seeds * each.size for scale, seeds in SEEDS_OF.items()},
            "paper_hours": round(paper_hours(each)),
        }
        for name, each in GRIDS.items()
    ]
    if json:
        print_json({"experiments": found})
        return
    rows = [
        [e["command"], e["paper"], e["title"], str(len(e["rows"])), str(len(e["settings"])), str(e["runs"]["paper"]),
         f"{e['paper_hours']} h", str(e["runs"]["mini"])]
        for e in found
    ]  # fmt: skip
    print_table(
        make_table(
            ["command", "paper", "", "rows", "settings", "runs", "cost", "mini runs"], rows, text_columns=3
        )
    )
    print_line(f"runs: {SEEDS} seeds at paper scale, {SEEDS_OF['mini']} at mini scale.", "dim")
    print_line(
        "cost: hours on the paper's machine (two RTX 3090), estimated from its 133 s per FedAvg round, the methods' passes over the data",
        "dim",
    )
    print_line("and the number of images; not measured. docs/reproducing.md has more.", "dim")
