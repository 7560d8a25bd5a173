"""Flagged against wrong labels, one dot per site and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedgsca.report.elements import LegendEntry, PageSection, PlotGallery, PlotImage
from fedgsca.report.loaded_comparison import LoadedComparison
from fedgsca.report.page_sections import comparison_section
from fedgsca.report.palette import GREY, PAPER, slot_colour, slot_token
from fedgsca.report.plot_style import make_axes, with_plot_style
from fedgsca.report.run_sections.noise_estimates import noise_estimates
from fedgsca.report.svg_output import figure_svg

# noise -> (share wrong, share flagged) of every site and seed
EstimatePoints = Mapping[str, Sequence[tuple[float, float]]]


@comparison_section(position=40)
def estimate_comparison_section(comparison: LoadedComparison) -> PageSection | None:
    """One plot per method that flags labels."""
    pictures = []
    for method, label in comparison.labels.items():
        points = _collect_points(comparison, method)
        if points:
            gap = 100 * _mean_gap(points)
            alt = (
                f"{label}: labels flagged against labels wrong, by site and seed; "
                f"the mean difference is {gap:.1f} points."
            )
            caption = f"{label}: the mean difference is {gap:.1f} points"
            drawing = draw_estimates(points, f"found-{method}")
            pictures.append(PlotImage(drawing, alt, caption))
    if not pictures:
        return None
    legend = [
        LegendEntry(f"noise {noise}", slot_token(i), "dot")
        for i, noise in enumerate(comparison.noises)
    ]
    intro = (
        "Every dot is one site of one run, in the last round. On the dashed line, as many labels "
        "are flagged as are wrong."
    )
    gallery = PlotGallery(pictures, "half", legend)
    return PageSection("found", "Estimated and actual noise", intro, [gallery])


def _collect_points(
    comparison: LoadedComparison, method: str
) -> dict[str, list[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {}
    for noise in comparison.noises:
        for run in comparison.find_runs(method, noise):
            for estimate in noise_estimates(run):
                if estimate.wrong_share is not None:
                    point = (estimate.wrong_share, estimate.flagged_share)
                    points.setdefault(noise, []).append(point)
    return points


def _mean_gap(points: EstimatePoints) -> float:
    """Mean absolute difference of the two shares."""
    gaps: list[float] = []
    for pairs in points.values():
        gaps += [abs(wrong - share) for wrong, share in pairs]
    return fmean(gaps)


@with_plot_style
def draw_estimates(points: EstimatePoints, name: str) -> str:
    """One colour per noise; on the diagonal, the estimate is correct."""
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
    axes.set_ylabel("Labels that are flagged")
    return figure_svg(figure, name)
