"""Estimated against actual noise, one dot per site and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedgsca.lab.report.comparison_page import LoadedComparison
from fedgsca.lab.report.elements import PageSection, PlotGallery, PlotImage
from fedgsca.lab.report.page_sections import comparison_section
from fedgsca.lab.report.palette import GREY, PAPER, slot_colour, slot_token
from fedgsca.lab.report.plot_style import make_axes, with_plot_style
from fedgsca.lab.report.run_sections.selection_quality import noise_estimates
from fedgsca.lab.report.svg_output import figure_svg
from fedgsca.lab.table import LegendEntry

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
