"""A figure of the methods' order: the paper's places against ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedgsca.paper.captions import rho_text, source
from fedgsca.paper.figure_output import Drawing, Frame, make_drawing, make_facets
from fedgsca.paper.ranking import ScoreGroup, headline_groups
from fedgsca.paper.table_result import TableResult
from fedgsca.report.palette import GREY, PAPER, method_slot, slot_colour, slot_line_style
from fedgsca.report.plot_style import SMALL, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_orders(result: TableResult) -> list[Drawing]:
    """The paper's order of the rows against ours, one facet per column.

    Lines that cross are places that changed.
    """
    groups = [group for group in headline_groups(result) if group.rho is not None]
    if not groups:
        return []

    def sketch(wide: bool) -> Figure:
        margin = 150 if wide else 132
        height = 64 + 25 * max(len(group.entries) for group in groups)
        frame = Frame(height, margin, margin, margin_top=52, margin_bottom=10)
        figure, all_axes = make_facets(len(groups), frame, source(result), wide=wide)
        for axes, group in zip(all_axes, groups, strict=True):
            _draw_slopes(axes, group, result.reference)
        return figure

    rhos = [f"{group.column}: Spearman's rho {rho_text(group.rho)}" for group in groups]
    metric = groups[0].metric.label
    alt = f"Order by {metric}. {'; '.join(rhos)}."
    caption = (
        f"Methods ordered by {metric}, the best on top: left as in the paper, right here, with the "
        "numbers. ρ is Spearman's correlation of the two orders; 1 is the same order."
    )
    return [make_drawing(sketch, "order", "The paper's order and ours", alt, caption)]


def _draw_slopes(axes: Axes, group: ScoreGroup, reference: str) -> None:
    entries = [entry for entry in group.entries if entry.paper and entry.ours]
    paper_places = make_places([entry.paper_rank for entry in entries])
    our_places = make_places([entry.our_rank for entry in entries])
    for entry, *places in zip(entries, paper_places, our_places, strict=True):
        assert entry.paper is not None and entry.ours is not None  # filtered above
        is_reference = entry.row.key == reference
        slot = method_slot(entry.row.key)
        colour = slot_colour(slot)
        width = 3 if is_reference else 2
        axes.plot((0, 1), places, color=colour, ls=slot_line_style(slot), lw=width, zorder=width)
        axes.plot((0, 1), places, "o", ls="", color=colour, ms=8, mec=PAPER, mew=1.2, zorder=4)
        name = shorten(entry.row.label, 12)
        _write_name(axes, 0, places[0], f"{name}  {entry.paper.mean:.1f}", bold=is_reference)
        _write_name(axes, 1, places[1], f"{entry.ours.mean:.1f}  {name}", bold=is_reference)
    axes.set_ylim(len(entries) + 0.5, 0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_axis_off()
    axes.set_title(f"{group.column}: ρ = {rho_text(group.rho)}", loc="center", pad=26)
    for x, word in ((0, "paper"), (1, "here")):
        axes.annotate(
            word,
            (x, 1),
            (0, 8),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            color=GREY,
            fontsize=SMALL,
        )


def _write_name(axes: Axes, x: int, y: int, text: str, *, bold: bool) -> None:
    """A name with its number, outside of the lines: left of x = 0, right of x = 1."""
    axes.annotate(
        text,
        (x, y),
        (20 * x - 10, 0),
        textcoords="offset points",
        ha="left" if x else "right",
        va="center",
        fontsize=SMALL,
        fontweight="bold" if bold else "normal",
    )


def make_places(ranks: Sequence[int | None]) -> list[int]:
    """Places from 1 on top; equal ranks keep the table's order, because each name needs a place."""
    order = sorted(range(len(ranks)), key=lambda i: (ranks[i] or 0, i))
    return [order.index(i) + 1 for i in range(len(ranks))]
