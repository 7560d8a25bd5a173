"""Figures of scores: paper beside ours, the order of the methods, what a change costs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedgsca.paper.canvas import Drawing, Frame, drawing, facets
from fedgsca.paper.figures_curves import UCL
from fedgsca.paper.marks import Entry, Group, group
from fedgsca.paper.result import TableResult
from fedgsca.paper.words import rho_text, signed, source
from fedgsca.report.draw import GRID, INK, MAIN, MUTED, PAPER, SMALL, colour, dash, shorten, slot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _groups(result: TableResult) -> list[Group]:
    return [group(result, column, result.metrics[0]) for column in result.columns]


def _keys() -> list[Any]:
    """Handles of a legend: hollow is the paper, filled is us."""
    from matplotlib.lines import Line2D

    hollow = Line2D([], [], marker="o", ls="", mfc=PAPER, mec=INK, mew=1.6, ms=8, label="the paper")
    return [hollow, Line2D([], [], marker="o", ls="", color=MAIN, ms=8, label="ours, with each seed")]


def orders(result: TableResult) -> list[Drawing]:
    """The paper's order of the rows against ours, one facet per column; lines that cross are places that changed."""
    known = [here for here in _groups(result) if here.rho is not None]
    if not known:
        return []

    def sketch(wide: bool) -> Figure:
        room = 150 if wide else 132
        rows = max(len(here.entries) for here in known)
        figure, made = facets(len(known), Frame(64 + 25 * rows, room, room, top=52, bottom=10), source(result), wide=wide)
        for axes, here in zip(made, known, strict=True):
            _slopes(axes, here, result.reference)
        return figure

    alt = "; ".join(f"{here.column}: Spearman's rho {rho_text(here.rho)}" for here in known)
    about = known[0].about.label
    caption = (
        f"Methods ordered by {about}, the best on top: left as in the paper, right here, with the numbers. "
        "ρ is Spearman's correlation of the two orders; 1 is the same order."
    )
    return [drawing(sketch, "order", "The paper's order and ours", f"Order by {about}. {alt}.", caption)]


def _slopes(axes: Axes, here: Group, reference: str) -> None:
    both = [entry for entry in here.entries if entry.paper is not None and entry.ours is not None]
    places = [_places(both, side) for side in ("paper", "ours")]
    for i, entry in enumerate(both):
        s, strong = slot(entry.row.key), entry.row.key == reference
        assert entry.paper is not None and entry.ours is not None  # chosen above
        y = (places[0][i], places[1][i])
        axes.plot((0, 1), y, color=colour(s), ls=dash(s), lw=3 if strong else 2, zorder=3 if strong else 2)
        axes.plot((0, 1), y, "o", ls="", color=colour(s), ms=8, mec=PAPER, mew=1.2, zorder=4)
        weight = "bold" if strong else "normal"
        left, right = (
            f"{shorten(entry.row.label, 12)}  {entry.paper.mean:.1f}",
            f"{entry.ours.mean:.1f}  {shorten(entry.row.label, 12)}",
        )
        axes.annotate(
            left, (0, y[0]), (-10, 0), textcoords="offset points", ha="right", va="center", fontsize=SMALL, fontweight=weight
        )
        axes.annotate(right, (1, y[1]), (10, 0), textcoords="offset points", va="center", fontsize=SMALL, fontweight=weight)
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


def beside_paper(result: TableResult) -> list[Drawing]:
    """Every row's number in the paper and here on one axis, one facet per column."""
    known = [here for here in _groups(result) if any(entry.ours for entry in here.entries)]
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
    alt = f"Paper and ours beside each other; the mean gap is {signed(fmean(gaps), 2)} points." if gaps else "Our numbers."
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
        axes.plot(list(entry.ours.values.values()), [y] * len(entry.ours.values), "|", color=MAIN, ms=9, mew=1.2, alpha=0.7)
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


def differences(result: TableResult) -> list[Drawing]:
    """How far each variant stands from the reference row: bars from zero, so their lengths may be compared."""
    known = [(here, part) for here in _groups(result) for part in parts(here, result.reference) if any(e.ours for e in part)]
    if not known:
        return []
    name = next((row.label for row in result.rows if row.key == result.reference), result.reference)

    def sketch(wide: bool) -> Figure:
        from matplotlib.patches import Patch

        rows = max(len(part) for _, part in known)
        keys = [Patch(fc=MAIN, label="ours, a tick per seed"), Patch(fc=PAPER, ec=INK, label="the paper")]
        frame = Frame(92 + 44 * rows, left=188 if wide else 158, right=40, top=50)
        figure, made = facets(
            len(known), frame, source(result), wide=wide, legend=keys if any(h.has_paper for h, _ in known) else keys[:1]
        )
        for axes, (here, part) in zip(made, known, strict=True):
            _bars(axes, here, part, result.reference)
            _base_line(axes, here, result.reference, frame)
            axes.set_ylim(-0.5, len(part) - 0.5)
            box = axes.get_position()  # bars of equal thickness in all facets
            axes.set_position((box.x0, box.y1 - box.height * len(part) / rows, box.width, box.height * len(part) / rows))
        return figure

    about = known[0][0].about.label
    caption = f"Change of {about} in points against {name}; per seed, then averaged. Below zero is worse."
    return [drawing(sketch, result.name, result.title, f"{caption} {_changes(known, result.reference)}", caption)]


