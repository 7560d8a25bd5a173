"""FedGSCA-E and the label audit at sites that differ, against FedAvg, the ceiling and cleanlab.

    python -m benchmarks.generalisation --out DIR --part validation \\
        --pathmnist pathmnist_small.npz --ham ham10000_small --deepdrid deepdrid_small \\
        --minutes 9 --write benchmarks/studies/generalisation.md

Part "validation" is for choosing: it cannot see test images. Part "test" has other seeds and is for
one look at the end. Data sets whose files are not given are left out. DIR/PART has a file for each
finished setting, results.json and sites.csv with all of them, and page.md; the same command
continues where it stopped.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.generalisation.measure import Result, measure_setting
from benchmarks.generalisation.page import make_page, site_lines
from benchmarks.generalisation.plan import (
    SEEDS,
    Dataset,
    Setting,
    choose_settings,
    find_datasets,
    plan_settings,
)
from fedgsca.errors import FedgscaError
from fedgsca.support.csv_table import write_cells
from fedgsca.support.files import write_atomic

ROUNDS, QUICK_ROUNDS = 60, 8


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generalisation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=tuple(SEEDS), default="validation")
    parser.add_argument("--pathmnist", type=Path, help="MedMNIST-style .npz file")
    parser.add_argument("--ham", type=Path, help="folder with labels.csv (file,label,group,split)")
    parser.add_argument("--deepdrid", type=Path, help="the same with a column site, and grades")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="only settings like data=ham10000 noise=S40,I30 kind=shifted sites=4 seed=1; several"
        " kinds are separated by semicolons",
    )
    parser.add_argument("--minutes", type=float, help="start no setting after this time")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--quick", action="store_true", help="tiny images, to see that it works")
    parser.add_argument("--write", type=Path, metavar="FILE.md", help="also write the page here")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the settings that are not finished, and write the page."""
    options = parse_arguments(arguments)
    datasets = find_datasets(
        options.part,
        pathmnist=options.pathmnist,
        ham=options.ham,
        deepdrid=options.deepdrid,
        quick=options.quick,
    )
    settings = choose_settings(plan_settings(datasets, SEEDS[options.part]), options.only)
    folder = options.out / options.part
    pending = [setting for setting in settings if not (folder / f"{setting.name}.json").exists()]
    print(f"{len(settings) - len(pending)} of {len(settings)} settings are finished", flush=True)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    end = time.time() + 60 * options.minutes if options.minutes else None
    by_name = {dataset.name: dataset for dataset in datasets}
    tasks = [(setting, by_name[setting.data], rounds, folder, end) for setting in pending]
    if options.jobs > 1:
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            for line in pool.imap(run_task, tasks, chunksize=1):
                print(line, flush=True)
    else:
        for task in tasks:
            print(run_task(task), flush=True)
    write_results(options, folder, settings)


def run_task(task: tuple[Setting, Dataset, int, Path, float | None]) -> str:
    """Measure a setting and store it, unless the time is over; a line for the terminal."""
    import torch

    setting, dataset, rounds, folder, end = task
    if end is not None and time.time() > end:
        return f"{setting.name}: not started, the time is over"
    torch.set_num_threads(1)
    try:
        result = measure_setting(setting, dataset, rounds)
    except FedgscaError as error:  # such as a site that gets no image; the next call tries again
        return f"{setting.name} failed: [{error.code}] {error.message}"
    write_atomic(folder / f"{setting.name}.json", json.dumps(result.to_json()).encode())
    scores = ", ".join(f"{name} {score:.1f}" for name, score in result.f1.items())
    return f"{setting.name}: {scores}; {result.seconds:.0f} s"


def write_results(options: argparse.Namespace, folder: Path, settings: Sequence[Setting]) -> None:
    """results.json, sites.csv and page.md of the finished settings."""
    paths = [folder / f"{setting.name}.json" for setting in settings]
    trees = [json.loads(path.read_bytes()) for path in paths if path.exists()]
    if not trees:
        print("no setting is finished")
        return
    results = [Result.from_json(tree) for tree in trees]
    write_atomic(folder / "results.json", json.dumps(trees, indent=1).encode())
    content = io.BytesIO()
    for line in site_lines(results):
        write_cells(content, ["" if cell is None else str(cell) for cell in line])
    write_atomic(folder / "sites.csv", content.getvalue())
    page = make_page(options.part, results, len(settings))
    for path in (folder / "page.md", options.write):
        if path is not None:
            write_atomic(path, page.encode())
    print(f"page: {folder / 'page.md'}")


if __name__ == "__main__":
    main()
