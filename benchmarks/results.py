"""The table of the README: FedAvg, FedGSCA, FedGSCA-E and the ceiling with the same chances.

    python -m benchmarks.results --out DIR --data FOLDER     # run what is missing, write the block
    python -m benchmarks.results --out DIR --print           # only write it

FOLDER may hold pathmnist_small.npz, ham10000_small and deepdrid_small; what is absent is left out.
All runs: frozen features, four stratified sites, 60 rounds, the default rate, seeds that were used
for no choice. Imbalanced data are run without class balance, too. Every row is
`fedgsca compare`, so DIR has its tables, intervals and reports.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

from docs.generate import find_page, make_table, write_block
from fedgsca.cli import execute

METHODS = ("fedavg", "fedgsca", "fedgsca-e", "ceiling")
NOISES = ("0-S40-P20-C20", "S40")


@dataclass(frozen=True)
class Source:
    """A data set of the table."""

    name: str
    title: str
    seeds: str
    options: tuple[str, ...] = ()
    is_file: bool = True


SOURCES = (
    Source(
        "synthetic",
        "built-in tissue",
        "511,512,513",
        ("--set", "data.train=1200", "--set", "data.test=600"),
        is_file=False,
    ),
    Source("pathmnist_small.npz", "PathMNIST-small, 9 balanced classes", "511,512,513"),
    Source(
        "ham10000_small",
        "ham10000_small, 7 classes, 67 % nevi",
        "511,512,513",
        ("--vary", "train.class_balance=0,0.25", "--partition", "stratified"),
    ),
    Source(
        "deepdrid_small",
        "deepdrid_small, 5 grades, 45 % healthy",
        "511,512,513",
        ("--vary", "train.class_balance=0,0.25", "--partition", "stratified"),
    ),
)


def folder_of(source: Source, out: Path) -> Path:
    """Of the comparison of a data set."""
    return out / source.name.partition(".")[0]


def compare(source: Source, data: str, out: Path) -> None:
    """Run what is missing of a comparison."""
    command = ["compare", "--data", data, "--frozen", "--rounds", "60", "--seeds", source.seeds]
    command += ["--methods", ",".join(METHODS[:-1]), "--quiet", "--out", str(out), *source.options]
    for noise in NOISES:
        command += ["--noise", noise]
    if execute(command) != 0:
        raise SystemExit(f"the comparison in {out} is not complete; run the command again")


def table_rows(source: Source, out: Path) -> list[list[str]]:
    """Data, noise, balance and the scores; the best of the three methods is not marked."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    with (out / "compare.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            place = (row["noise"], row.get("train.class_balance") or "0.25")
            text = f"{float(row['f1_mean']):.1f}"
            if row["method"] != "ceiling":
                text += f" ± {float(row['f1_std']):.1f}"
            cells.setdefault(place, {})[row["method"]] = text
    rows = []
    for (noise, balance), scores in cells.items():
        rows.append([source.title, noise, balance, *[scores.get(name, "–") for name in METHODS]])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--print", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    rows = []
    for source in SOURCES:
        folder = folder_of(source, arguments.out)
        data = source.name
        if source.is_file and arguments.data is not None:
            data = str(arguments.data / source.name)
        if not arguments.print and (not source.is_file or Path(data).exists()):
            compare(source, data, folder)
        if (folder / "compare.csv").is_file():
            rows += table_rows(source, folder)
    heads = ["Data", "Noise", "Class balance", "FedAvg", "FedGSCA", "FedGSCA-E", "Ceiling"]
    write_block(find_page("results"), "results", make_table(heads, rows))


if __name__ == "__main__":
    main()
