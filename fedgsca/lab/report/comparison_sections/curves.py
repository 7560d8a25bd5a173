"""Learning curves of all methods, drawn over each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from fedgsca.federation.records import finite
from fedgsca.lab.report.comparison_page import LoadedComparison
from fedgsca.lab.report.elements import PageSection, PlotGallery, PlotImage, comparison_section
from fedgsca.lab.report.plots import (
    LineEnd,
    figure_svg,
    format_round_axis,
    label_line_ends,
    make_axes,
    method_slot,
    slot_colour,
    slot_line_style,
    with_plot_style,
)
from fedgsca.lab.report.run_reader import LoadedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# round, from 1 -> one value per seed
RoundCurves = Mapping[int, Sequence[float]]


@comparison_section(position=20)
def learning_comparison_section(comparison: LoadedComparison) -> PageSection | None:
    """Macro F1 over the rounds: one picture per condition, if a method has several rounds."""
    pictures = []
    is_wide = len(comparison.noises) == 1
    for i, noise in enumerate(comparison.noises):
        curves = {}
        for method in comparison.labels:
            seed_curves = collect_curves(comparison.find_runs(method, noise))
            if seed_curves:
                curves[method] = seed_curves
        if not any(len(method_curves) > 1 for method_curves in curves.values()):
            continue
        ends = []
        for method, method_curves in curves.items():
            last = list(method_curves.values())[-1]
            ends.append(f"{comparison.labels[method]} {fmean(last):.3g}")
        alt = f"Noise {noise}, one line per method; in the last round: {', '.join(ends)}."
        names = (comparison.labels, f"Noise {noise}", f"f1-{i}")
        pictures.append(PlotImage(draw_method_curves(curves, *names, is_wide=is_wide), alt))
    if not pictures:
        return None
    intro = (
        "Macro F1 on the test set, percent, round by round: the line is the mean over the seeds, "
        "the band their range. Low values of the first rounds may lie below the plot. A curve that "
        "falls from its peak often belongs to a model that memorises wrong labels."
    )
    gallery = PlotGallery(pictures, "wide" if is_wide else "half", comparison.legend())
    return PageSection("learning", "Learning curves", intro, [gallery])


def collect_curves(runs: Sequence[LoadedRun]) -> RoundCurves:
    """Macro F1 over rounds, as far as all seeds have it."""
    values_of_round: dict[int, list[float]] = {}
    for run in runs:
        for record in run.metrics:
            value = finite(record.f1)
            if value is not None:
                values_of_round.setdefault(record.round + 1, []).append(value)
    num_seeds = max(map(len, values_of_round.values()), default=0)
    curves = {}
    for number in sorted(values_of_round):
        if len(values_of_round[number]) == num_seeds:
            curves[number] = values_of_round[number]
    return curves


@with_plot_style
def draw_method_curves(
    curves: Mapping[str, RoundCurves],
    labels: Mapping[str, str],
    title: str,
    name: str,
    *,
    is_wide: bool,
) -> str:
    """One line per method: the mean over the seeds, with a band over their range."""
    figure, axes = make_axes(1000, 360, margin_right=122) if is_wide else make_axes(460, 290)
    ends = []
    for method, method_curves in curves.items():
        last_value = _draw_mean(axes, method_curves, method_slot(method))
        ends.append(LineEnd(last_value, labels[method], slot_colour(method_slot(method))))
    last_round = max(max(method_curves) for method_curves in curves.values())
    axes.set_ylim(*score_range(list(curves.values()), last_round))
    format_round_axis(axes, last_round)
    axes.set_title(title)
    if is_wide:
        label_line_ends(axes, ends, room=0.06)
    return figure_svg(figure, name)


def _draw_mean(axes: Axes, curves: RoundCurves, slot: int) -> float:
    """Draw mean and range in the colour and dash of a slot. Returns the last value of the mean."""
    rounds = list(curves)
    means = [fmean(curves[number]) for number in rounds]
    if max(map(len, curves.values())) > 1:
        low = [min(curves[number]) for number in rounds]
        high = [max(curves[number]) for number in rounds]
        axes.fill_between(rounds, low, high, color=slot_colour(slot), alpha=0.16, lw=0)
    axes.plot(rounds, means, color=slot_colour(slot), ls=slot_line_style(slot))
    return means[-1]


def score_range(curves: Sequence[RoundCurves], last_round: int) -> tuple[float, float]:
    """The lowest and the highest F1 of the plot.

    Low values of the steep first rounds lie below: they would press the differences together.
    The highest value of any round is always inside.
    """
    low = min(_values(curves, last_round / 8) or _values(curves))
    high = max(_values(curves))
    padding = 0.06 * max(high - low, 4)
    return low - padding, min(high + padding, 101)


def _values(curves: Sequence[RoundCurves], after_round: float = 0) -> list[float]:
    """All values of all seeds in the rounds after `after_round`."""
    values: list[float] = []
    for curve in curves:
        for number, seed_values in curve.items():
            if number > after_round:
                values += seed_values
    return values
