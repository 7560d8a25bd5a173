"""A figure of scores: the paper's beside ours, with every seed."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedgsca.paper.captions import source
from fedgsca.paper.figure_output import Drawing, Frame, drawing, facets
from fedgsca.paper.ranking import Entry, groups
from fedgsca.paper.table_result import TableResult
from fedgsca.report.plot_style import GRID, INK, MAIN, PAPER, shorten
from fedgsca.report.sentences import signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _keys() -> list[Any]:
    """Handles of a legend: hollow is the paper, filled is us."""
    from matplotlib.lines import Line2D

    hollow = Line2D([], [], marker="o", ls="", mfc=PAPER, mec=INK, mew=1.6, ms=8, label="the paper")
    return [
        hollow,
        Line2D([], [], marker="o", ls="", color=MAIN, ms=8, label="ours, with each seed"),
    ]


def beside_paper(result: TableResult) -> list[Drawing]:
    """Every row's number in the paper and here on one axis, one facet per column."""
    known = [here for here in groups(result) if any(entry.ours for entry in here.entries)]
    if not known:
        return []

    def sketch(wide: bool) -> Figure:
        rows = len(result.rows)
        frame = Frame(70 + 25 * rows, left=104, bottom=34)
        figure, made = facets(len(known), frame, source(result), wide=wide, legend=_keys())
        for axes, here in zip(made, known, strict=True):
            for i, entry in enumerate(here.entries):
                _pair(axes, rows - 1 - i, entry)
            axes.set_yticks(range(rows), [shorten(row.label, 14) for row in reversed(result.rows)])
            axes.set_ylim(-0.6, rows - 0.4)
            axes.grid(True, axis="x")
            axes.grid(False, axis="y")
            axes.set_title(f"{here.column}: {here.about.label}, percent")
        return figure

    gaps = [entry.gap for here in known for entry in here.entries if entry.gap is not None]
    alt = (
        f"Paper and ours beside each other; the mean gap is {signed(fmean(gaps), 2)} points."
        if gaps
        else "Our numbers."
    )
    return [
        drawing(
            sketch,
            "scores",
            "Paper and ours",
            alt,
            "Hollow: the paper, with its standard deviation. Filled: ours, with every seed.",
        )
    ]


def _pair(axes: Axes, y: int, entry: Entry) -> None:
    if entry.paper and entry.ours:
        axes.plot([entry.paper.mean, entry.ours.mean], [y, y], color=GRID, lw=5, zorder=1)
    if entry.ours:
        axes.plot(
            list(entry.ours.values.values()),
            [y] * len(entry.ours.values),
            "|",
            color=MAIN,
            ms=9,
            mew=1.2,
            alpha=0.7,
        )
        axes.plot(entry.ours.mean, y, "o", color=MAIN, ms=8, mec=PAPER, mew=1, zorder=4)
    if entry.paper:
        axes.errorbar(
            entry.paper.mean,
            y,
            xerr=entry.paper.std or 0,
            fmt="o",
            color=INK,
            mfc="none",
            mew=1.6,
            ms=9,
            elinewidth=1.2,
            zorder=5,
        )
