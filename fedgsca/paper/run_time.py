"""What an experiment costs, before and while it runs.

Before, at paper scale: the paper's 133 seconds per FedAvg round (Kvasir-Capsule, two RTX 3090)
times the cost of a method (`Card.passes`) relative to FedAvg's, and the number of images. This is
an estimate, not a measurement. While it runs: what the finished runs took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from fedgsca.experiment.records import RunResult
from fedgsca.grid.runner import GridCell
from fedgsca.paper.experiments import DATASETS, SEEDS, Grid
from fedgsca.paper.printed_numbers import printed
from fedgsca.paper.scales import PAPER_ROUNDS


def passes_of(method: str) -> float:
    """The cost of a method's round in passes over the data."""
    from fedgsca.methods.base import load_methods

    return load_methods()[method].card.passes


def paper_hours(grid: Grid, seeds: int = SEEDS) -> float:
    """Hours on the paper's machine for all runs."""
    fedavg_round = printed("efficiency").rows["fedavg"]["0-S40-P20-C20"]["seconds_per_round"]
    seconds_per_pass = fedavg_round.mean / passes_of("fedavg")
    seconds = 0.0
    for column in grid.columns:
        images = DATASETS[column.dataset].num_train / DATASETS["kvasir"].num_train
        passes = sum(passes_of(variant.method) for variant in grid.variants(column))
        seconds += seconds_per_pass * passes * images * PAPER_ROUNDS
    return seeds * seconds / 3600


def seconds_left(cells: Iterable[GridCell], results: Mapping[str, RunResult]) -> float | None:
    """Seconds that the unfinished runs will probably take; None before the first finished run.

    A run takes as long as the finished runs of its method. For a method without a finished run, the
    other methods and the number of passes over the data decide.
    """
    seconds_per_pass: dict[str, list[float]] = {}
    unfinished_methods: dict[str, str] = {}
    for cell in cells:
        method = cell.config.method
        if cell.name in results:
            seconds = results[cell.name].seconds.total
            seconds_per_pass.setdefault(method, []).append(seconds / passes_of(method))
        else:
            unfinished_methods[cell.name] = method
    if not seconds_per_pass:
        return None
    means = {method: fmean(values) for method, values in seconds_per_pass.items()}
    overall_mean = fmean(means.values())
    total = 0.0
    for method in unfinished_methods.values():
        total += passes_of(method) * means.get(method, overall_mean)
    return total
