"""FedGSCA and the label audit on imbalanced, hard data, against all methods and cleanlab.

    python -m benchmarks.generalisation --out DIR --part validation \\
        --pathmnist pathmnist_small.npz --ham ham10000_small

Studies:

    suite         all methods in all settings; the page is DIR/PART/table.md
    correct       F1 before and after the first tenth of the audit's list is corrected

Part "validation" is for choosing: it cannot see test images. Part "test" has other seeds and is for
one look at the end. Data sets whose files are not given are left out. Finished runs are read from
DIR, so the same command continues an interrupted study and rewrites the page. Half and twice the
constants: benchmarks.generalisation.simulate.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generalisation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=("validation", "test"), default="validation")
    parser.add_argument("--study", choices=("suite", "correct"), default="suite")
    parser.add_argument("--pathmnist", type=Path, help="MedMNIST-style .npz file")
    parser.add_argument("--ham", type=Path, help="folder with labels.csv (file,label,group,split)")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="only runs like data=ham10000 model=cnn noise=S40,P20 partition=stratified "
        "method=fedavg,fedgsca-e lr=auto seed=1",
    )
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--quick", action="store_true", help="tiny images, to see that it works")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings of FedGSCA"
    )
    parser.add_argument(
        "--constant", nargs="+", default=[], metavar="NAME=VALUE", help="such as STEP=12.8"
    )
    parser.add_argument("--table", action="store_true", help="only write the page")
    return parser.parse_args(arguments)


def parse_settings(texts: list[str]) -> dict[str, object]:
    """ "evidence.first=4" -> {"evidence.first": 4}; values as in TOML, a bare word is a string."""
    settings: dict[str, object] = {}
    for text in texts:
        key, _, value = text.partition("=")
        try:
            settings[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key] = value
    return settings


def main(arguments: list[str] | None = None) -> None:
    """Run a study."""
    options = parse_arguments(arguments)
    # before anything imports the modules that have these constants
    from benchmarks.generalisation.constants import MODULES, list_constants, use_constant

    for name, value in parse_settings(options.constant).items():
        module = next(module for module in MODULES if name in list_constants(module))
        assert isinstance(value, int | float)
        use_constant(module, name, value)

    import torch

    torch.set_num_threads(1)
    if options.study == "correct":
        from benchmarks.generalisation.correction import run_correction

        run_correction(options)
    else:
        run_suite(options)


def run_suite(options: argparse.Namespace) -> None:
    """The study "suite"."""
    from benchmarks.generalisation.plan import (
        FULL,
        QUICK,
        SEEDS,
        filter_cells,
        find_datasets,
        plan_cells,
    )
    from benchmarks.generalisation.suite import Suite

    datasets = find_datasets(
        options.part, pathmnist=options.pathmnist, ham=options.ham, quick=options.quick
    )
    for name, path in (("--pathmnist", options.pathmnist), ("--ham", options.ham)):
        if path is None and not options.quick:
            print(f"{name} is not given: its data sets are left out")
    size = QUICK if options.quick else FULL
    cells = plan_cells(datasets, size, SEEDS[options.part])
    suite = Suite(options.part, cells, datasets, size, options.out, parse_settings(options.set))
    if not options.table:
        suite.run(filter_cells(cells, options.only), options.minutes)
    print(suite.write_page())


if __name__ == "__main__":
    main()
