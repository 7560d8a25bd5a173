"""Learning curves, stability, and estimated against actual noise, of all methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from fedgsca.federation.records import finite
from fedgsca.lab.report.comparison_page import LoadedComparison
from fedgsca.lab.report.elements import PageSection, PlotGallery, PlotImage, comparison_section
from fedgsca.lab.report.plots import (
    GREY,
    PAPER,
    LineEnd,
    figure_svg,
    format_round_axis,
    label_line_ends,
    make_axes,
    method_slot,
    scale_value_axis,
    slot_colour,
    slot_line_style,
    slot_token,
    with_plot_style,
)
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.report.run_sections.selection import noise_estimates
from fedgsca.lab.table import LegendEntry

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Field = Literal["f1", "stability"]
# round, from 1 -> one value per seed
RoundCurves = Mapping[int, Sequence[float]]


@comparison_section(position=20)
def learning_comparison_section(comparison: LoadedComparison) -> PageSection | None:
    """Macro F1 over the rounds."""
    intro = (
        "Macro F1 on the test set, percent, round by round: the line is the mean over the seeds, "
        "the band their range. Low values of the first rounds may lie below the plot. A curve that "
        "falls from its peak often belongs to a model that memorises wrong labels."
    )
    return _section(comparison, "f1", "learning", "Learning curves", intro)


@comparison_section(position=50)
def stability_comparison_section(comparison: LoadedComparison) -> PageSection | None:
    """The stability metric over the rounds."""
    intro = (
        "How far the sites move the shared model in a round (the paper's stability metric). "
        "Lower is steadier."
    )
    return _section(comparison, "stability", "stability", "Stability of the training", intro)


def _section(
    comparison: LoadedComparison, field: Field, anchor: str, title: str, intro: str
) -> PageSection | None:
    """One picture per condition, if any method has more than one round."""
    pictures = []
    is_single = len(comparison.noises) == 1
    for i, noise in enumerate(comparison.noises):
        curves = {}
        for method in comparison.labels:
            seed_curves = collect_curves(comparison.find_runs(method, noise), field)
            if seed_curves:
                curves[method] = seed_curves
        if not any(len(method_curves) > 1 for method_curves in curves.values()):
            continue
        ends = []
        for method, method_curves in curves.items():
            last = list(method_curves.values())[-1]
            ends.append(f"{comparison.labels[method]} {fmean(last):.3g}")
        alt = f"Noise {noise}, one line per method; in the last round: {', '.join(ends)}."
        names = (comparison.labels, f"Noise {noise}", f"{field}-{i}")
        small = draw_method_curves(curves, *names, wide=False, is_score=field == "f1")
        large = ""
        if is_single:
            large = draw_method_curves(curves, *names, wide=True, is_score=field == "f1")
        pictures.append(PlotImage(large or small, alt, narrow=small if large else ""))
    if not pictures:
        return None
    gallery = PlotGallery(pictures, "wide" if is_single else "half", comparison.legend())
    return PageSection(anchor, title, intro, [gallery])


def collect_curves(runs: Sequence[LoadedRun], field: Field) -> RoundCurves:
    """One number of the log over rounds, as far as all seeds have it."""
    values_of_round: dict[int, list[float]] = {}
    for run in runs:
        for record in run.metrics:
            value = finite(getattr(record, field))
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
    wide: bool,
    is_score: bool,
) -> str:
    """One line per method: the mean over the seeds, with a band over their range."""
    figure, axes = make_axes(1000, 360, margin_right=122) if wide else make_axes(460, 290)
    ends = []
    for method, method_curves in curves.items():
        last_value = _draw_mean(axes, method_curves, method_slot(method))
        ends.append(LineEnd(last_value, labels[method], slot_colour(method_slot(method))))
    last_round = max(max(method_curves) for method_curves in curves.values())
    if is_score:
        axes.set_ylim(*score_range(list(curves.values()), last_round))
    else:
        scale_value_axis(axes, _values(list(curves.values())))
    format_round_axis(axes, last_round)
    axes.set_title(title)
    if wide and is_score:
        label_line_ends(axes, ends, room=0.06)
    return figure_svg(figure, f"{name}-{wide}")


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


# condition -> (share wrong, share estimated) of every site and seed
EstimatePoints = Mapping[str, Sequence[tuple[float, float]]]


@comparison_section(position=40)
def estimate_comparison_section(comparison: LoadedComparison) -> PageSection | None:
    """One plot per method that estimates how many labels are wrong."""
    pictures = []
    for method, label in comparison.labels.items():
        points: dict[str, list[tuple[float, float]]] = {}
        for noise in comparison.noises:
            for run in comparison.find_runs(method, noise):
                for estimate in noise_estimates(run):
                    if estimate.wrong_share is not None:
                        point = (estimate.wrong_share, estimate.estimated_share)
                        points.setdefault(noise, []).append(point)
        gaps: list[float] = []
        for pairs in points.values():
            gaps += [abs(wrong - share) for wrong, share in pairs]
        if gaps:
            caption = f"{label}: mean difference {100 * sum(gaps) / len(gaps):.1f} points"
            drawing = draw_estimate_points(points, f"estimates-{method}")
            pictures.append(PlotImage(drawing, f"{caption}, by site and seed.", caption))
    if not pictures:
        return None
    legend = []
    for i, noise in enumerate(comparison.noises):
        legend.append(LegendEntry(f"noise {noise}", slot_token(i), "dot"))
    intro = "Every dot is one site of one run, in the last round. On the dashed line δ is right."
    gallery = PlotGallery(pictures, "half", legend)
    return PageSection("estimates", "Estimated and actual noise", intro, [gallery])


@with_plot_style
def draw_estimate_points(points: EstimatePoints, name: str) -> str:
    """One colour per condition; on the diagonal, the estimate is correct."""
    figure, axes = make_axes(490, 400, margin_left=54, margin_top=12)
    largest = max(max(map(max, pairs)) for pairs in points.values())
    top = 100 * min(1.0, max(0.1, 1.1 * largest))
    axes.plot([0, top], [0, top], color=GREY, lw=1.2, ls=(0, (4, 3)))
    for i, pairs in enumerate(points.values()):
        x = [100 * wrong for wrong, _ in pairs]
        y = [100 * share for _, share in pairs]
        axes.plot(x, y, "o", ms=9, color=slot_colour(i), alpha=0.8, mec=PAPER, mew=1)
    axes.set_xlim(-0.03 * top, top)
    axes.set_ylim(-0.03 * top, top)
    axes.grid(True, axis="x")
    axes.xaxis.set_major_formatter("{x:.0f} %")
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.set_xlabel("Labels that are wrong")
    axes.set_ylabel("Labels estimated as wrong (δ)")
    return figure_svg(figure, name)
