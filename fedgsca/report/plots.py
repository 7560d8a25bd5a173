"""Plots of one run's training. Each function returns an inline SVG; the page puts what it shows into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.report.plot_style import (
    MAIN,
    MUTED,
    NOISY,
    PAPER,
    SHADE,
    SMALL,
    TOKENS,
    canvas,
    end_labels,
    round_axis,
    scale_y,
    shorten,
    styled,
    svg,
)
from fedgsca.report.run_reader import LAST, Run, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def learning_curve(run: Run, *, wide: bool = True) -> str:
    """Macro F1 per round, with warm-up, learning-rate steps, guard events and refused updates."""
    lines = run.evaluated
    x = [int(line["round"]) + 1 for line in lines]
    f1 = [float(line["f1"]) for line in lines]
    val = [
        (int(line["round"]) + 1, value)
        for line in lines
        if (value := number(line.get("val_f1"))) is not None
    ]
    right = (122 if val else 82) if wide else 14  # on a phone the legend has to do
    figure, axes = canvas(1000 if wide else 440, 350 if wide else 300, left=40, right=right, top=34)
    low, high = min([*f1, *(v for _, v in val)]), max([*f1, *(v for _, v in val)])
    pad = max(high - low, 4) * 0.12
    axes.set_ylim(max(low - 1.6 * pad, -1), min(high + pad, 101))
    if run.selecting_from:
        axes.axvspan(axes.get_xlim()[0] - run.planned, run.selecting_from + 0.5, color=SHADE, lw=0)
        axes.annotate(
            "warm-up",
            (0.012, 0.965),
            xycoords="axes fraction",
            va="top",
            color=MUTED,
            fontsize=SMALL,
        )
    _lr_steps(run, axes)
    if val:
        axes.plot(*zip(*val, strict=True), color=TOKENS["s2"], lw=1.7, ls=(0, (5, 2)))
    tail = min(LAST, len(f1))
    mean = float(np.mean(f1[-tail:]))  # the headline
    axes.plot(
        [x[-tail] - 0.3, x[-1] + 0.3],
        [mean, mean],
        color=MAIN,
        lw=9,
        alpha=0.25,
        solid_capstyle="butt",
    )
    axes.plot(x, f1, color=MAIN, marker="o" if len(x) < 30 else None, ms=6, mec=PAPER, mew=1.2)
    best = int(np.argmax(f1))
    axes.plot(x[best], f1[best], "o", ms=11, mfc="none", mec=MAIN, mew=1.8)
    ends = [(f1[-1], f"test {f1[-1]:.1f}", MAIN)] + (
        [(val[-1][1], f"validation {val[-1][1]:.1f}", TOKENS["s2"])] if val else []
    )
    if wide:
        end_labels(axes, ends, room=0.065)
    _events(run, axes)
    axes.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    round_axis(axes, max(run.planned, x[-1]), ticks=7 if wide else 5)
    axes.set_title("Macro F1 on the test set, percent")
    return svg(figure, f"learning-{wide}")


def _lr_steps(run: Run, axes: Axes) -> None:
    """A dotted line where the learning rate changes, with the new rate above it."""
    rates = [
        (int(line["round"]) + 1, value)
        for line in run.metrics
        if (value := number(line.get("lr"))) is not None
    ]
    for (_, before), (at, after) in pairwise(rates):
        if after != before:
            axes.axvline(at - 0.5, color=MUTED, lw=1, ls=(0, (1, 2.5)))
            axes.annotate(
                f"lr {after:g}",
                (at - 0.5, 1.015),
                xycoords=("data", "axes fraction"),
                ha="center",
                color=MUTED,
                fontsize=SMALL,
            )


def _events(run: Run, axes: Axes) -> None:
    """Marks on the ground line: triangles where the guard stepped in, crosses where an update was refused."""
    low, high = axes.get_ylim()
    for rounds, marker, height in (
        (guarded_rounds(run), "^", 0.03),
        (refused_rounds(run), "X", 0.085),
    ):
        if rounds:
            axes.plot(
                rounds,
                [low + height * (high - low)] * len(rounds),
                marker,
                ls="",
                color=NOISY,
                ms=9,
                mec=PAPER,
                mew=0.8,
            )


def guarded_rounds(run: Run) -> list[int]:
    return [
        int(line["round"]) + 1
        for line in run.metrics
        if any(site.get("guard") for site in line.get("sites", {}).values())
    ]


def refused_rounds(run: Run) -> list[int]:
    return [int(line["round"]) + 1 for line in run.metrics if line.get("refused")]


@styled
def stability_curve(run: Run, *, wide: bool = True) -> str:
    """Mean squared distance that sites move from the model they received; logarithmic where it spans orders of magnitude."""
    points = [
        (int(line["round"]) + 1, value)
        for line in run.metrics
        if (value := number(line.get("stability"))) is not None
    ]
    figure, axes = canvas(1000 if wide else 440, 250, left=52)
    axes.plot(
        *zip(*points, strict=True),
        color=MAIN,
        marker="o" if len(points) < 30 else None,
        ms=5,
        mec=PAPER,
        mew=1,
    )
    scale_y(axes, [value for _, value in points])
    round_axis(axes, run.planned)
    axes.set_title("Mean ‖θₖ − θ‖² over the sites")
    return svg(figure, f"stability-{wide}")


@styled
def class_thresholds(
    by_site: Mapping[str, Sequence[float | None]], classes: Sequence[str], *, wide: bool = True
) -> str:
    """The confidence that a pseudo-label of each class needs (Eq. 10-11): a dot per site, a bar over their range."""
    values = np.array(
        list(by_site.values()), dtype=np.float64
    )  # (sites, C); NaN: not told, too few images of the class
    told = np.isfinite(values).any(axis=0)
    figure, axes = canvas(
        1000 if wide else 440,
        60 + 26 * len(classes),
        left=230 if wide else 140,
        right=56,
        top=10,
        bottom=40,
    )
    places = np.arange(len(classes))[::-1]
    low, high = (
        np.array([side(column[np.isfinite(column)]) for column in values.T[told]])
        for side in (np.min, np.max)
    )
    axes.hlines(places[told], low, high, color=TOKENS["s0"], lw=9, alpha=0.25)
    for row in values:
        axes.plot(
            row,
            places,
            "o",
            ms=7,
            color=MAIN,
            alpha=0.8 if len(values) < 10 else 0.4,
            mec=PAPER,
            mew=0.8,
        )
    axes.set_yticks(places, [shorten(name, 32 if wide else 19) for name in classes])
    for place, column in zip(places, values.T, strict=True):
        mean = f"{np.nanmean(column):.2f}" if np.isfinite(column).any() else "few"
        axes.text(1.01, place, mean, va="center", color=MUTED, fontsize=SMALL)
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.7, len(classes) - 0.3)
    axes.grid(True, axis="x")
    axes.set_xlabel("Confidence needed (right: mean)")
    return svg(figure, f"thresholds-{wide}")
