"""Macro F1 over the rounds, with warm-up, steps of the learning rate and events."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.federation.records import finite
from fedgsca.federation.result_summary import expected_scores
from fedgsca.lab.report.elements import PageSection, PlotGallery, PlotImage
from fedgsca.lab.report.number_text import score_number
from fedgsca.lab.report.page_sections import run_section
from fedgsca.lab.report.palette import GREY, MAIN, NOISY, PAPER, SHADE, TOKENS
from fedgsca.lab.report.plot_style import (
    SMALL,
    LineEnd,
    format_round_axis,
    label_line_ends,
    make_axes,
    marker_for,
    with_plot_style,
)
from fedgsca.lab.report.run_facts import (
    all_event_rounds,
    event_rounds,
    method_events,
    rejection_rounds,
    wrong_share,
)
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.report.svg_output import figure_svg
from fedgsca.lab.table import LegendEntry
from fedgsca.metrics import HEADLINE_ROUNDS
from fedgsca.support.text import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VALIDATION = TOKENS["s2"]
FORECAST = TOKENS["s3"]


@run_section(position=10)
def learning_section(run: LoadedRun) -> PageSection | None:
    """The learning curve; None before the second test."""
    records = run.test_rounds
    if len(records) < 2:
        return None
    first, last = records[0], records[-1]
    top = max(record.f1 or 0.0 for record in records)
    alt = (
        f"Line chart of macro F1 over {len(records)} rounds: "
        f"{score_number(first.f1)} in round {first.round + 1}, "
        f"{score_number(last.f1)} in round {last.round + 1}, highest value {score_number(top)}."
    )
    intro = (
        "Macro F1 gives every class the same weight, however rare it is: 100 means that every test "
        f"image is recognised. {_describe_test_labels(run)} "
        "Dotted lines mark steps of the learning rate (lr)."
    )
    if run.num_other_tests:
        rounds = plural(run.num_other_tests, "round")
        intro += f" Not shown: {rounds}, tested on the images of other sites than the last one."
    if _expected_points(run):
        intro += (
            " The expected F1 uses no true label: it is what the evidence about held-out training "
            "images says. Its course and its differences count more than its level."
        )
    narrow = draw_learning_curve(run, wide=False)
    picture = PlotImage(draw_learning_curve(run), alt, narrow=narrow)
    gallery = PlotGallery([picture], "wide", _legend(run))
    return PageSection("learning", "Learning curve", intro, [gallery])


def _legend(run: LoadedRun) -> list[LegendEntry]:
    num_rounds = min(HEADLINE_ROUNDS, len(run.test_rounds))
    legend = [LegendEntry("test set", "s0")]
    if _validation_points(run):
        legend.append(LegendEntry("validation set", "s2", "line", (5, 2)))
    if _expected_points(run):
        legend.append(LegendEntry("expected without a true label", "s3", "line", (1, 2)))
    legend.append(LegendEntry("best round", "s0", "ring"))
    legend.append(LegendEntry(f"mean of the last {num_rounds}", "s0-soft", "block"))
    if run.selection_start:
        legend.append(LegendEntry("warm-up: all labels are used", "shade", "block"))
    for event, clause in method_events(run).items():
        if event_rounds(run, event):
            legend.append(LegendEntry(clause, "noisy", "triangle"))
    if rejection_rounds(run):
        legend.append(LegendEntry("an update was left out", "noisy", "cross"))
    return legend


def _describe_test_labels(run: LoadedRun) -> str:
    """What the scores are based on.

    Only the built-in images, and labels that the run itself made wrong, have a known truth.
    """
    if wrong_share(run) is not None or run.settings.source == "synthetic":
        return "The test labels are not corrupted by the run and were never trained on."
    return (
        "The test labels are taken as given, so a wrong one counts against the model. "
        "They were never trained on."
    )


@with_plot_style
def draw_learning_curve(run: LoadedRun, *, wide: bool = True) -> str:
    """The curve on the test set and, if there is one, on the validation set."""
    records = run.test_rounds
    x = [record.round + 1 for record in records]
    f1 = [float(record.f1 or 0.0) for record in records]
    validation = _validation_points(run)
    width, height = (1000, 350) if wide else (440, 300)
    figure, axes = make_axes(
        width, height, margin_left=40, margin_right=_room_for_names(run, wide=wide), margin_top=34
    )
    forecast = _expected_points(run)
    _set_range(axes, [*f1, *(value for _, value in [*validation, *forecast])])
    _mark_warm_up(run, axes)
    _mark_learning_rates(run, axes)
    ends = [LineEnd(f1[-1], f"test {f1[-1]:.1f}", MAIN)]
    if validation:
        axes.plot(*zip(*validation, strict=True), color=VALIDATION, lw=1.7, ls=(0, (5, 2)))
        last = validation[-1][1]
        ends.append(LineEnd(last, f"validation {last:.1f}", VALIDATION))
    if forecast:
        axes.plot(*zip(*forecast, strict=True), color=FORECAST, lw=1.7, ls=(0, (1, 2)))
        last = forecast[-1][1]
        ends.append(LineEnd(last, f"expected {last:.1f}", FORECAST))
    _draw_headline(axes, x, f1)
    axes.plot(x, f1, color=MAIN, marker=marker_for(len(x)), ms=6, mec=PAPER, mew=1.2)
    best = int(np.argmax(f1))
    axes.plot(x[best], f1[best], "o", ms=11, mfc="none", mec=MAIN, mew=1.8)
    if wide:
        label_line_ends(axes, ends, room=0.065)
    _mark_events(run, axes)
    axes.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    format_round_axis(axes, max(run.num_rounds, x[-1]), ticks=7 if wide else 5)
    axes.set_title("Macro F1 on the test set, percent")
    return figure_svg(figure, f"learning-{wide}")


def _validation_points(run: LoadedRun) -> list[tuple[int, float]]:
    """Rounds, from 1, with macro F1 on the validation set."""
    points = []
    for record in run.test_rounds:
        value = finite(record.val_f1)
        if value is not None:
            points.append((record.round + 1, value))
    return points


def _expected_points(run: LoadedRun) -> list[tuple[int, float]]:
    """Rounds, from 1, with the macro F1 that the evidence expects on held-out images."""
    scores = expected_scores(run.metrics)
    return [(number + 1, score) for number, score in sorted(scores.items())]


def _room_for_names(run: LoadedRun, *, wide: bool) -> int:
    """Pixels at the right of the lines. A narrow drawing has no names there, only the legend."""
    if not wide:
        return 14
    return 122 if _validation_points(run) or _expected_points(run) else 82


def _set_range(axes: Axes, values: list[float]) -> None:
    low, high = min(values), max(values)
    padding = max(high - low, 4) * 0.12
    axes.set_ylim(max(low - 1.6 * padding, -1), min(high + padding, 101))


def _draw_headline(axes: Axes, x: list[int], f1: list[float]) -> None:
    """A broad line at the mean of the last rounds."""
    num_rounds = min(HEADLINE_ROUNDS, len(f1))
    mean = float(np.mean(f1[-num_rounds:]))
    ends = [x[-num_rounds] - 0.3, x[-1] + 0.3]
    axes.plot(ends, [mean, mean], color=MAIN, lw=9, alpha=0.25, solid_capstyle="butt")


def _mark_warm_up(run: LoadedRun, axes: Axes) -> None:
    if run.selection_start:
        left_edge = axes.get_xlim()[0] - run.num_rounds
        axes.axvspan(left_edge, run.selection_start + 0.5, color=SHADE, lw=0)
        position = (0.012, 0.965)
        axes.annotate(
            "warm-up", position, xycoords="axes fraction", va="top", color=GREY, fontsize=SMALL
        )


def _mark_learning_rates(run: LoadedRun, axes: Axes) -> None:
    """A dotted line where the learning rate changes, with the new rate above it."""
    for old, new in pairwise(run.metrics):
        if finite(new.lr) is None or finite(old.lr) is None or new.lr == old.lr:
            continue
        x = new.round + 0.5
        axes.axvline(x, color=GREY, lw=1, ls=(0, (1, 2.5)))
        axes.annotate(
            f"lr {new.lr:g}",
            (x, 1.015),
            xycoords=("data", "axes fraction"),
            ha="center",
            color=GREY,
            fontsize=SMALL,
        )


def _mark_events(run: LoadedRun, axes: Axes) -> None:
    """Triangles at the bottom for events of the method, crosses for refused updates."""
    _draw_marks(axes, sorted(set(all_event_rounds(run))), "^", 0.03)
    _draw_marks(axes, rejection_rounds(run), "X", 0.085)


def _draw_marks(axes: Axes, rounds: list[int], marker: str, height: float) -> None:
    if not rounds:
        return
    low, high = axes.get_ylim()
    y = [low + height * (high - low)] * len(rounds)
    axes.plot(rounds, y, marker, ls="", color=NOISY, ms=9, mec=PAPER, mew=0.8)
