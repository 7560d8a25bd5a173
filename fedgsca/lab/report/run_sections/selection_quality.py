"""How much noise the sites estimate, and how often the selector is right (simulations)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgsca.federation.records import SiteRecord
from fedgsca.lab.report.elements import (
    MAX_LINES,
    PageElement,
    PageSection,
    PlotGallery,
    PlotImage,
    fold_long_table,
)
from fedgsca.lab.report.number_text import count_text, percent_text, ratio_text
from fedgsca.lab.report.page_sections import run_section
from fedgsca.lab.report.palette import CLEAN, GREY, NOISY, PAPER
from fedgsca.lab.report.plot_style import make_axes, shorten, with_plot_style
from fedgsca.lab.report.run_facts import knows_truth
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.report.svg_output import figure_svg
from fedgsca.lab.table import Cell, LegendEntry, Table

# values in the log of a site that only a simulation has
MEASURES = ("noisy_precision", "noisy_recall", "noisy_auroc", "pseudo_accuracy")


@dataclass(frozen=True)
class NoiseEstimate:
    """One site in its last selection, as shares of its labels."""

    site: str
    # None: not known
    wrong_share: float | None
    estimated_share: float

    def describe(self) -> str:
        """In words."""
        text = f"{self.site}: {percent_text(self.estimated_share)} estimated"
        if self.wrong_share is not None:
            text += f", {percent_text(self.wrong_share)} wrong"
        return text


def noise_estimates(run: LoadedRun) -> list[NoiseEstimate]:
    """Of all sites that log `delta`, the share of wrong labels that they estimate (Eq. 8)."""
    estimates = []
    for name, site in run.last_selection.items():
        share = site.number("delta")
        if share is not None:
            estimates.append(NoiseEstimate(name, run.noise_rate(name), share))
    return estimates


@run_section(position=60)
def noise_estimate_section(run: LoadedRun) -> PageSection | None:
    """One line per site; those with the largest errors if there are many."""
    estimates = noise_estimates(run)
    if not estimates:
        return None
    has_truth = knows_truth(run, [estimate.site for estimate in estimates])
    ranking = sorted(
        estimates, key=lambda item: -abs(item.estimated_share - (item.wrong_share or 0.0))
    )
    sites = {estimate.site for estimate in ranking[:MAX_LINES]}
    drawn_estimates = [estimate for estimate in estimates if estimate.site in sites]
    legend = [LegendEntry("estimated (δ)", "clean", "dot")]
    intro = "The share of wrong labels that each site estimates (δ)."
    if has_truth:
        legend.append(LegendEntry("really wrong", "noisy", "ring"))
        intro = f"{intro[:-1]}, and the share that is really wrong."
    note = ""
    if len(drawn_estimates) < len(estimates):
        count = f"{len(drawn_estimates)} of {len(estimates):,} sites"
        note = f"Drawn: {count}, those with the largest errors."
    alt = "; ".join(estimate.describe() for estimate in drawn_estimates) + "."
    gallery = PlotGallery([PlotImage(draw_estimates(drawn_estimates), alt)], "wide", legend, note)
    return PageSection("estimates", "Estimated noise", intro, [gallery])


@with_plot_style
def draw_estimates(estimates: Sequence[NoiseEstimate]) -> str:
    """One line per site; the gap between the two dots is the error of the estimate."""
    height = 70 + 22 * len(estimates)
    figure, axes = make_axes(1000, height, 210, 30, margin_top=10, margin_bottom=40)
    heights = np.arange(len(estimates))[::-1]
    for y, estimate in zip(heights, estimates, strict=True):
        share = 100 * estimate.estimated_share
        if estimate.wrong_share is not None:
            wrong = 100 * estimate.wrong_share
            axes.plot([wrong, share], [y, y], color=GREY, lw=2)
            axes.plot(wrong, y, "o", ms=8, mfc=PAPER, mec=NOISY, mew=2)
        axes.plot(share, y, "o", ms=8, color=CLEAN)
    axes.set_yticks(heights, [shorten(estimate.site, 30) for estimate in estimates])
    axes.set_ylim(-0.8, len(estimates) - 0.2)
    axes.xaxis.set_major_formatter("{x:.0f} %")
    axes.set_xlabel("Share of the labels of the site")
    return figure_svg(figure, "noise-estimates")


@run_section(position=70)
def quality_section(run: LoadedRun) -> PageSection | None:
    """Precision, recall and AUROC of "noisy", and the accuracy of pseudo-labels."""
    selection = run.last_selection
    if not any(_is_measured(site) for site in selection.values()):
        return None
    intro = (
        "Only a simulation can measure this, because it knows the truth. Precision: the share of "
        "labels taken as noisy that are wrong; at a clean site each is a false alarm. Recall: the "
        "share of wrong labels that are taken as noisy. AUROC: how well the ranking separates "
        "wrong from correct labels; 0.5 is chance, 1 is perfect."
    )
    head = ["Site", "Clean", "Noisy", "Precision", "Recall", "AUROC", "Pseudo-labels", "Correct"]
    rows = [_quality_row(name, site) for name, site in selection.items()]
    table = Table("Selection in the last round", head, rows, bars=(3, 4, 5, 7))
    blocks: list[PageElement] = [fold_long_table(table)]
    return PageSection("quality", "Quality of the selection", intro, blocks)


def _is_measured(site: SiteRecord) -> bool:
    return any(site.number(name) is not None for name in MEASURES)


def _quality_row(name: str, site: SiteRecord) -> list[str | Cell]:
    num_clean = site.number("clean")
    num_noisy = None if num_clean is None else site.num_samples - num_clean
    num_pseudo = site.number("pseudo" if "pseudo" in site.values else "pseudo_count") or 0.0
    accuracy = site.number("pseudo_accuracy") if num_pseudo else None
    return [
        name,
        count_text(num_clean),
        count_text(num_noisy),
        _bar_cell(site.number("noisy_precision")),
        _bar_cell(site.number("noisy_recall")),
        _bar_cell(site.number("noisy_auroc")),
        count_text(num_pseudo),
        _bar_cell(accuracy),
    ]


def _bar_cell(value: float | None) -> Cell:
    return Cell(ratio_text(value), bar=value)
