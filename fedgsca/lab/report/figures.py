"""Figures for a publication: PDF and SVG in one and two columns, and their numbers as csv.

    figures/scores.csv                               macro F1 of methods and noises
    figures/scores-3.5in.pdf, scores-7in.pdf, ...    the same as vector drawings
    figures/learning-1.csv, ...                      curves, one drawing per noise
    figures/confusion.csv, ...                       of a single run

PDF files contain their fonts, and SVG files outlines instead of text, so that both look the same
everywhere. Methods differ in colour, lightness, dashes and marker: grey prints keep them apart.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedgsca.lab.report.comparison_page import (
    LoadedComparison,
    RoundCurves,
    collect_curves,
    draw_mean,
    score_range,
)
from fedgsca.lab.report.comparison_rows import ComparisonRow
from fedgsca.lab.report.elements import row_shares
from fedgsca.lab.report.plots import (
    CLEAN,
    GRID,
    INK,
    NUM_COLOURS,
    PAPER,
    STYLE,
    format_round_axis,
    method_slot,
    shorten,
    slot_colour,
)
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.support.csv_table import render_csv
from fedgsca.support.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# inches: a column of a page with two columns, and the whole page
WIDTHS = {"3.5in": 3.5, "7in": 7.0}
_MARKERS = "os^DvPX*"
_PRINT_STYLE: dict[str, Any] = {
    **STYLE,
    "svg.fonttype": "path",
    "svg.hashsalt": "fedgsca",
    "pdf.fonttype": 42,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.left": True,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "axes.titlepad": 4,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@dataclass(frozen=True)
class PrintFigure:
    """A drawing by its name, what draws it on axes, and the numbers in it."""

    name: str
    draw: Callable[[Axes], None]
    # a head and rows
    data: Sequence[Sequence[object]]
    # height as a share of the width, at 3.5 and at 7 inches
    heights: tuple[float, float] = (0.72, 0.42)


def write_print_figures(figures: Sequence[PrintFigure], folder: Path) -> list[Path]:
    """Write every figure in every width and form, and return the paths."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    paths = []
    for figure in figures:
        paths.append(folder / f"{figure.name}.csv")
        write_atomic(paths[-1], render_csv(figure.data).encode())
        for (width_name, width), height in zip(WIDTHS.items(), figure.heights, strict=True):
            with mpl.rc_context(_PRINT_STYLE):  # type: ignore[arg-type]
                canvas = Figure(figsize=(width, height * width), layout="constrained")
                figure.draw(canvas.add_subplot())
                for form in ("pdf", "svg"):
                    content = io.BytesIO()
                    date_key = "CreationDate" if form == "pdf" else "Date"
                    canvas.savefig(content, format=form, metadata={date_key: None})
                    paths.append(folder / f"{figure.name}-{width_name}.{form}")
                    write_atomic(paths[-1], content.getvalue())
    return paths


def comparison_figures(comparison: LoadedComparison) -> list[PrintFigure]:
    """Scores over noises, and the learning curves of every noise whose runs can be read."""
    rows = [row for row in comparison.rows if row.f1 is not None]
    if not rows:
        return []
    figures = [PrintFigure("scores", lambda axes: draw_scores(axes, rows), _score_data(rows))]
    for i, noise in enumerate(comparison.noises, 1):
        curves = {}
        for method in comparison.labels:
            method_curves = collect_curves(comparison.find_runs(method, noise))
            if len(method_curves) > 1:
                curves[method] = method_curves
        if curves:
            figures.append(_learning_figure(f"learning-{i}", curves, comparison.labels))
    return figures


def run_figures(run: LoadedRun) -> list[PrintFigure]:
    """The learning curve of a run, and the confusion matrix of its last tested round."""
    records = run.test_rounds
    if not records:
        return []
    figures = []
    if len(records) > 1:
        curve = {record.round + 1: [record.f1 or 0.0] for record in records}
        figures.append(_learning_figure("learning", {run.method: curve}, {run.method: run.method}))
    matrix = records[-1].confusion
    if matrix:
        data: list[list[object]] = [["label", *run.classes]]
        data += [[name, *counts] for name, counts in zip(run.classes, matrix, strict=True)]
        figures.append(
            PrintFigure(
                "confusion",
                lambda axes: draw_confusion(axes, run.classes, matrix),
                data,
                (0.95, 0.8),
            )
        )
    return figures


def _learning_figure(
    name: str, curves: Mapping[str, RoundCurves], labels: Mapping[str, str]
) -> PrintFigure:
    data: list[list[object]] = [["method", "round", "f1_mean", "f1_min", "f1_max", "seeds"]]
    for method, curve in curves.items():
        for number, values in curve.items():
            data.append([method, number, fmean(values), min(values), max(values), len(values)])
    return PrintFigure(name, lambda axes: draw_curves(axes, curves, labels), data)


