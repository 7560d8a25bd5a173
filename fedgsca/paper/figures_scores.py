"""A figure of scores: the paper's beside ours, with every seed."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from fedgsca.paper.captions import all_gaps, source
from fedgsca.paper.figure_output import Drawing, Frame, make_drawing, make_facets
from fedgsca.paper.ranking import TableEntry, headline_groups
from fedgsca.paper.table_result import TableResult
from fedgsca.report.palette import GRID, INK, MAIN, PAPER
from fedgsca.report.plot_style import shorten
from fedgsca.support.text import signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def _legend() -> list[Line2D]:
    """Handles: hollow is the paper, filled is ours."""
    from matplotlib.lines import Line2D

    paper = Line2D([], [], marker="o", ls="", mfc=PAPER, mec=INK, mew=1.6, ms=8, label="the paper")
    ours = Line2D([], [], marker="o", ls="", color=MAIN, ms=8, label="ours, with each seed")
    return [paper, ours]


def draw_scores(result: TableResult) -> list[Drawing]:
    """Every row's number in the paper and here on one axis, one facet per column."""
    groups = [group for group in headline_groups(result) if group.has_ours]
    if not groups:
        return []

    def sketch(wide: bool) -> Figure:
        rows = len(result.rows)
        frame = Frame(70 + 25 * rows, margin_left=104, margin_bottom=34)
        figure, all_axes = make_facets(
            len(groups), frame, source(result), wide=wide, legend=_legend()
        )
        for axes, group in zip(all_axes, groups, strict=True):
            for i, entry in enumerate(group.entries):
                _draw_pair(axes, rows - 1 - i, entry)
            labels = [shorten(row.label, 14) for row in reversed(result.rows)]
            axes.set_yticks(range(rows), labels)
            axes.set_ylim(-0.6, rows - 0.4)
            axes.grid(True, axis="x")
            axes.grid(False, axis="y")
            axes.set_title(f"{group.column}: {group.metric.label}, percent")
        return figure

    alt = "Our numbers."
    gaps = all_gaps(groups)
    if gaps:
        mean_gap = signed(fmean(gaps), 2)
        alt = f"Paper and ours beside each other; the mean gap is {mean_gap} points."
    caption = "Hollow: the paper, with its standard deviation. Filled: ours, with every seed."
    return [make_drawing(sketch, "scores", "Paper and ours", alt, caption)]


def _draw_pair(axes: Axes, y: int, entry: TableEntry) -> None:
    if entry.paper and entry.ours:
        axes.plot([entry.paper.mean, entry.ours.mean], [y, y], color=GRID, lw=5, zorder=1)
    if entry.ours:
        values = list(entry.ours.values.values())
        axes.plot(values, [y] * len(values), "|", color=MAIN, ms=9, mew=1.2, alpha=0.7)
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
