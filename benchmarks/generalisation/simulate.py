"""Does a conclusion depend on a constant? Half and twice each one, in all settings of the suite.

    python -m benchmarks.generalisation.simulate --out DIR --sensitivity --seeds 1 \\
        --pathmnist pathmnist_small.npz --ham ham10000_small

Runs are those of simulator.py, on validation images. Finished ones are read from DIR, so the same
command continues an interrupted study. Without --sensitivity only the defaults are measured. The
table is printed and written to DIR/table.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.generalisation.variants import (
    DEFAULT,
    MODULE,
    Variant,
    list_constant_variants,
    list_option_variants,
)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generalisation.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pathmnist", type=Path, help="MedMNIST-style .npz file")
    parser.add_argument("--ham", type=Path, help="folder with labels.csv (file,label,group,split)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sensitivity", action="store_true", help="also vary the constants")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--quick", action="store_true", help="tiny images, to see that it works")
    parser.add_argument("--table", action="store_true", help="only print the table")
    parser.add_argument("--noises", nargs="+", help="default: all of the suite")
    parser.add_argument("--rounds", type=int, help="default: as the suite")
    parser.add_argument("--sites", type=int, help="default: as the suite")
    parser.add_argument("--only", nargs="+", help="the constants and options to vary")
    parser.add_argument("--partitions", nargs="+", default=["stratified", "dirichlet"])
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the table."""
    options = parse_arguments(arguments)
    if not options.table:
        run_groups(options)
    print_table(options)


def run_groups(options: argparse.Namespace) -> None:
    """All variants; a group of variants is a process, at most --processes at a time."""
    groups = [[DEFAULT, *choose_variants(list_option_variants(), options)]]
    groups += [[variant] for variant in choose_variants(list_constant_variants(), options)]
    # processes that have loaded torch, which takes seconds, but nothing that has a constant
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    with context.Pool(options.processes, maxtasksperchild=1) as pool:
        for names in pool.imap(partial(run_group, options), groups, chunksize=1):
            print(f"finished: {names}", flush=True)


def choose_variants(variants: Sequence[Variant], options: argparse.Namespace) -> list[Variant]:
    """Those that the command line asks for, without the default."""
    if not options.sensitivity:
        return []
    chosen_variants = [variant for variant in variants if variant != DEFAULT]
    if options.only:
        chosen_variants = [variant for variant in chosen_variants if variant.name in options.only]
    return chosen_variants


def run_group(options: argparse.Namespace, variants: Sequence[Variant]) -> str:
    """All settings and seeds with these variants; their names. Nothing is imported yet."""
    import torch

    from benchmarks.generalisation.constants import use_constant

    for variant in variants:
        if variant.is_constant:
            use_constant(MODULE, variant.name, variant.value)
    from benchmarks.generalisation.effects import list_runs, measure_setting

    torch.set_num_threads(1)
    for setting, dataset, size, seed in list_runs(options):
        measure_setting(setting, dataset, size, seed, variants, options.out)
    return ", ".join(variant.folder for variant in variants)


def print_table(options: argparse.Namespace) -> None:
    """The table of the variants that are finished."""
    from benchmarks.generalisation.effects import list_runs, make_table
    from fedgsca.lab.table import to_markdown
    from fedgsca.support.files import write_atomic

    all_variants = [*list_option_variants(), *list_constant_variants()]
    variants = [DEFAULT, *choose_variants(all_variants, options)]
    runs = [(setting, seed) for setting, _, _, seed in list_runs(options)]
    text = to_markdown([make_table(options.out, runs, variants)]) + "\n"
    write_atomic(options.out / "table.md", text.encode())
    print(text, end="")


if __name__ == "__main__":
    main()
