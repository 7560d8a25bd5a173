"""A figure of changes: what another setting, or leaving out a part, costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedgsca.paper.captions import reference_label, source
from fedgsca.paper.figure_output import Drawing, Frame, make_drawing, make_facets
from fedgsca.paper.figures_curves import UCL
from fedgsca.paper.ranking import ScoreGroup, TableEntry, headline_groups
from fedgsca.paper.table_result import TableResult
from fedgsca.report.palette import GREY, INK, MAIN, PAPER
from fedgsca.report.plot_style import SMALL, shorten
from fedgsca.support.text import MINUS, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

# vertical distance of the two bars of a row from its middle
_SHIFT = 0.19


@dataclass(frozen=True)
class Facet:
    """The rows of one column that are compared with the reference row."""

    group: ScoreGroup
    base: TableEntry
    entries: Sequence[TableEntry]


@dataclass(frozen=True)
class Change:
    """The difference of a row from the reference, over the seeds that both have."""

    ours: float | None
    by_seed: list[float]
    paper: float | None


def draw_changes(result: TableResult) -> list[Drawing]:
    """The distance of each variant from the reference row: bars from zero, of comparable length."""
    facets: list[Facet] = []
    for group in headline_groups(result):
        facets += [facet for facet in make_parts(group, result.reference) if _has_ours(facet)]
    if not facets:
        return []

    def sketch(wide: bool) -> Figure:
        rows = max(len(facet.entries) for facet in facets)
        margin = 188 if wide else 158
        frame = Frame(92 + 44 * rows, margin_left=margin, margin_right=40, margin_top=50)
        figure, all_axes = make_facets(
            len(facets), frame, source(result), wide=wide, legend=_legend(facets)
        )
        for axes, facet in zip(all_axes, facets, strict=True):
            _draw_bars(axes, facet)
            _write_head(axes, facet, frame)
            _set_height(axes, len(facet.entries), rows)
        return figure

    caption = (
        f"Change of {facets[0].group.metric.label} in points against {reference_label(result)}; "
        "per seed, then averaged. Below zero is worse."
    )
    alt = f"{caption} {_changes_text(facets)}"
    return [make_drawing(sketch, result.name, result.title, alt, caption)]


def make_parts(group: ScoreGroup, reference: str) -> list[Facet]:
    """The rows to compare with the reference; none if the reference is not in the table.

    The rows of beta and those of zeta are separate facets, as in the paper's table.
    """
    base = group.entry(reference)
    if base is None:
        return []
    families = []
    for prefix in ("zeta", "beta"):
        family = [entry for entry in group.entries if entry.row.key.startswith(prefix)]
        families.append(Facet(group, base, family))
    if all(family.entries for family in families):
        return families
    entries = []
    for entry in group.entries:
        if entry.row.key not in (reference, UCL) and (entry.ours or entry.paper):
            entries.append(entry)
    return [Facet(group, base, entries)] if entries else []


def _has_ours(facet: Facet) -> bool:
    return any(entry.ours for entry in facet.entries)


def make_change(entry: TableEntry, base: TableEntry) -> Change:
    """The difference of an entry from the reference, ours and the paper's."""
    by_seed = []
    if entry.ours and base.ours:
        for seed, value in entry.ours.values.items():
            if seed in base.ours.values:
                by_seed.append(value - base.ours.values[seed])
    ours = fmean(by_seed) if by_seed else None
    paper = None
    if entry.paper and base.paper:
        paper = entry.paper.mean - base.paper.mean
    return Change(ours, by_seed, paper)


def _legend(facets: Sequence[Facet]) -> list[Patch]:
    from matplotlib.patches import Patch

    handles = [Patch(fc=MAIN, label="ours, a tick per seed")]
    if any(facet.group.has_paper for facet in facets):
        handles.append(Patch(fc=PAPER, ec=INK, label="the paper"))
    return handles


