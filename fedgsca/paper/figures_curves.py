"""Figures with lines: stability over rounds, and RCL against UCL over noise levels.

Means and all seeds; no smoothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from fedgsca.paper.captions import source
from fedgsca.paper.figure_output import Drawing, Frame, make_drawing, make_facets
from fedgsca.paper.ranking import ScoreGroup, TableEntry, score_group
from fedgsca.paper.table_result import SeedCurves, TableResult, TableRow
from fedgsca.report.comparison_plots import RoundCurves, draw_mean_curve
from fedgsca.report.palette import PAPER, assign_slots, slot_colour, slot_line_style
from fedgsca.report.plot_style import (
    LineEnd,
    format_round_axis,
    label_line_ends,
    scale_value_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UCL = "ucl"


def over_rounds(curves: SeedCurves) -> RoundCurves:
    """Round, from 1 -> one value per seed; as far as all seeds have come."""
    seed_curves = [curve for curve in curves.values() if curve]
    rounds = range(1, 1 + min(map(len, seed_curves), default=0))
    return dict(zip(rounds, zip(*seed_curves, strict=False), strict=False))


def draw_stability(result: TableResult) -> list[Drawing]:
    """The distance of the sites from the model that they received, per round."""
    curves = _stability_curves(result)
    if not curves:
        return []
    slots = assign_slots(row.key for row in result.rows)
    labels = {row.key: row.label for row in result.rows}

    def sketch(wide: bool) -> Figure:
        single = wide and len(curves) == 1
        width = 760 if single else 0
        frame = Frame(360, margin_left=52, margin_right=140, margin_top=34, width=width)
        figure, all_axes = make_facets(len(curves), frame, source(result), wide=wide)
        for axes, (column, by_row) in zip(all_axes, curves.items(), strict=True):
            ends = []
            for key, label in labels.items():
                if key in by_row:
                    value = draw_mean_curve(axes, by_row[key], slots[key])
                    ends.append(LineEnd(value, label, slot_colour(slots[key])))
            _scale_axes(axes, list(by_row.values()), ticks=7 if single else 5)
            axes.set_title(f"{column}: mean ‖θₖ − θ‖² over the sites")
            label_line_ends(axes, ends, room=0.06)
        return figure

    numbers = []
    for key, points in next(iter(curves.values())).items():
        numbers.append(f"{labels[key]} {fmean(points[max(points)]):.3g}")
    caption = (
        "The paper's stability metric: squared distance of the sites' models from the model they "
        "received; lower is steadier."
    )
    alt = f"{caption} Last round: {', '.join(numbers)}."
    caption += " Line: mean over the seeds. Band: lowest to highest seed. No smoothing."
    return [make_drawing(sketch, "stability", "Stability of the training", alt, caption)]


def _stability_curves(result: TableResult) -> dict[str, dict[str, RoundCurves]]:
    """[column][row]; without rows and columns that have no curve yet."""
    all_curves: dict[str, dict[str, RoundCurves]] = {}
    for column, by_row in result.series.stability.items():
        for key, seed_curves in by_row.items():
            curves = over_rounds(seed_curves)
            if curves:
                all_curves.setdefault(column, {})[key] = curves
    return all_curves


def _scale_axes(axes: Axes, curves: Sequence[RoundCurves], ticks: int) -> None:
    values: list[float] = []
    for curve in curves:
        for points in curve.values():
            values += points
    scale_value_axis(axes, values)
    format_round_axis(axes, max(map(max, curves)), ticks=ticks)


def draw_noise_levels(result: TableResult) -> list[Drawing]:
    """RCL against UCL over the noise levels: the columns in which UCL was run."""
    rows = [row for row in result.rows if row.key in (result.reference, UCL)]
    columns = _ucl_columns(rows, result.columns)
    groups = [score_group(result, column, result.metrics[0]) for column in columns]
    if not groups:
        return []

    def sketch(wide: bool) -> Figure:
        width = 760 if wide else 0
        frame = Frame(360, margin_left=50, margin_right=150, margin_top=34, width=width)
        figure, all_axes = make_facets(1, frame, source(result), wide=wide)
        _draw_levels(all_axes[0], groups, rows)
        return figure

    metric = groups[0].metric.label
    hollow = " Hollow: the paper." if any(group.has_paper for group in groups) else ""
    caption = (
        f"{metric} at every noise level. Line: mean over the seeds; small dots: the seeds.{hollow}"
    )
    alt = f"{metric}. {'; '.join(map(_level_text, groups))}."
    return [make_drawing(sketch, "rcl-ucl", "RCL against UCL", alt, caption)]


def _ucl_columns(rows: Sequence[TableRow], columns: Sequence[str]) -> list[str]:
    for row in rows:
        if row.key == UCL:
            return [column for column in columns if row.ours.get(column)]
    return []


def _level_text(group: ScoreGroup) -> str:
    numbers = [f"{e.row.label} {e.ours.mean:.2f}" for e in group.entries if e.ours]
    return f"{group.column}: {', '.join(numbers)}"


def _draw_levels(axes: Axes, groups: Sequence[ScoreGroup], rows: Sequence[TableRow]) -> None:
    slots = assign_slots(row.key for row in rows)
    ends = []
    for row in rows:
        label = row.label if row.key in (UCL, "rcl") else f"{row.label} (RCL)"
        entries: dict[int, TableEntry] = {}
        for i, group in enumerate(groups):
            entry = group.entry(row.key)
            if entry is not None:
                entries[i] = entry
        means = _draw_level_line(axes, entries, slots[row.key])
        if means:
            ends.append(LineEnd(means[-1], label, slot_colour(slots[row.key])))
    dataset, names = _level_names(groups)
    axes.set_xticks(range(len(groups)), names, rotation=0 if sum(map(len, names)) < 60 else 20)
    axes.set_xlim(-0.3, len(groups) - 0.7)
    axes.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    axes.set_xlabel(f"Label noise ({dataset})" if dataset else "Label noise")
    axes.set_title(f"{groups[0].metric.label}, percent")
    label_line_ends(axes, ends, room=0.06)


def _draw_level_line(axes: Axes, entries: Mapping[int, TableEntry], slot: int) -> list[float]:
    """One row over the noise levels; returns the means."""
    colour = slot_colour(slot)
    means = {i: entry.ours.mean for i, entry in entries.items() if entry.ours}
    axes.plot(
        list(means),
        list(means.values()),
        color=colour,
        ls=slot_line_style(slot),
        lw=2.4,
        marker="o",
        ms=8,
        mec=PAPER,
        zorder=3,
    )
    for i, entry in entries.items():
        if entry.ours:
            values = list(entry.ours.values.values())
            axes.plot([i] * len(values), values, "o", color=colour, ms=3.5, alpha=0.55)
        if entry.paper:
            axes.plot(i, entry.paper.mean, "o", mfc=PAPER, mec=colour, mew=1.6, ms=7)
    return list(means.values())


def _level_names(groups: Sequence[ScoreGroup]) -> tuple[str, list[str]]:
    """The data set of "kvasir S10" for the axis, if it is the same for all, and the tick labels."""
    parts = [group.column.rpartition(" ") for group in groups]
    datasets = {dataset for dataset, _, _ in parts}
    dataset = parts[0][0]
    if len(datasets) > 1 or not dataset:
        return "", [group.column for group in groups]
    return dataset, [level for _, _, level in parts]
