"""A figure of changes: what leaving out a part, or another setting, costs against the reference row."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from textwrap import wrap
from typing import TYPE_CHECKING

from fedgsca.paper.captions import source
from fedgsca.paper.figure_output import Drawing, Frame, drawing, facets
from fedgsca.paper.figures_curves import UCL
from fedgsca.paper.ranking import Entry, Group, groups
from fedgsca.paper.table_result import TableResult
from fedgsca.report.plot_style import INK, MAIN, MUTED, PAPER, SMALL, shorten
from fedgsca.report.sentences import signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def differences(result: TableResult) -> list[Drawing]:
    """How far each variant stands from the reference row: bars from zero, so their lengths may be compared."""
    known = [
        (here, part)
        for here in groups(result)
        for part in parts(here, result.reference)
        if any(e.ours for e in part)
    ]
    if not known:
        return []
    name = next((row.label for row in result.rows if row.key == result.reference), result.reference)

    def sketch(wide: bool) -> Figure:
        from matplotlib.patches import Patch

        rows = max(len(part) for _, part in known)
        keys = [
            Patch(fc=MAIN, label="ours, a tick per seed"),
            Patch(fc=PAPER, ec=INK, label="the paper"),
        ]
        frame = Frame(92 + 44 * rows, left=188 if wide else 158, right=40, top=50)
        figure, made = facets(
            len(known),
            frame,
            source(result),
            wide=wide,
            legend=keys if any(h.has_paper for h, _ in known) else keys[:1],
        )
        for axes, (here, part) in zip(made, known, strict=True):
            _bars(axes, here, part, result.reference)
            _base_line(axes, here, result.reference, frame)
            axes.set_ylim(-0.5, len(part) - 0.5)
            box = axes.get_position()  # bars of equal thickness in all facets
            axes.set_position(
                (
                    box.x0,
                    box.y1 - box.height * len(part) / rows,
                    box.width,
                    box.height * len(part) / rows,
                )
            )
        return figure

    about = known[0][0].about.label
    caption = (
        f"Change of {about} in points against {name}; per seed, then averaged. Below zero is worse."
    )
    return [
        drawing(
            sketch,
            result.name,
            result.title,
            f"{caption} {_changes(known, result.reference)}",
            caption,
        )
    ]


def parts(here: Group, reference: str) -> list[list[Entry]]:
    """The rows to compare with the reference; those of beta and those of zeta apart, as in the paper's table; none without it."""
    if not any(entry.row.key == reference for entry in here.entries):
        return []
    families = [
        [e for e in here.entries if e.row.key.startswith(prefix)] for prefix in ("zeta", "beta")
    ]
    if all(families):
        return families
    others = [e for e in here.entries if e.row.key not in (reference, UCL) and (e.ours or e.paper)]
    return [others] if others else []


def change(entry: Entry, base: Entry) -> tuple[float | None, list[float], float | None]:
    """Ours (mean, per seed) and the paper's difference to the reference; seeds that both have."""
    seeds = [
        s for s in (entry.ours.values if entry.ours else {}) if base.ours and s in base.ours.values
    ]
    each = (
        [entry.ours.values[s] - base.ours.values[s] for s in seeds]
        if entry.ours and base.ours
        else []
    )
    paper = entry.paper.mean - base.paper.mean if entry.paper and base.paper else None
    return (fmean(each) if each else None), each, paper


def _bars(axes: Axes, here: Group, part: Sequence[Entry], reference: str) -> None:
    base = next(entry for entry in here.entries if entry.row.key == reference)
    ends = [0.0]
    for i, entry in enumerate(part):
        y, (ours, each, paper) = len(part) - 1 - i, change(entry, base)
        for value, place, fill, edge in (
            (ours, y + 0.19, MAIN, MAIN),
            (paper, y - 0.19, PAPER, INK),
        ):
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
    known = ", ".join(
        f"{word} {s.mean:.2f}" for word, s in (("ours", base.ours), ("paper", base.paper)) if s
    )
    for text, up, style in (
        (here.column, 26, {"fontweight": "bold"}),
        (f"0 is {shorten(base.row.label, 30)}: {known}", 9, {"color": MUTED, "fontsize": SMALL}),
    ):
        axes.annotate(
            text,
            (0, 1),
            (10 - frame.left, up),
            xycoords="axes fraction",
            textcoords="offset points",
            **style,
        )


def _two_lines(label: str) -> str:
    width = 25 if len(label) <= 25 else max(-(-len(label) // 2) + 2, 16)
    return "\n".join(shorten(line, 25) for line in wrap(label, width)[:2])


def _changes(known: Sequence[tuple[Group, Sequence[Entry]]], reference: str) -> str:
    told = []
    for here, part in known:
        base = next(entry for entry in here.entries if entry.row.key == reference)
        shifts = [(entry.row.label, change(entry, base)[0]) for entry in part]
        told.append(
            f"{here.column}: "
            + ", ".join(
                f"{label} {signed(value, 2)}" for label, value in shifts if value is not None
            )
        )
    return "; ".join(told) + "."
