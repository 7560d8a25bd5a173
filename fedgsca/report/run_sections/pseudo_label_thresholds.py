"""The confidence that a pseudo-label of each class needs (Eq. 9-10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedgsca.report.elements import MAX_LINES, LegendEntry, PageSection, PlotGallery, PlotImage
from fedgsca.report.page_sections import run_section
from fedgsca.report.palette import GREY, MAIN, PAPER
from fedgsca.report.plot_style import SMALL, make_axes, shorten, with_plot_style
from fedgsca.report.run_reader import LoadedRun
from fedgsca.report.svg_output import figure_svg

Thresholds = Mapping[str, Sequence[float | None]]  # site -> one per class; None: not reported


@run_section(position=80)
def threshold_section(run: LoadedRun) -> PageSection | None:
    """For methods that log `thresholds`, one per class."""
    thresholds = {}
    for name, site in run.last_selection.items():
        values = site.numbers("thresholds")
        if values and len(values) == len(run.classes):
            thresholds[name] = values
    means = _class_means(thresholds, len(run.classes))
    if not means:
        return None
    low = min(means, key=means.__getitem__)
    high = max(means, key=means.__getitem__)
    alt = (
        f"Thresholds by class: lowest on average for {run.classes[low]} ({means[low]:.2f}), "
        f"highest for {run.classes[high]} ({means[high]:.2f})."
    )
    intro = (
        "An image whose label is flagged gets the model's own opinion as its new label (a "
        "pseudo-label) if the model is confident enough. The confidence that is needed depends on "
        "the class: it is lower where the model is still unsure, so that rare classes get a chance."
    )
    narrow = draw_thresholds(thresholds, run.classes, wide=False)
    picture = PlotImage(draw_thresholds(thresholds, run.classes), alt, narrow=narrow)
    legend = [
        LegendEntry("one site", "s0", "dot"),
        LegendEntry("range over the sites", "s0-soft", "block"),
    ]
    title = "Confidence that a new label needs"
    return PageSection("thresholds", title, intro, [PlotGallery([picture], "wide", legend)])


def _class_means(thresholds: Thresholds, num_classes: int) -> dict[int, float]:
    """Mean over the sites for every class that any site reports."""
    means = {}
    for c in range(num_classes):
        values = [site[c] for site in thresholds.values()]
        numbers = [value for value in values if value is not None]
        if numbers:
            means[c] = sum(numbers) / len(numbers)
    return means


@with_plot_style
def draw_thresholds(thresholds: Thresholds, classes: Sequence[str], *, wide: bool = True) -> str:
    """A dot per site, a bar over their range, and the mean at the right."""
    # (sites, C); NaN: the site has too few images of the class
    values = np.array(list(thresholds.values()), dtype=np.float64)
    width, margin, max_letters = (1000, 230, 32) if wide else (440, 140, 19)
    figure, axes = make_axes(
        width,
        60 + 26 * len(classes),
        margin_left=margin,
        margin_right=56,
        margin_top=10,
        margin_bottom=40,
    )
    heights = np.arange(len(classes))[::-1]
    for height, column in zip(heights, values.T, strict=True):
        numbers = column[np.isfinite(column)]
        mean = "few"
        if numbers.size:
            axes.hlines(height, numbers.min(), numbers.max(), color=MAIN, lw=9, alpha=0.25)
            mean = f"{numbers.mean():.2f}"
        axes.text(1.01, height, mean, va="center", color=GREY, fontsize=SMALL)
    alpha = 0.8 if len(values) < 10 else 0.4
    for row in values[:: -(-len(values) // MAX_LINES)]:  # the bars have the range of all sites
        axes.plot(row, heights, "o", ms=7, color=MAIN, alpha=alpha, mec=PAPER, mew=0.8)
    axes.set_yticks(heights, [shorten(name, max_letters) for name in classes])
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.7, len(classes) - 0.3)
    axes.grid(True, axis="x")
    axes.set_xlabel("Confidence needed (right: mean)")
    return figure_svg(figure, f"thresholds-{wide}")
