"""Confusion matrices side by side: the two that the paper shows, then all methods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsca.paper.captions import source
from fedgsca.paper.figure_output import NARROW, WIDE, Drawing, Frame, drawing, facets
from fedgsca.paper.table_result import TableResult
from fedgsca.report.plot_style import INK, MAIN, PAPER, SHADE, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RIVAL = "fedgp"  # the paper's figure shows it beside FedGSCA
Matrix = Sequence[Sequence[float]]


def confusions(result: TableResult) -> list[Drawing]:
    found: Mapping[str, Mapping[str, Matrix]] = result.series.get("confusion") or {}
    made = []
    for column in result.columns:
        here = {row.key: row.label for row in result.rows if found.get(column, {}).get(row.key)}
        shares = {here[key]: share(found[column][key]) for key in here}
        pair = {here[key]: shares[here[key]] for key in (RIVAL, result.reference) if key in here}
        name = f"confusion-{re.sub(r'[^A-Za-z0-9.-]+', '-', column)}"
        if len(pair) == 2:
            made.append(_drawing(result, column, pair, name))
        if shares and len(shares) != len(pair):
            made.append(_drawing(result, column, shares, f"{name}-all", all_rows=True))
    return made


def _drawing(
    result: TableResult,
    column: str,
    shares: Mapping[str, np.ndarray],
    name: str,
    *,
    all_rows: bool = False,
) -> Drawing:
    """Two with the names of the classes, or many with their numbers only and the names below."""
    count = len(next(iter(shares.values())))
    classes = [str(name) for name in result.series.get("classes") or range(1, count + 1)]
    foot = source(result) + (
        f" Classes: {', '.join(f'{i + 1} {name}' for i, name in enumerate(classes))}."
        if all_rows
        else ""
    )

    def sketch(wide: bool) -> Figure:
        across = 4 if all_rows else 2
        width = WIDE // across if wide else NARROW
        left = 30 if all_rows else min(150, 30 + 7 * max(map(len, classes)))
        side = min(width - left - 24, 46 * count)
        frame = Frame(side + 74, left, width - left - side, top=32, bottom=42, width=width)
        figure, made = facets(len(shares), frame, foot, wide=wide, across=across)
        names = [""] * count if all_rows else [shorten(name, 15) for name in classes]
        for axes, (label, values) in zip(made, shares.items(), strict=True):
            _heat(axes, f"{label}, {column}", values, names, side / count)
        return figure

    told = "; ".join(
        f"{label} {100 * float(np.trace(v)) / count:.1f} %" for label, v in shares.items()
    )
    caption = (
        f"{column}: percent of the true class (row) that is predicted as each class (column); mean over the seeds, last round. "
        f"Mean of the diagonal: {told}."
    )
    fold = f"{column}: all {len(shares)} matrices" if all_rows else ""
    return drawing(sketch, name, "Confusion matrices", caption, caption, fold)


def share(matrix: Matrix) -> np.ndarray:
    """Counts as shares of their row; a class without test images stays empty."""
    counts = np.asarray(matrix, dtype=np.float64)
    total = counts.sum(axis=1, keepdims=True)
    shares: np.ndarray = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    return shares


def _heat(axes: Axes, label: str, values: np.ndarray, names: Sequence[str], cell: float) -> None:
    """Rectangles, not an image: they take the page's colours, and stay sharp."""
    from matplotlib.patches import Rectangle

    count, size = len(values), min(12.0, 0.42 * cell)
    axes.add_patch(Rectangle((-0.5, -0.5), count, count, fc=SHADE, lw=0))
    for i, j in zip(*np.nonzero(values >= 0.005), strict=True):
        v = float(values[i, j])
        axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fc=MAIN, lw=0, alpha=round(v, 2)))
        if size >= 6:
            style: dict[str, Any] = {
                "color": PAPER if v > 0.55 else INK,
                "fontweight": "bold" if i == j else "normal",
            }
            axes.text(j, i, f"{100 * v:.0f}", ha="center", va="center", fontsize=size, **style)
    edges = np.arange(1, count) - 0.5
    axes.vlines(edges, -0.5, count - 0.5, color=PAPER, lw=2)
    axes.hlines(edges, -0.5, count - 0.5, color=PAPER, lw=2)
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks(range(count), [str(i + 1) for i in range(count)])
    axes.set_yticks(range(count), [f"{name}  {i + 1}".strip() for i, name in enumerate(names)])
    axes.tick_params(length=0)
    axes.set_xlabel("Predicted")
    axes.set_title(label)