def _set_height(axes: Axes, rows: int, most_rows: int) -> None:
    """Make bars equally thick in all facets."""
    axes.set_ylim(-0.5, rows - 0.5)
    box = axes.get_position()
    height = box.height * rows / most_rows
    axes.set_position((box.x0, box.y1 - height, box.width, height))


def _draw_bars(axes: Axes, facet: Facet) -> None:
    ends = [0.0]
    rows = len(facet.entries)
    for i, entry in enumerate(facet.entries):
        y = rows - 1 - i
        change = make_change(entry, facet.base)
        if change.ours is not None:
            extremes = [change.ours, *change.by_seed]
            tip = min(extremes) if change.ours < 0 else max(extremes)
            axes.barh(y + _SHIFT, change.ours, 0.32, color=MAIN, ec=MAIN, lw=1.2, zorder=2)
            _write_value(axes, change.ours, (tip, y + _SHIFT), INK)
            ends.append(tip)
        if change.paper is not None:
            axes.barh(y - _SHIFT, change.paper, 0.32, color=PAPER, ec=INK, lw=1.2, zorder=2)
            _write_value(axes, change.paper, (change.paper, y - _SHIFT), GREY)
            ends.append(change.paper)
        heights = [y + _SHIFT] * len(change.by_seed)
        axes.plot(change.by_seed, heights, "|", color=INK, ms=8, mew=1.1, zorder=3)
    axes.axvline(0, color=GREY, lw=1.2)
    axes.set_xlim(*_limits(min(ends), max(ends)))
    labels = [_two_lines(entry.row.label) for entry in reversed(facet.entries)]
    axes.set_yticks(range(rows), labels)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", MINUS))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"Change of {facet.group.metric.label}, points")


def _write_value(axes: Axes, value: float, place: tuple[float, float], colour: str) -> None:
    """The number beside the end of its bar."""
    side = -1 if value < 0 else 1
    axes.annotate(
        signed(value, 2),
        place,
        (5 * side, 0),
        textcoords="offset points",
        va="center",
        ha="right" if side < 0 else "left",
        fontsize=10,
        color=colour,
    )


def _limits(low: float, high: float) -> tuple[float, float]:
    """The range of the axis, with room for numbers beside bars."""
    room = 0.24 * max(high - low, 0.1)
    room_below = room if low < 0 else room / 4
    room_above = room if high > 0 else room / 4
    return low - room_below, high + room_above


def _write_head(axes: Axes, facet: Facet, frame: Frame) -> None:
    """Above a facet, from its left edge: the column, and the meaning of zero."""
    numbers = []
    for word, score in (("ours", facet.base.ours), ("paper", facet.base.paper)):
        if score:
            numbers.append(f"{word} {score.mean:.2f}")
    zero = f"0 is {shorten(facet.base.row.label, 30)}: {', '.join(numbers)}"
    x = 10 - frame.margin_left
    _annotate_corner(axes, facet.group.column, (x, 26), fontweight="bold")
    _annotate_corner(axes, zero, (x, 9), color=GREY, fontsize=SMALL)


def _annotate_corner(axes: Axes, text: str, offset: tuple[int, int], **style: Any) -> None:
    """Text at an offset in pixels from the upper left corner."""
    corner = (0, 1)
    points = "offset points"
    axes.annotate(text, corner, offset, xycoords="axes fraction", textcoords=points, **style)


def _two_lines(label: str) -> str:
    width = 25
    if len(label) > width:
        width = max(-(-len(label) // 2) + 2, 16)
    return "\n".join(shorten(line, 25) for line in wrap(label, width)[:2])


def _changes_text(facets: Sequence[Facet]) -> str:
    parts = []
    for facet in facets:
        texts = []
        for entry in facet.entries:
            value = make_change(entry, facet.base).ours
            if value is not None:
                texts.append(f"{entry.row.label} {signed(value, 2)}")
        parts.append(f"{facet.group.column}: {', '.join(texts)}")
    return "; ".join(parts) + "."
