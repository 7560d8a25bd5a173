"""Figures with lines: stability over rounds, RCL against UCL over noise levels. Means and all seeds; no smoothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from fedgsca.paper.captions import source
from fedgsca.paper.figure_output import Drawing, Frame, drawing, facets
from fedgsca.paper.ranking import Group, group
from fedgsca.paper.table_result import Row, TableResult
from fedgsca.report.comparison_plots import Curves, curve
from fedgsca.report.plot_style import PAPER, SLOTS, colour, dash, end_labels, round_axis, scale_y

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UCL = "ucl"
BySeed = Mapping[str, Sequence[float]]  # seed -> value per round


def places(rows: Sequence[Row]) -> dict[str, int]:
    """A colour and dash per row: a method's own, and what is left for variants."""
    known = {row.key: SLOTS.index(row.key) for row in rows if row.key in SLOTS}
    free = [i for i in (0, 2, 3, 4, 6, 7, 1, 5) if i not in known.values()]
    return known | {
        row.key: free[i % len(free)]
        for i, row in enumerate(row for row in rows if row.key not in known)
    }


def over_rounds(values: BySeed) -> Curves:
    """round, from 1 -> one value per seed, as far as all seeds have come."""
    shortest = min((len(curve) for curve in values.values() if curve), default=0)
    return {at + 1: [curve[at] for curve in values.values() if curve] for at in range(shortest)}


def stability(result: TableResult) -> list[Drawing]:
    """How far the sites move from the model they received, per round."""
    series: Mapping[str, Mapping[str, BySeed]] = result.series.get("stability") or {}
    found = {
        column: {key: c for key, v in here.items() if (c := over_rounds(v))}
        for column, here in series.items()
    }
    found = {column: here for column, here in found.items() if here}
    if not found:
        return []
    slots, labels = places(result.rows), {row.key: row.label for row in result.rows}

    def sketch(wide: bool) -> Figure:
        alone = wide and len(found) == 1
        frame = Frame(360, left=52, right=140, top=34, width=760 if alone else 0)
        figure, made = facets(len(found), frame, source(result), wide=wide)
        for axes, (column, here) in zip(made, found.items(), strict=True):
            ends = [
                (curve(axes, here[key], slots[key]), labels[key], colour(slots[key]))
                for key in labels
                if key in here
            ]
            scale_y(
                axes,
                [
                    value
                    for points in here.values()
                    for values in points.values()
                    for value in values
                ],
            )
            round_axis(
                axes, max(at for points in here.values() for at in points), ticks=7 if alone else 5
            )
            axes.set_title(f"{column}: mean ‖θₖ − θ‖² over the sites")
            end_labels(axes, ends, room=0.06)
        return figure

    last = ", ".join(
        f"{labels[key]} {fmean(points[max(points)]):.3g}"
        for key, points in next(iter(found.values())).items()
    )
    caption = "The paper's stability metric: squared distance of the sites' models from the model they received; lower is steadier."
    note = "Line: mean over the seeds. Band: lowest to highest seed. No smoothing."
    return [
        drawing(
            sketch,
            "stability",
            "Stability of the training",
            f"{caption} Last round: {last}.",
            f"{caption} {note}",
        )
    ]


def levels(result: TableResult) -> list[Drawing]:
    """RCL against UCL over the noise levels: those columns of the experiment in which UCL was run."""
    chosen = [row for row in result.rows if row.key in (result.reference, UCL)]
    groups = [
        group(result, column, result.metrics[0])
        for column in result.columns
        if any(row.key == UCL and row.ours.get(column) for row in chosen)
    ]
    if not groups:
        return []

    def sketch(wide: bool) -> Figure:
        figure, made = facets(
            1,
            Frame(360, left=50, right=150, top=34, width=760 if wide else 0),
            source(result),
            wide=wide,
        )
        _levels(made[0], groups, chosen)
        return figure

    about = groups[0].about.label
    told = "; ".join(
        f"{here.column}: "
        + ", ".join(f"{e.row.label} {e.ours.mean:.2f}" for e in here.entries if e.ours)
        for here in groups
    )
    hollow = " Hollow: the paper." if any(here.has_paper for here in groups) else ""
    caption = (
        f"{about} at every noise level. Line: mean over the seeds; small dots: the seeds.{hollow}"
    )
    return [drawing(sketch, "rcl-ucl", "RCL against UCL", f"{about}. {told}.", caption)]


def _levels(axes: Axes, groups: Sequence[Group], rows: Sequence[Row]) -> None:
    slots, ends = places(rows), []
    for row in rows:
        label = row.label if row.key == UCL or row.key == "rcl" else f"{row.label} (RCL)"
        shade, line = colour(slots[row.key]), dash(slots[row.key])
        points = [
            (i, next(entry for entry in here.entries if entry.row.key == row.key))
            for i, here in enumerate(groups)
        ]
        means = [(i, entry.ours.mean) for i, entry in points if entry.ours]
        axes.plot(
            [x for x, _ in means],
            [y for _, y in means],
            color=shade,
            ls=line,
            lw=2.4,
            marker="o",
            ms=8,
            mec=PAPER,
            zorder=3,
        )
        for i, entry in points:
            if entry.ours:
                axes.plot(
                    [i] * len(entry.ours.values),
                    list(entry.ours.values.values()),
                    "o",
                    color=shade,
                    ms=3.5,
                    alpha=0.55,
                )
            if entry.paper:
                axes.plot(i, entry.paper.mean, "o", mfc=PAPER, mec=shade, mew=1.6, ms=7)
        if means:
            ends.append((means[-1][1], label, shade))
    parts = [
        here.column.rpartition(" ") for here in groups
    ]  # "kvasir S10": the data set goes to the axis, if it is one
    shared = parts[0][0] if len({part[0] for part in parts}) == 1 else ""
    names = [
        level if shared else here.column for here, (_, _, level) in zip(groups, parts, strict=True)
    ]
    axes.set_xticks(range(len(groups)), names, rotation=0 if sum(map(len, names)) < 60 else 20)
    axes.set_xlim(-0.3, len(groups) - 0.7)
    axes.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    axes.set_xlabel(f"Label noise ({shared})" if shared else "Label noise")
    axes.set_title(f"{groups[0].about.label}, percent")
    end_labels(axes, ends, room=0.06)
