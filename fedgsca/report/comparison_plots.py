"""Curves over rounds of several seeds: their mean as a line, their range as a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedgsca.experiment.records import finite
from fedgsca.report.palette import slot_colour, slot_line_style
from fedgsca.report.run_reader import LoadedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# round, from 1 -> one value per seed
RoundCurves = Mapping[int, Sequence[float]]


def collect_curves(runs: Sequence[LoadedRun], field: Literal["f1", "stability"]) -> RoundCurves:
    """One number of the log over rounds, as far as all seeds have it."""
    values_of_round: dict[int, list[float]] = {}
    for run in runs:
        for record in run.metrics:
            value = finite(getattr(record, field))
            if value is not None:
                values_of_round.setdefault(record.round + 1, []).append(value)
    num_seeds = max(map(len, values_of_round.values()), default=0)
    curves = {}
    for number in sorted(values_of_round):
        if len(values_of_round[number]) == num_seeds:
            curves[number] = values_of_round[number]
    return curves


def curve_values(curves: RoundCurves, after_round: float = 0) -> list[float]:
    """All values of all seeds in the rounds after `after_round`."""
    values: list[float] = []
    for number, seed_values in curves.items():
        if number > after_round:
            values += seed_values
    return values


def draw_mean_curve(axes: Axes, curves: RoundCurves, slot: int) -> float:
    """Draw mean and range in the colour and dash of a slot. Returns the last value of the mean."""
    rounds = list(curves)
    means = [float(np.mean(curves[number])) for number in rounds]
    if max(map(len, curves.values())) > 1:
        low = [min(curves[number]) for number in rounds]
        high = [max(curves[number]) for number in rounds]
        axes.fill_between(rounds, low, high, color=slot_colour(slot), alpha=0.16, lw=0)
    # the first slot is FedGSCA, in front of the others
    width, layer = (2.6, 3) if slot == 0 else (2, 2)
    axes.plot(
        rounds,
        means,
        color=slot_colour(slot),
        ls=slot_line_style(slot),
        lw=width,
        zorder=layer,
    )
    return means[-1]
