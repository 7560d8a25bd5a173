"""How long a method trains until it is as good as FedAvg ever gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from fedgsca.paper.captions import source
from fedgsca.paper.figure_output import Drawing, Frame, make_drawing, make_facets
from fedgsca.paper.figures_curves import over_rounds
from fedgsca.paper.table_result import SeedCurves, TableResult, TableRow
from fedgsca.report.comparison_tables import BASELINE
from fedgsca.report.number_text import seconds_text
from fedgsca.report.palette import GREY, PAPER, assign_slots, slot_colour
from fedgsca.report.plot_style import SMALL, LineEnd, label_line_ends
from fedgsca.support.text import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# from this many seconds on, the axis shows minutes
_MINUTES_FROM = 180


@dataclass(frozen=True)
class Race:
    """F1 and time of all rows in one column: row -> seed -> one value per round."""

    column: str
    f1: Mapping[str, SeedCurves]
    seconds: Mapping[str, SeedCurves]

    @property
    def peak(self) -> float:
        """FedAvg's best F1, mean of the seeds."""
        return fmean(max(values) for values in self.f1[BASELINE].values() if values)

    @property
    def unit(self) -> tuple[float, str, str]:
        """Seconds per unit of the axis, the sign of the unit and its name."""
        for by_seed in self.seconds.values():
            for values in by_seed.values():
                if values and values[-1] >= _MINUTES_FROM:
                    return 60.0, "min", "minutes"
        return 1.0, "s", "seconds"


def time_to_peak(
    f1: Mapping[str, SeedCurves], seconds: Mapping[str, SeedCurves], key: str
) -> list[float | None]:
    """Per seed: seconds until a row first reaches FedAvg's best F1 of that seed.

    None for a seed that never does; seeds without a curve are left out.
    """
    peak_times: list[float | None] = []
    for seed, baseline in f1.get(BASELINE, {}).items():
        values = f1.get(key, {}).get(seed)
        times = seconds.get(key, {}).get(seed)
        if baseline and values and times:
            peak_times.append(_first_time(values, times, max(baseline)))
    return peak_times


def _first_time(values: Sequence[float], times: Sequence[float], peak: float) -> float | None:
    for value, seconds in zip(values, times, strict=False):
        if value >= peak:
            return seconds
    return None


def draw_efficiency(result: TableResult) -> list[Drawing]:
    """F1 over the training time, and when FedAvg's peak is reached."""
    races = _make_races(result)
    if not races:
        return []

    def sketch(wide: bool) -> Figure:
        single = wide and len(races) == 1
        width = 760 if single else 0
        frame = Frame(390, margin_left=46, margin_right=136, margin_top=34, width=width)
        figure, all_axes = make_facets(len(races), frame, source(result), wide=wide)
        for axes, race in zip(all_axes, races, strict=True):
            _draw_race(axes, race, result.rows)
        return figure

    sentences = []
    for race in races:
        for row in result.rows:
            times = time_to_peak(race.f1, race.seconds, row.key)
            sentences.append(_peak_sentence(row, times, race.column))
    alt = " ".join(sentences)
    caption = (
        f"{alt} F1 over the training time. Thin lines: seeds; thick lines: their mean, round by "
        "round. Dashed: FedAvg's best F1, mean of the seeds. Dots: mean time at which a seed first "
        "reaches FedAvg's best F1 of the same seed."
    )
    return [make_drawing(sketch, "efficiency", "Time to reach FedAvg's peak", alt, caption)]


def _make_races(result: TableResult) -> list[Race]:
    """The columns in which FedAvg was run."""
    races = []
    for column in result.columns:
        f1 = result.series.f1.get(column, {})
        seconds = result.series.seconds.get(column, {})
        if f1.get(BASELINE) and seconds.get(BASELINE):
            races.append(Race(column, f1, seconds))
    return races


def _peak_sentence(row: TableRow, times: Sequence[float | None], column: str) -> str:
    peak_times = [seconds for seconds in times if seconds is not None]
    if not times:
        return f"{row.label} has not run yet ({column})."
    if not peak_times:
        return f"{row.label} never reaches FedAvg's peak ({column})."
    share = ""
    if len(peak_times) < len(times):
        share = f" in {len(peak_times)} of {plural(len(times), 'seed')}"
    duration = seconds_text(fmean(peak_times))
    return f"{row.label} reaches FedAvg's peak after {duration}{share} ({column})."


def _draw_race(axes: Axes, race: Race, rows: Sequence[TableRow]) -> None:
    unit, sign, unit_name = race.unit
    slots = assign_slots(row.key for row in rows)
    peak = race.peak
    axes.axhline(peak, color=GREY, lw=1.2, ls=(0, (4, 3)))
    ends = [LineEnd(peak, "FedAvg's peak", GREY)]
    values = [peak]
    goals: list[tuple[float, str, str]] = []
    for row in rows:
        colour = slot_colour(slots[row.key])
        row_values = _draw_curves(axes, race, row.key, colour)
        if not row_values:
            continue
        for i, round_values in enumerate(row_values, start=1):
            if i > len(row_values) / 8:  # the steep start may enter from below
                values += round_values
        ends.append(LineEnd(fmean(row_values[-1]), row.label, colour))
        times = time_to_peak(race.f1, race.seconds, row.key)
        peak_times = [seconds / unit for seconds in times if seconds is not None]
        if peak_times:
            text = f"{fmean(peak_times):.1f} {sign}"
            if len(peak_times) < len(times):
                text += f" ({len(peak_times)} of {len(times)} seeds)"
            goals.append((fmean(peak_times), colour, text))
    padding = 0.08 * max(max(values) - min(values), 4)
    axes.set_ylim(min(values) - padding, min(max(values) + padding, 101))
    axes.set_xlim(left=0)
    axes.set_xlabel(f"Training time, {unit_name}")
    axes.set_title(f"{race.column}: macro F1, percent")
    for x, colour, text in goals:
        _draw_goal(axes, (x, peak), colour, text)
    label_line_ends(axes, ends, room=0.06)


def _draw_curves(axes: Axes, race: Race, key: str, colour: str) -> list[Sequence[float]]:
    """The seeds and the mean of a row; returns its values per round, one for each seed."""
    unit = race.unit[0]
    f1 = race.f1.get(key, {})
    seconds = race.seconds.get(key, {})
    scores = over_rounds(f1)
    clock = over_rounds(seconds)
    rounds = [i for i in scores if i in clock]
    if not rounds:
        return []
    for seed, seed_values in f1.items():
        times = [value / unit for value in seconds.get(seed, ())]
        count = min(len(times), len(seed_values))
        axes.plot(times[:count], seed_values[:count], color=colour, lw=0.8, alpha=0.45)
    mean_times = [fmean(clock[i]) / unit for i in rounds]
    mean_scores = [fmean(scores[i]) for i in rounds]
    axes.plot(mean_times, mean_scores, color=colour, lw=2.5, zorder=3)
    return [scores[i] for i in rounds]


def _draw_goal(axes: Axes, place: tuple[float, float], colour: str, text: str) -> None:
    """The point where the peak is reached, with the time below."""
    x, y = place
    axes.plot(x, y, "o", color=colour, ms=10, mec=PAPER, mew=1.5, zorder=5)
    axes.plot([x, x], [axes.get_ylim()[0], y], color=colour, lw=1.4, ls=(0, (1, 2)), zorder=1)
    axes.annotate(
        text,
        (x, 0),
        (5, 7),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        fontsize=SMALL,
    )
