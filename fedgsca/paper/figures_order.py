"""A figure of the methods' order: the paper's places against ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedgsca.paper.captions import rho_text, source
from fedgsca.paper.figure_output import Drawing, Frame, drawing, facets
from fedgsca.paper.ranking import Entry, Group, groups
from fedgsca.paper.table_result import TableResult
from fedgsca.report.plot_style import MUTED, PAPER, SMALL, colour, dash, shorten, slot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def orders(result: TableResult) -> list[Drawing]:
    """The paper's order of the rows against ours, one facet per column; lines that cross are places that changed."""
    known = [here for here in groups(result) if here.rho is not None]
    if not known:
        return []

    def sketch(wide: bool) -> Figure:
        room = 150 if wide else 132
        rows = max(len(here.entries) for here in known)
        figure, made = facets(
            len(known),
            Frame(64 + 25 * rows, room, room, top=52, bottom=10),
            source(result),
            wide=wide,
        )
        for axes, here in zip(made, known, strict=True):
            _slopes(axes, here, result.reference)
        return figure

    alt = "; ".join(f"{here.column}: Spearman's rho {rho_text(here.rho)}" for here in known)
    about = known[0].about.label
    caption = (
        f"Methods ordered by {about}, the best on top: left as in the paper, right here, with the numbers. "
        "ρ is Spearman's correlation of the two orders; 1 is the same order."
    )
    return [
        drawing(sketch, "order", "The paper's order and ours", f"Order by {about}. {alt}.", caption)
    ]


def _slopes(axes: Axes, here: Group, reference: str) -> None:
    both = [entry for entry in here.entries if entry.paper is not None and entry.ours is not None]
    places = [_places(both, side) for side in ("paper", "ours")]
    for i, entry in enumerate(both):
        s, strong = slot(entry.row.key), entry.row.key == reference
        assert entry.paper is not None and entry.ours is not None  # chosen above
        y = (places[0][i], places[1][i])
        axes.plot(
            (0, 1), y, color=colour(s), ls=dash(s), lw=3 if strong else 2, zorder=3 if strong else 2
        )
        axes.plot((0, 1), y, "o", ls="", color=colour(s), ms=8, mec=PAPER, mew=1.2, zorder=4)
        weight = "bold" if strong else "normal"
        left, right = (
            f"{shorten(entry.row.label, 12)}  {entry.paper.mean:.1f}",
            f"{entry.ours.mean:.1f}  {shorten(entry.row.label, 12)}",
        )
        axes.annotate(
            left,
            (0, y[0]),
            (-10, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=SMALL,
            fontweight=weight,
        )
        axes.annotate(
            right,
            (1, y[1]),
            (10, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
            fontweight=weight,
        )
    axes.set_ylim(len(both) + 0.5, 0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_axis_off()
    axes.set_title(f"{here.column}: ρ = {rho_text(here.rho)}", loc="center", pad=26)
    for x, word in ((0, "paper"), (1, "here")):
        axes.annotate(
            word,
            (x, 1),
            (0, 8),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            color=MUTED,
            fontsize=SMALL,
        )


def _places(entries: Sequence[Entry], side: str) -> list[int]:
    """1 is on top; equal numbers keep the table's order, because two names need two places."""
    ranks = [(entry.paper_rank if side == "paper" else entry.our_rank) or 0 for entry in entries]
    order = sorted(range(len(entries)), key=lambda i: (ranks[i], i))
    return [order.index(i) + 1 for i in range(len(entries))]
