"""Confusion matrices side by side: the two that the paper shows, then all methods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.paper.captions import source
from fedgsca.paper.figure_output import NARROW, WIDE, Drawing, Frame, make_drawing, make_facets
from fedgsca.paper.table_result import Matrix, TableResult
from fedgsca.report.palette import INK, MAIN, PAPER, SHADE
from fedgsca.report.plot_style import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# the paper's figure shows it beside FedGSCA
RIVAL = "fedgp"
# shares below are not drawn
_MIN_SHARE = 0.005


def draw_confusions(result: TableResult) -> list[Drawing]:
    """For every column the two methods of the paper's figure, and all rows, folded."""
    drawings = []
    for column in result.columns:
        matrices = result.series.confusion.get(column, {})
        shares = {}
        pair = {}
        for row in result.rows:
            if matrices.get(row.key):
                shares[row.label] = row_shares(matrices[row.key])
        for key in (RIVAL, result.reference):
            for row in result.rows:
                if row.key == key and row.label in shares:
                    pair[row.label] = shares[row.label]
        name = f"confusion-{re.sub(r'[^A-Za-z0-9.-]+', '-', column)}"
        if len(pair) == 2:
            drawings.append(_draw_pair(result, column, pair, name))
        if shares and len(shares) != len(pair):
            drawings.append(_draw_all(result, column, shares, f"{name}-all"))
    return drawings


def _class_names(result: TableResult, count: int) -> list[str]:
    return list(result.series.classes) or [str(i + 1) for i in range(count)]


def _draw_pair(
    result: TableResult, column: str, shares: Mapping[str, np.ndarray], name: str
) -> Drawing:
    """Two matrices with the names of the classes."""
    count = len(next(iter(shares.values())))
    classes = _class_names(result, count)
    tick_names = [shorten(class_name, 15) for class_name in classes]
    margin = min(150, 30 + 7 * max(map(len, classes)))

    def sketch(wide: bool) -> Figure:
        width = WIDE // 2 if wide else NARROW
        frame, side = _square_frame(width, margin, count)
        figure, all_axes = make_facets(len(shares), frame, source(result), wide=wide)
        for axes, (label, values) in zip(all_axes, shares.items(), strict=True):
            _draw_matrix(axes, f"{label}, {column}", values, tick_names, side / count)
        return figure

    caption = _caption(column, shares)
    return make_drawing(sketch, name, "Confusion matrices", caption, caption)


def _draw_all(
    result: TableResult, column: str, shares: Mapping[str, np.ndarray], name: str
) -> Drawing:
    """Many matrices with the numbers of the classes only, and their names below."""
    count = len(next(iter(shares.values())))
    classes = _class_names(result, count)
    legend = [f"{i} {class_name}" for i, class_name in enumerate(classes, start=1)]
    foot = f"{source(result)} Classes: {', '.join(legend)}."

    def sketch(wide: bool) -> Figure:
        width = WIDE // 4 if wide else NARROW
        frame, side = _square_frame(width, 30, count)
        figure, all_axes = make_facets(len(shares), frame, foot, wide=wide, across=4)
        for axes, (label, values) in zip(all_axes, shares.items(), strict=True):
            _draw_matrix(axes, f"{label}, {column}", values, [""] * count, side / count)
        return figure

    caption = _caption(column, shares)
    fold = f"{column}: all {len(shares)} matrices"
    return make_drawing(sketch, name, "Confusion matrices", caption, caption, fold)


def _square_frame(width: int, margin_left: int, count: int) -> tuple[Frame, int]:
    """A frame for a square matrix, and the side of the square in pixels."""
    side = min(width - margin_left - 24, 46 * count)
    frame = Frame(
        height=side + 74,
        margin_left=margin_left,
        margin_right=width - margin_left - side,
        margin_top=32,
        margin_bottom=42,
        width=width,
    )
    return frame, side


def _caption(column: str, shares: Mapping[str, np.ndarray]) -> str:
    parts = []
    for label, values in shares.items():
        parts.append(f"{label} {100 * float(np.trace(values)) / len(values):.1f} %")
    return (
        f"{column}: percent of the true class (row) that is predicted as each class (column); "
        f"mean over the seeds, last round. Mean of the diagonal: {'; '.join(parts)}."
    )


def row_shares(matrix: Matrix) -> np.ndarray:
    """Counts (C, C) as shares of their row; a class without test images stays zero."""
    counts = np.asarray(matrix, dtype=np.float64)
    total = counts.sum(axis=1, keepdims=True)
    shares: np.ndarray = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    return shares


def _draw_matrix(
    axes: Axes, title: str, values: np.ndarray, names: Sequence[str], cell_size: float
) -> None:
    """Rectangles, not an image: they take the page's colours and stay sharp."""
    from matplotlib.patches import Rectangle

    count = len(values)
    font_size = min(12.0, 0.42 * cell_size)
    axes.add_patch(Rectangle((-0.5, -0.5), count, count, fc=SHADE, lw=0))
    for i, j in zip(*np.nonzero(values >= _MIN_SHARE), strict=True):
        share = float(values[i, j])
        corner = (j - 0.5, i - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fc=MAIN, lw=0, alpha=round(share, 2)))
        if font_size >= 6:
            axes.text(
                j,
                i,
                f"{100 * share:.0f}",
                ha="center",
                va="center",
                fontsize=font_size,
                color=PAPER if share > 0.55 else INK,
                fontweight="bold" if i == j else "normal",
            )
    edges = np.arange(1, count) - 0.5
    axes.vlines(edges, -0.5, count - 0.5, color=PAPER, lw=2)
    axes.hlines(edges, -0.5, count - 0.5, color=PAPER, lw=2)
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    numbers = [str(i + 1) for i in range(count)]
    axes.set_xticks(range(count), numbers)
    labels = [f"{name}  {number}".strip() for name, number in zip(names, numbers, strict=True)]
    axes.set_yticks(range(count), labels)
    axes.tick_params(length=0)
    axes.set_xlabel("Predicted")
    axes.set_title(title)