def parts(here: Group, reference: str) -> list[list[Entry]]:
    """The rows to compare with the reference; those of beta and those of zeta apart, as in the paper's table; none without it."""
    if not any(entry.row.key == reference for entry in here.entries):
        return []
    families = [[e for e in here.entries if e.row.key.startswith(prefix)] for prefix in ("zeta", "beta")]
    if all(families):
        return families
    others = [e for e in here.entries if e.row.key not in (reference, UCL) and (e.ours or e.paper)]
    return [others] if others else []


def change(entry: Entry, base: Entry) -> tuple[float | None, list[float], float | None]:
    """Ours (mean, per seed) and the paper's difference to the reference; seeds that both have."""
    seeds = [s for s in (entry.ours.values if entry.ours else {}) if base.ours and s in base.ours.values]
    each = [entry.ours.values[s] - base.ours.values[s] for s in seeds] if entry.ours and base.ours else []
    paper = entry.paper.mean - base.paper.mean if entry.paper and base.paper else None
    return (fmean(each) if each else None), each, paper


def _bars(axes: Axes, here: Group, part: Sequence[Entry], reference: str) -> None:
    base = next(entry for entry in here.entries if entry.row.key == reference)
    ends = [0.0]
    for i, entry in enumerate(part):
        y, (ours, each, paper) = len(part) - 1 - i, change(entry, base)
        for value, place, fill, edge in ((ours, y + 0.19, MAIN, MAIN), (paper, y - 0.19, PAPER, INK)):
            if value is not None:
                axes.barh(place, value, 0.32, color=fill, ec=edge, lw=1.2, zorder=2)
                tip = min([value, *each]) if value < 0 else max([value, *each])
                far = tip if fill == MAIN else value
                side = -1 if value < 0 else 1
                axes.annotate(
                    signed(value, 2), (far, place), (5 * side, 0), textcoords="offset points", va="center",
                    ha="right" if side < 0 else "left", fontsize=10, color=INK if fill == MAIN else MUTED,
                )  # fmt: skip
                ends.append(far)
        axes.plot(each, [y + 0.19] * len(each), "|", color=INK, ms=8, mew=1.1, zorder=3)
    axes.axvline(0, color=MUTED, lw=1.2)
    low, high = min(ends), max(ends)
    room = 0.24 * max(high - low, 0.1)
    axes.set_xlim(low - (room if low < 0 else room / 4), high + (room if high > 0 else room / 4))
    axes.set_yticks(range(len(part)), [_two_lines(entry.row.label) for entry in reversed(part)])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"Change of {here.about.label}, points")


def _base_line(axes: Axes, here: Group, reference: str, frame: Frame) -> None:
    """Above a facet, from its left edge: the column, and what zero stands for."""
    base = next(entry for entry in here.entries if entry.row.key == reference)
    known = ", ".join(f"{word} {s.mean:.2f}" for word, s in (("ours", base.ours), ("paper", base.paper)) if s)
    for text, up, style in (
        (here.column, 26, {"fontweight": "bold"}),
        (f"0 is {shorten(base.row.label, 30)}: {known}", 9, {"color": MUTED, "fontsize": SMALL}),
    ):
        axes.annotate(text, (0, 1), (10 - frame.left, up), xycoords="axes fraction", textcoords="offset points", **style)


def _two_lines(label: str) -> str:
    width = 25 if len(label) <= 25 else max(-(-len(label) // 2) + 2, 16)
    return "\n".join(shorten(line, 25) for line in wrap(label, width)[:2])


def _changes(known: Sequence[tuple[Group, Sequence[Entry]]], reference: str) -> str:
    told = []
    for here, part in known:
        base = next(entry for entry in here.entries if entry.row.key == reference)
        shifts = [(entry.row.label, change(entry, base)[0]) for entry in part]
        told.append(
            f"{here.column}: " + ", ".join(f"{label} {signed(value, 2)}" for label, value in shifts if value is not None)
        )
    return "; ".join(told) + "."
