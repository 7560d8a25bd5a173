"""Learning curves and stability of all methods, drawn over each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from fedgsca.report.comparison_plots import (
    RoundCurves,
    collect_curves,
    curve_values,
    draw_mean_curve,
)
from fedgsca.report.elements import PageSection, PlotGallery, PlotImage
from fedgsca.report.loaded_comparison import LoadedComparison
from fedgsca.report.page_sections import comparison_section
from fedgsca.report.palette import method_slot, slot_colour
from fedgsca.report.plot_style import (
    LineEnd,
    format_round_axis,
    label_line_ends,
    make_axes,
    scale_value_axis,
    with_plot_style,
)
from fedgsca.report.svg_output import figure_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class MethodCurves:
    """The curves of one method under one noise."""

    label: str
    curves: RoundCurves


@comparison_section(position=20)
def learning_comparison_section(comparison: LoadedComparison) -> PageSection | None:
    """Macro F1 over the rounds."""
    pictures = _curve_pictures(comparison, "f1")
    if not pictures:
        return None
    intro = (
        "Macro F1 on the test set, percent, round by round: the line is the mean over the seeds, "
        "the band their range."
    )
    note = "A curve that falls from its peak often belongs to a model that memorises wrong labels."
    if _has_values_below(comparison):
        note = f"Some of the first rounds lie below the plot. {note}"
    gallery = _curve_gallery(comparison, pictures, note)
    return PageSection("learning", "Learning curves", intro, [gallery])


@comparison_section(position=50)
def stability_comparison_section(comparison: LoadedComparison) -> PageSection | None:
    """The stability metric over the rounds."""
    pictures = _curve_pictures(comparison, "stability")
    if not pictures:
        return None
    intro = (
        "How far the sites move the shared model in a round (the paper's stability metric). "
        "Lower is steadier."
    )
    gallery = _curve_gallery(comparison, pictures, "")
    return PageSection("stability", "Stability of the training", intro, [gallery])


def _curve_gallery(
    comparison: LoadedComparison, pictures: list[PlotImage], note: str
) -> PlotGallery:
    width: Literal["wide", "half"] = "wide" if len(pictures) == 1 else "half"
    return PlotGallery(pictures, width, comparison.legend(), note)


def _curve_pictures(
    comparison: LoadedComparison, field: Literal["f1", "stability"]
) -> list[PlotImage]:
    """One picture per noise, if any method has more than one round."""
    pictures = []
    for i, noise in enumerate(comparison.noises):
        curves = _method_curves(comparison, noise, field)
        if not any(len(method.curves) > 1 for method in curves.values()):
            continue
        ends = []
        for method in curves.values():
            last_values = list(method.curves.values())[-1]
            ends.append(f"{method.label} {fmean(last_values):.3g}")
        alt = f"Noise {noise}, one line per method; in the last round: {', '.join(ends)}."
        name, title = f"{field}-{i}", f"Noise {noise}"
        is_score = field == "f1"
        small = draw_method_curves(curves, title, name, wide=False, is_score=is_score)
        if len(comparison.noises) == 1:
            large = draw_method_curves(curves, title, name, wide=True, is_score=is_score)
            pictures.append(PlotImage(large, alt, narrow=small))
        else:
            pictures.append(PlotImage(small, alt))
    return pictures


def _method_curves(
    comparison: LoadedComparison, noise: str, field: Literal["f1", "stability"]
) -> dict[str, MethodCurves]:
    curves = {}
    for method, label in comparison.labels.items():
        seed_curves = collect_curves(comparison.find_runs(method, noise), field)
        if seed_curves:
            curves[method] = MethodCurves(label, seed_curves)
    return curves


@with_plot_style
def draw_method_curves(
    curves: Mapping[str, MethodCurves], title: str, name: str, *, wide: bool, is_score: bool
) -> str:
    """One line per method: the mean over the seeds, with a band over their range."""
    if wide:
        figure, axes = make_axes(1000, 360, margin_left=46, margin_right=122)
    else:
        figure, axes = make_axes(460, 290, margin_left=46)
    ends = []
    for method, method_curves in curves.items():
        slot = method_slot(method)
        last_value = draw_mean_curve(axes, method_curves.curves, slot)
        ends.append(LineEnd(last_value, method_curves.label, slot_colour(slot)))
    last_round = max(max(method.curves) for method in curves.values())
    if is_score:
        _set_score_range(axes, curves, last_round)
    else:
        scale_value_axis(axes, _all_values(curves))
    format_round_axis(axes, last_round)
    axes.set_title(title)
    if wide and is_score:
        label_line_ends(axes, ends, room=0.06)
    return figure_svg(figure, f"{name}-{wide}")


def _set_score_range(axes: Axes, curves: Mapping[str, MethodCurves], last_round: int) -> None:
    axes.set_ylim(*score_range(curves, last_round))


def score_range(curves: Mapping[str, MethodCurves], last_round: int) -> tuple[float, float]:
    """The lowest and the highest F1 of the plot.

    Low values of the steep first rounds lie below: they would press the differences together.
    The highest value of any round is always inside.
    """
    low = min(_all_values(curves, last_round / 8) or _all_values(curves))
    high = max(_all_values(curves))
    padding = 0.06 * max(high - low, 4)
    return low - padding, min(high + padding, 101)


def _has_values_below(comparison: LoadedComparison) -> bool:
    """Whether a value of any plot of F1 is lower than its range."""
    for noise in comparison.noises:
        curves = _method_curves(comparison, noise, "f1")
        if any(len(method.curves) > 1 for method in curves.values()):
            last_round = max(max(method.curves) for method in curves.values())
            if min(_all_values(curves)) < score_range(curves, last_round)[0]:
                return True
    return False


def _all_values(curves: Mapping[str, MethodCurves], after_round: float = 0) -> list[float]:
    values: list[float] = []
    for method in curves.values():
        values += curve_values(method.curves, after_round)
    return values
