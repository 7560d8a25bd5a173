"""Plots of a comparison: methods laid over each other, each with its own colour and dash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.report.plot_style import (
    MUTED,
    PAPER,
    canvas,
    colour,
    dash,
    end_labels,
    round_axis,
    scale_y,
    slot,
    styled,
    svg,
)
from fedgsca.report.run_reader import Run, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = Mapping[int, Sequence[float]]  # round, from 1 -> one value per seed


def curves_of(runs: Sequence[Run], key: str) -> Curves:
    """One number of the log over rounds, as far as all seeds have it."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for line in run.metrics:
            value = number(line.get(key))
            if value is not None:
                found.setdefault(int(line["round"]) + 1, []).append(value)
    most = max(map(len, found.values()), default=0)
    return {at: found[at] for at in sorted(found) if len(found[at]) == most}


def curve(axes: Axes, points: Curves, index: int) -> float:
    """The mean over seeds as a line, their range as a band, in the colour and dash of this place; the mean's last value."""
    x = list(points)
    mean = [float(np.mean(points[at])) for at in x]
    if max(map(len, points.values())) > 1:
        low, high = [min(points[at]) for at in x], [max(points[at]) for at in x]
        axes.fill_between(x, low, high, color=colour(index), alpha=0.16, lw=0)
    axes.plot(
        x,
        mean,
        color=colour(index),
        ls=dash(index),
        lw=2.6 if index == 0 else 2,
        zorder=3 if index == 0 else 2,
    )
    return mean[-1]


@styled
def overlay(
    curves: Mapping[str, tuple[str, Curves]], title: str, name: str, *, wide: bool, score: bool
) -> str:
    """method -> (label, curves): mean over seeds, with a band from the lowest to the highest one."""
    figure, axes = canvas(1000, 360, left=46, right=122) if wide else canvas(460, 290, left=46)
    last = max(at for _, points in curves.values() for at in points)
    ends = []
    for method, (label, points) in curves.items():
        i = slot(method)
        ends.append((curve(axes, points, i), label, colour(i)))
    everything = [
        value for _, points in curves.values() for values in points.values() for value in values
    ]
    if score:
        # the steep first rounds would press the differences together: let the curves enter from below
        settled = [
            v
            for _, points in curves.values()
            for at, values in points.items()
            if at > last / 8
            for v in values
        ] or everything
        pad = 0.06 * max(max(settled) - min(settled), 4)
        axes.set_ylim(min(settled) - pad, min(max(settled) + pad, 101))
    else:
        scale_y(axes, everything)
    round_axis(axes, last)
    axes.set_title(title)
    if wide and score:
        end_labels(axes, ends, room=0.06)
    return svg(figure, f"{name}-{wide}")


@styled
def found_against_present(points: Mapping[str, Sequence[tuple[float, float]]], name: str) -> str:
    """noise -> (share wrong, share flagged) of every site and seed; on the diagonal, as much is found as is there."""
    figure, axes = canvas(490, 400, left=54, top=12)
    top = 100 * min(
        1.0,
        max(0.1, 1.1 * max(value for pairs in points.values() for pair in pairs for value in pair)),
    )
    axes.plot([0, top], [0, top], color=MUTED, lw=1.2, ls=(0, (4, 3)))
    for i, pairs in enumerate(points.values()):
        x, y = zip(*pairs, strict=True)
        axes.plot(
            [100 * v for v in x],
            [100 * v for v in y],
            "o",
            ms=9,
            color=colour(i),
            alpha=0.8,
            mec=PAPER,
            mew=1,
        )
    axes.set_xlim(-0.03 * top, top)
    axes.set_ylim(-0.03 * top, top)
    axes.grid(True, axis="x")
    for axis, text in (
        (axes.xaxis, "Labels that are wrong"),
        (axes.yaxis, "Labels that are flagged"),
    ):
        axis.set_major_formatter("{x:.0f} %")
        axis.set_label_text(text)
    return svg(figure, name)
