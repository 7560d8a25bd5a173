"""The share of labels that each site flags, delta_k (Eq. 8), against the share that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgsca.report.elements import (
    MAX_LINES,
    MAX_ROWS_AT_ONCE,
    LegendEntry,
    PageSection,
    PlotGallery,
    PlotImage,
)
from fedgsca.report.number_text import percent_text
from fedgsca.report.page_sections import run_section
from fedgsca.report.palette import CLEAN, GREY, NOISY, PAPER, SHADE
from fedgsca.report.plot_style import (
    SMALL,
    format_round_axis,
    make_axes,
    marker_for,
    shorten,
    with_plot_style,
)
from fedgsca.report.run_facts import knows_truth
from fedgsca.report.run_reader import LoadedRun
from fedgsca.report.svg_output import figure_svg


@dataclass(frozen=True)
class NoiseEstimate:
    """One site in its last selection, as shares of its labels."""

    site: str
    # None: not known
    wrong_share: float | None
    flagged_share: float

    def describe(self) -> str:
        """In words."""
        text = f"{self.site}: {percent_text(self.flagged_share)} flagged"
        if self.wrong_share is not None:
            text += f", {percent_text(self.wrong_share)} wrong"
        return text


def noise_estimates(run: LoadedRun) -> list[NoiseEstimate]:
    """Of all sites that log `delta`."""
    estimates = []
    for name, site in run.last_selection.items():
        share = site.number("delta")
        if share is not None:
            estimates.append(NoiseEstimate(name, run.noise_rate(name), share))
    return estimates


@run_section(position=60)
def noise_estimate_section(run: LoadedRun) -> PageSection | None:
    """One small plot per site, or one plot of all sites if there are many."""
    estimates = noise_estimates(run)
    if not estimates:
        return None
    has_truth = knows_truth(run, [estimate.site for estimate in estimates])
    if len(estimates) > MAX_ROWS_AT_ONCE:
        gallery = _one_plot(estimates, has_truth)
    else:
        gallery = _plot_per_site(run, estimates, has_truth)
    if not has_truth:
        intro = "The share of its labels that each site flags (δ)."
        return PageSection("found", "Estimated noise", intro, [gallery])
    intro = (
        "The share of its labels that each site flags (δ), beside the share that is really wrong. "
        "The closer the two, the better the federation knows its own noise."
    )
    return PageSection("found", "Estimated and actual noise", intro, [gallery])


def _one_plot(estimates: Sequence[NoiseEstimate], has_truth: bool) -> PlotGallery:
    legend = [LegendEntry("flagged by the selector", "clean", "dot")]
    if has_truth:
        legend.append(LegendEntry("really wrong", "noisy", "ring"))
    drawn_estimates = _worst_estimates(estimates)
    alt = "; ".join(estimate.describe() for estimate in drawn_estimates) + "."
    note = ""
    if len(drawn_estimates) < len(estimates):
        criterion = "whose estimates are worst" if has_truth else "that flag most"
        note = f"Drawn: the {len(drawn_estimates)} of {len(estimates):,} sites {criterion}."
    picture = PlotImage(draw_all_estimates(drawn_estimates), alt)
    return PlotGallery([picture], "wide", legend, note)


def _worst_estimates(estimates: Sequence[NoiseEstimate]) -> list[NoiseEstimate]:
    """As many as fit into a plot, in their order: the largest errors, or the largest shares."""
    ranking = sorted(
        estimates, key=lambda item: -abs(item.flagged_share - (item.wrong_share or 0.0))
    )
    sites = {estimate.site for estimate in ranking[:MAX_LINES]}
    return [estimate for estimate in estimates if estimate.site in sites]


def _plot_per_site(
    run: LoadedRun, estimates: Sequence[NoiseEstimate], has_truth: bool
) -> PlotGallery:
    legend = [LegendEntry("flagged by the selector", "clean")]
    if has_truth:
        legend.append(LegendEntry("really wrong", "noisy", "line", (4, 2.5)))
    if run.selection_start:
        legend.append(LegendEntry("warm-up", "shade", "block"))
    top = _common_top(run, estimates)
    pictures = []
    for estimate in estimates:
        drawing = draw_estimate_over_rounds(run, estimate, top)
        pictures.append(PlotImage(drawing, f"{estimate.describe()}."))
    return PlotGallery(pictures, "quarter", legend)


def _common_top(run: LoadedRun, estimates: Sequence[NoiseEstimate]) -> float:
    """The upper end of all axes, in percent."""
    shares = []
    for estimate in estimates:
        shares.append(estimate.wrong_share or 0.0)
        _, values = run.site_series(estimate.site, "delta")
        shares += values
    return 100 * min(1.03, max(0.1, 1.15 * max(shares)))


@with_plot_style
def draw_estimate_over_rounds(run: LoadedRun, estimate: NoiseEstimate, top: float) -> str:
    """The share that a site flags, round by round, over the share that is wrong; top in percent."""
    figure, axes = make_axes(250, 190, margin_left=42, margin_right=8, margin_top=40)
    rounds, shares = run.site_series(estimate.site, "delta")
    subtitle = f"flagged {100 * shares[-1]:.0f} %"
    if estimate.wrong_share is not None:
        wrong = 100 * estimate.wrong_share
        axes.axhline(wrong, color=NOISY, lw=2, ls=(0, (4, 2.5)))
        subtitle += f", wrong {wrong:.0f} %"
    if run.selection_start:
        axes.axvspan(-run.num_rounds, run.selection_start + 0.5, color=SHADE, lw=0)
    percentages = [100 * share for share in shares]
    axes.plot(rounds, percentages, color=CLEAN, marker=marker_for(len(rounds), 12), ms=4.5)
    axes.set_ylim(-0.03 * top, top)
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.locator_params(axis="y", nbins=4)
    format_round_axis(axes, run.num_rounds, ticks=5)
    axes.set_title(shorten(estimate.site, 27), pad=22)
    axes.annotate(
        subtitle,
        (0, 1),
        (0, 7),
        xycoords="axes fraction",
        textcoords="offset points",
        color=GREY,
        fontsize=SMALL,
    )
    return figure_svg(figure, f"noise-{estimate.site}")


@with_plot_style
def draw_all_estimates(estimates: Sequence[NoiseEstimate]) -> str:
    """One line per site; the gap between the two dots is the error of the estimate."""
    num_sites = len(estimates)
    figure, axes = make_axes(
        1000,
        70 + 20 * num_sites,
        margin_left=210,
        margin_right=30,
        margin_top=10,
        margin_bottom=40,
    )
    heights = np.arange(num_sites)[::-1]
    for y, estimate in zip(heights, estimates, strict=True):
        share = 100 * estimate.flagged_share
        if estimate.wrong_share is not None:
            wrong = 100 * estimate.wrong_share
            axes.plot([wrong, share], [y, y], color=GREY, lw=2)
            axes.plot(wrong, y, "o", ms=8, mfc=PAPER, mec=NOISY, mew=2)
        axes.plot(share, y, "o", ms=8, color=CLEAN)
    axes.set_yticks(heights, [shorten(estimate.site, 30) for estimate in estimates])
    axes.set_ylim(-0.8, num_sites - 0.2)
    axes.xaxis.set_major_formatter("{x:.0f} %")
    axes.set_xlabel("Share of the labels of the site")
    return figure_svg(figure, "noise-all")
