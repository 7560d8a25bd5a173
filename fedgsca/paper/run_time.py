"""What an experiment costs, before and while it runs.

Paper scale, before: the paper's 133 seconds per FedAvg round (Kvasir-Capsule, two RTX 3090) times a method's passes over the data
relative to FedAvg's and the number of images. An estimate, not a measurement. While it runs: what the finished cells took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from fedgsca.grid.runner import Cell
from fedgsca.paper.experiments import DATASETS, SEEDS, Grid
from fedgsca.paper.printed_numbers import printed
from fedgsca.paper.scales import PAPER_ROUNDS

# Passes over a site's data per round; a forward pass counts 1, a training pass 3. FedCorr and FedNoRo: the mean over their stages.
PASSES = {
    "fedavg": 3.0,
    "fedprox": 3.0,
    "fedrobust": 3.5,
    "fedcorr": 3.1,
    "fedgp": 4.0,
    "fedfixer": 6.0,
    "fednoro": 3.7,
    "fedgsca": 4.2,
}


def paper_hours(grid: Grid, seeds: int = SEEDS) -> float:
    """Hours on the paper's machine for all cells."""
    per_pass = (
        printed("efficiency").rows["fedavg"]["0-S40-P20-C20"]["seconds_per_round"].mean
        / PASSES["fedavg"]
    )
    seconds = 0.0
    for column in grid.columns:
        images = DATASETS[column.dataset].train / DATASETS["kvasir"].train
        seconds += (
            sum(per_pass * PASSES[variant.method] * images for variant in grid.variants(column))
            * PAPER_ROUNDS
        )
    return seeds * seconds / 3600


def seconds_left(cells: Iterable[Cell], results: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Seconds that the unfinished cells will take if they go on like the finished ones of their method; None before the first.

    A method without a finished cell is judged by the others and its passes over the data.
    """
    cells = list(cells)
    per_pass: dict[str, list[float]] = {}
    for cell in cells:
        if cell.name in results:
            passes = PASSES.get(cell.config.method, 3.0)
            per_pass.setdefault(cell.config.method, []).append(
                float(results[cell.name]["seconds"]["total"]) / passes
            )
    if not per_pass:
        return None
    means = {method: fmean(values) for method, values in per_pass.items()}
    rest = {cell.name: cell.config.method for cell in cells if cell.name not in results}
    return sum(
        PASSES.get(method, 3.0) * means.get(method, fmean(means.values()))
        for method in rest.values()
    )