def _score_data(rows: Sequence[ComparisonRow]) -> list[list[object]]:
    data: list[list[object]] = [["noise", "method", "label", "seeds", "f1_mean", "f1_std"]]
    for row in rows:
        assert row.f1 is not None  # rows without a score are left out before
        data.append([row.noise, row.method, row.label, len(row.seeds), row.f1.mean, row.f1.std])
    return data


def draw_scores(axes: Axes, rows: Sequence[ComparisonRow]) -> None:
    """A group per noise, in it a marker per method with the standard deviation over the seeds."""
    noises = list(dict.fromkeys(row.noise for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows if not row.is_reference))
    values: list[float] = []
    for row in rows:
        assert row.f1 is not None
        spread = row.f1.std or 0.0
        values += [row.f1.mean - spread, row.f1.mean + spread]
        group = noises.index(row.noise)
        if row.is_reference:
            ends = [group - 0.42, group + 0.42]
            axes.plot(ends, [row.f1.mean] * 2, color=INK, ls=(0, (4, 2)), lw=0.9, label=row.label)
            continue
        x = group + 0.7 * ((methods.index(row.method) + 0.5) / len(methods) - 0.5)
        slot = method_slot(row.method)
        axes.errorbar(
            x,
            row.f1.mean,
            yerr=spread or None,
            fmt=_MARKERS[slot % NUM_COLOURS],
            color=slot_colour(slot),
            label=row.label,
            capsize=2,
            elinewidth=0.9,
        )
    axes.set_xticks(range(len(noises)), [shorten(noise, 28) for noise in noises])
    axes.set_xlim(-0.5, len(noises) - 0.5)
    axes.tick_params(axis="x", length=0)
    _finish(axes, values, [row.label for row in rows if row.is_reference])


def draw_curves(axes: Axes, curves: Mapping[str, RoundCurves], labels: Mapping[str, str]) -> None:
    """Macro F1 over the rounds, as on the page; markers tell the lines apart in grey, too."""
    last_round = max(max(curve) for curve in curves.values())
    for method, curve in curves.items():
        slot = method_slot(method)
        marker = _MARKERS[slot % NUM_COLOURS]
        every = max(1, len(curve) // 8)
        draw_mean(axes, curve, slot, marker=marker, markevery=every, label=labels[method])
    format_round_axis(axes, last_round)
    _finish(axes, list(score_range(list(curves.values()), last_round)))


def _finish(axes: Axes, values: Sequence[float], references: Sequence[str] = ()) -> None:
    """The range of the scores, and the legend below them, inside the axes; references end it."""
    axes.set_ylabel("Macro F1 (%)")
    entries: dict[str, Any] = {}
    handles, labels = axes.get_legend_handles_labels()
    # matplotlib lists lines, which are references such as the ceiling, before markers
    pairs = sorted(zip(handles, labels, strict=True), key=lambda pair: pair[1] in references)
    for handle, label in pairs:
        entries.setdefault(label, handle)
    figure = axes.figure
    num_columns = min(len(entries), 3 if figure.get_figwidth() < 5 else 6)  # type: ignore[union-attr]
    legend = axes.legend(
        list(entries.values()), list(entries), loc="lower center", ncol=num_columns
    )
    figure.draw_without_rendering()  # type: ignore[union-attr]
    box = legend.get_window_extent().transformed(axes.transAxes.inverted())
    low, high = min(values), max(values)
    padding = 0.05 * max(high - low, 4)
    low, high = low - padding, min(high + padding, 101)
    share = min(0.6, box.y1 + 0.02)
    axes.set_ylim(low - (high - low) * share / (1 - share), high)
    axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= min(high, 100)])


def draw_confusion(axes: Axes, classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> None:
    """Percent of the images of each class; darker is more."""
    from matplotlib.colors import LinearSegmentedColormap

    shares = [row_shares(row) for row in matrix]
    colours = LinearSegmentedColormap.from_list("clean", [PAPER, CLEAN])
    axes.pcolormesh(shares, cmap=colours, vmin=0, vmax=1, edgecolors=GRID, linewidth=0.4)
    size = 7 if len(classes) <= 8 else 5
    for i, row in enumerate(shares):
        for j, share in enumerate(row):
            colour = PAPER if share > 0.55 else INK
            axes.text(
                j + 0.5,
                i + 0.5,
                f"{100 * share:.0f}",
                ha="center",
                va="center",
                color=colour,
                size=size,
            )
    positions = [i + 0.5 for i in range(len(classes))]
    names = [shorten(name, 16) for name in classes]
    axes.set_xticks(positions, names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(positions, names)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.grid(False)
    axes.set_xlabel("Predicted")
    axes.set_ylabel("Label")
