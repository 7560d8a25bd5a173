"""How often the selector and the pseudo-labels are correct, as a table and curves (simulations)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.experiment.records import SiteRecord, finite
from fedgsca.report.elements import (
    MAX_LINES,
    LegendEntry,
    PageElement,
    PageSection,
    PageTable,
    PlotGallery,
    PlotImage,
    TableCell,
    fold_long_table,
)
from fedgsca.report.number_text import count_text, percent_text, ratio_text
from fedgsca.report.page_sections import run_section
from fedgsca.report.palette import (
    GRID,
    INK,
    NUM_COLOURS,
    slot_colour,
    slot_dashes,
    slot_line_style,
    slot_token,
)
from fedgsca.report.plot_style import format_round_axis, make_axes, with_plot_style
from fedgsca.report.run_reader import LoadedRun
from fedgsca.report.svg_output import figure_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# value in the log of a site -> title of its plot
MEASURES = {
    "noisy_precision": "Precision of the flags",
    "noisy_recall": "Recall of wrong labels",
    "noisy_auroc": "AUROC",
    "pseudo_accuracy": "Correct pseudo-labels",
}


@run_section(position=70)
def quality_section(run: LoadedRun) -> PageSection | None:
    """Precision, recall and AUROC of "noisy", and the accuracy of pseudo-labels."""
    measures = _logged_measures(run)
    if not measures:
        return None
    intro = (
        "Only a simulation can measure this, because it knows the truth. Precision: the share of "
        "flagged labels that are wrong. Recall: the share of wrong labels that are flagged. AUROC: "
        "how well the ranking separates wrong from correct labels; 0.5 is chance, 1 is perfect."
    )
    blocks: list[PageElement] = [_quality_table(run)]
    noisy_sites = [name for name in run.last_selection if run.noise_rate(name)]
    if _has_curve(run, noisy_sites, measures):
        blocks.append(_quality_curves(run, noisy_sites, measures))
    return PageSection("quality", "Quality of the selection", intro, blocks)


def _logged_measures(run: LoadedRun) -> list[str]:
    """The measures that any site has a number for."""
    sites = run.last_selection.values()
    measures = []
    for measure in MEASURES:
        if any(site.number(measure) is not None for site in sites):
            measures.append(measure)
    return measures


def _has_curve(run: LoadedRun, sites: Sequence[str], measures: Sequence[str]) -> bool:
    """Whether any measure of any site has more than one point."""
    for site in sites:
        for measure in measures:
            if len(run.site_series(site, measure)[0]) > 1:
                return True
    return False


def _quality_table(run: LoadedRun) -> PageElement:
    level = finite(run.settings.method_option("noise_level"))
    note = (
        "At a clean site every flag is a false alarm. Pseudo-labels are given to flagged images "
        "for which the model was confident enough; a site that flags less than "
        f"{percent_text(0.1 if level is None else level)} uses none and keeps all given labels."
    )
    head = ["Site", "Clean", "Flagged", "Precision", "Recall", "AUROC", "Pseudo-labels", "Correct"]
    rows = [_quality_row(name, site) for name, site in run.last_selection.items()]
    return fold_long_table(
        PageTable("Selection in the last round", head, rows, bars=(3, 4, 5, 7), note=note)
    )


def _quality_row(name: str, site: SiteRecord) -> list[str | TableCell]:
    num_clean = site.number("clean")
    num_flags = None if num_clean is None else site.num_samples - num_clean
    num_pseudo = site.number("pseudo" if "pseudo" in site.values else "pseudo_count") or 0.0
    accuracy = site.number("pseudo_accuracy") if num_pseudo else None
    return [
        name,
        count_text(num_clean),
        count_text(num_flags),
        _bar_cell(site.number("noisy_precision")),
        _bar_cell(site.number("noisy_recall")),
        _bar_cell(site.number("noisy_auroc")),
        count_text(num_pseudo),
        _bar_cell(accuracy),
    ]


def _bar_cell(value: float | None) -> TableCell:
    return TableCell(ratio_text(value), value)


def _quality_curves(run: LoadedRun, sites: Sequence[str], measures: Sequence[str]) -> PlotGallery:
    pictures = []
    for measure in measures:
        drawing = draw_quality_over_rounds(run, measure, sites)
        pictures.append(PlotImage(drawing, _describe_curve(run, measure, sites)))
    legend = [LegendEntry("mean of the noisy sites", "ink"), LegendEntry("one site", "grid")]
    if len(sites) <= NUM_COLOURS:
        legend = [
            LegendEntry(name, slot_token(i), "line", slot_dashes(i)) for i, name in enumerate(sites)
        ]
    return PlotGallery(pictures, "quarter", legend)


def _describe_curve(run: LoadedRun, measure: str, sites: Sequence[str]) -> str:
    ends = []
    for site in sites[:MAX_LINES]:
        _, values = run.site_series(site, measure)
        if values:
            ends.append(f"{site} {values[-1]:.2f}")
    if len(sites) > MAX_LINES:
        ends.append(f"and {len(sites) - MAX_LINES:,} more sites")
    return f"{MEASURES[measure]} over rounds, final values: {', '.join(ends)}."


@with_plot_style
def draw_quality_over_rounds(run: LoadedRun, measure: str, sites: Sequence[str]) -> str:
    """A line per site; for many sites thin lines and their mean."""
    figure, axes = make_axes(250, 190, margin_left=30, margin_right=8)
    if len(sites) <= NUM_COLOURS:
        for i, site in enumerate(sites):
            rounds, values = run.site_series(site, measure)
            marker = "o" if len(rounds) == 1 else None
            style = slot_line_style(i)
            axes.plot(rounds, values, marker=marker, color=slot_colour(i), ls=style, lw=2)
    else:
        _draw_mean(axes, run, measure, sites)
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "", "0.5", "", "1"])
    format_round_axis(axes, run.num_rounds, ticks=5)
    axes.set_title(MEASURES[measure])
    return figure_svg(figure, f"quality-{measure}")


def _draw_mean(axes: Axes, run: LoadedRun, measure: str, sites: Sequence[str]) -> None:
    values_of_round: dict[int, list[float]] = {}
    step = -(-len(sites) // MAX_LINES)  # more lines would be a grey area
    drawn_sites = set(sites[::step])
    for site in sites:
        rounds, values = run.site_series(site, measure)
        if site in drawn_sites:
            axes.plot(rounds, values, marker="o" if len(rounds) == 1 else None, color=GRID, lw=1)
        for number, value in zip(rounds, values, strict=True):
            values_of_round.setdefault(number, []).append(value)
    rounds = sorted(values_of_round)
    means = [float(np.mean(values_of_round[number])) for number in rounds]
    axes.plot(rounds, means, color=INK)
