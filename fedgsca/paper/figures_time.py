"""How long a method trains until it is as good as FedAvg ever gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from fedgsca.paper.captions import source
from fedgsca.paper.figure_output import Drawing, Frame, drawing, facets
from fedgsca.paper.figures_curves import BySeed, over_rounds, places
from fedgsca.paper.table_result import Row, TableResult
from fedgsca.report.plot_style import MUTED, PAPER, SMALL, colour, end_labels
from fedgsca.report.sentences import plural, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASELINE = "fedavg"


def time_to_peak(
    f1: Mapping[str, BySeed], clock: Mapping[str, BySeed], key: str
) -> list[float | None]:
    """Per seed: seconds until a row first reaches FedAvg's best F1 of that seed; None if it never does."""
    found: list[float | None] = []
    for seed, base in (f1.get(BASELINE) or {}).items():
        mine, times = f1.get(key, {}).get(seed), clock.get(key, {}).get(seed)
        if base and mine and times:
            found.append(
                next((t for value, t in zip(mine, times, strict=False) if value >= max(base)), None)
            )
    return found


def efficiency(result: TableResult) -> list[Drawing]:
    """F1 over the time of training, and when FedAvg's peak is reached."""
    f1, clock = result.series.get("f1") or {}, result.series.get("seconds") or {}
    known = [
        c
        for c in result.columns
        if (f1.get(c) or {}).get(BASELINE) and (clock.get(c) or {}).get(BASELINE)
    ]
    if not known:
        return []

    def sketch(wide: bool) -> Figure:
        alone = wide and len(known) == 1
        frame = Frame(390, left=46, right=136, top=34, width=760 if alone else 0)
        figure, made = facets(len(known), frame, source(result), wide=wide)
        for axes, column in zip(made, known, strict=True):
            _race(axes, column, result.rows, f1[column], clock[column])
        return figure

    told = [
        _told(row, time_to_peak(f1[c], clock[c], row.key), c) for c in known for row in result.rows
    ]
    caption = (
        "F1 over the time of training. Thin lines: seeds; thick lines: their mean, round by round. Dashed: FedAvg's best F1, "
        "mean of the seeds. Dots: mean time at which a seed first reaches FedAvg's best F1 of the same seed."
    )
    return [
        drawing(
            sketch,
            "efficiency",
            "Time to reach FedAvg's peak",
            " ".join(told),
            f"{' '.join(told)} {caption}",
        )
    ]


def _told(row: Row, times: Sequence[float | None], column: str) -> str:
    reached = [t for t in times if t is not None]
    if not times:
        return f"{row.label} has not run yet ({column})."
    if not reached:
        return f"{row.label} never reaches FedAvg's peak ({column})."
    missing = (
        f" in {len(reached)} of {plural(len(times), 'seed')}" if len(reached) < len(times) else ""
    )
    return f"{row.label} reaches FedAvg's peak after {seconds(fmean(reached))}{missing} ({column})."


def _race(
    axes: Axes,
    column: str,
    rows: Sequence[Row],
    f1: Mapping[str, BySeed],
    clock: Mapping[str, BySeed],
) -> None:
    unit, word = (
        (60.0, "min")
        if max(t[-1] for here in clock.values() for t in here.values() if t) >= 180
        else (1.0, "s")
    )
    slots = places(rows)
    peak = fmean(max(values) for values in f1[BASELINE].values() if values)
    ends, values = [(peak, "FedAvg's peak", MUTED)], [peak]
    goals: list[tuple[float, str, str]] = []
    axes.axhline(peak, color=MUTED, lw=1.2, ls=(0, (4, 3)))
    for row in rows:
        mine, times = f1.get(row.key, {}), clock.get(row.key, {})
        scores, ticks = over_rounds(mine), over_rounds(times)
        both = [at for at in scores if at in ticks]
        if not both:
            continue
        shade = colour(slots[row.key])
        for seed in mine:
            pairs = list(zip(times.get(seed, ()), mine[seed], strict=False))
            axes.plot(
                [t / unit for t, _ in pairs], [v for _, v in pairs], color=shade, lw=0.8, alpha=0.45
            )
        mean = [fmean(scores[at]) for at in both]
        axes.plot([fmean(ticks[at]) / unit for at in both], mean, color=shade, lw=2.5, zorder=3)
        values += [
            v for at in both if at > len(both) / 8 for v in scores[at]
        ]  # the steep start may enter from below
        ends.append((mean[-1], row.label, shade))
        each = time_to_peak(f1, clock, row.key)
        reached = [t / unit for t in each if t is not None]
        if reached:
            part = f" ({len(reached)} of {len(each)} seeds)" if len(reached) < len(each) else ""
            goals.append((fmean(reached), shade, f"{fmean(reached):.1f} {word}{part}"))
    pad = 0.08 * max(max(values) - min(values), 4)
    axes.set_ylim(min(values) - pad, min(max(values) + pad, 101))
    axes.set_xlim(left=0)
    axes.set_xlabel(f"Time of training, {'minutes' if word == 'min' else 'seconds'}")
    axes.set_title(f"{column}: macro F1, percent")
    for at, shade, text in goals:
        _goal(axes, at, peak, shade, text)
    end_labels(axes, ends, room=0.06)


def _goal(axes: Axes, at: float, peak: float, shade: str, text: str) -> None:
    """Where the peak is reached, with the time below."""
    axes.plot(at, peak, "o", color=shade, ms=10, mec=PAPER, mew=1.5, zorder=5)
    axes.plot([at, at], [axes.get_ylim()[0], peak], color=shade, lw=1.4, ls=(0, (1, 2)), zorder=1)
    axes.annotate(
        text,
        (at, 0),
        (5, 7),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        fontsize=SMALL,
    )
