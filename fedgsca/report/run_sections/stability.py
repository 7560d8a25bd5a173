"""How far the sites move the shared model in each round: the paper's stability metric."""

from __future__ import annotations

from fedgsca.experiment.records import finite
from fedgsca.report.elements import PageSection, PlotGallery, PlotImage
from fedgsca.report.page_sections import run_section
from fedgsca.report.palette import MAIN, PAPER
from fedgsca.report.plot_style import (
    format_round_axis,
    make_axes,
    marker_for,
    scale_value_axis,
    with_plot_style,
)
from fedgsca.report.run_reader import LoadedRun
from fedgsca.report.svg_output import figure_svg


@run_section(position=90)
def stability_section(run: LoadedRun) -> PageSection | None:
    """From the second round on."""
    _, values = _points(run)
    if len(values) < 2:
        return None
    alt = (
        f"Stability curve: {values[0]:.3g} in the first round, {values[-1]:.3g} in the last, "
        f"highest value {max(values):.3g}."
    )
    intro = (
        "How far the sites pull the shared model away from its previous state: the squared "
        "distance between the weights of a site before and after its training, averaged over the "
        "sites (the paper's stability metric). Lower is steadier."
    )
    picture = PlotImage(draw_stability(run), alt, narrow=draw_stability(run, wide=False))
    title = "Stability of the training"
    return PageSection("stability", title, intro, [PlotGallery([picture], "wide")])


def _points(run: LoadedRun) -> tuple[list[int], list[float]]:
    """Rounds, from 1, and stability."""
    rounds = []
    values = []
    for record in run.metrics:
        value = finite(record.stability)
        if value is not None:
            rounds.append(record.round + 1)
            values.append(value)
    return rounds, values


@with_plot_style
def draw_stability(run: LoadedRun, *, wide: bool = True) -> str:
    """Mean squared distance; logarithmic where it spans orders of magnitude."""
    rounds, values = _points(run)
    figure, axes = make_axes(1000 if wide else 440, 250, margin_left=52)
    axes.plot(rounds, values, color=MAIN, marker=marker_for(len(rounds)), ms=5, mec=PAPER, mew=1)
    scale_value_axis(axes, values)
    format_round_axis(axes, run.num_rounds)
    axes.set_title("Mean ‖θₖ − θ‖² over the sites")
    return figure_svg(figure, f"stability-{wide}")
