"""Scores of a run: learning curve, classes, intervals, calibration, sites and groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.federation.records import (
    CalibrationResult,
    FinalStatistics,
    GroupStatistics,
    RoundRecord,
    ScoreInterval,
    finite,
)
from fedgsca.federation.result_summary import expected_scores
from fedgsca.lab.report.elements import (
    BulletList,
    MatrixGroup,
    PageElement,
    PageSection,
    PlotGallery,
    PlotImage,
    bounds_text,
    count_matrix,
    count_text,
    fold_long_table,
    score_number,
)
from fedgsca.lab.report.plots import (
    GREY,
    MAIN,
    NOISY,
    PAPER,
    SHADE,
    SMALL,
    TOKENS,
    LineEnd,
    figure_svg,
    format_round_axis,
    label_line_ends,
    make_axes,
    marker_for,
    with_plot_style,
)
from fedgsca.lab.report.run_facts import (
    event_rounds,
    grade_kappa,
    method_events,
    refusal_rounds,
    wrong_share,
)
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.table import Cell, LegendEntry, Table
from fedgsca.metrics import HEADLINE_ROUNDS, per_class
from fedgsca.support.text import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes


VALIDATION = TOKENS["s2"]
FORECAST = TOKENS["s3"]


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
    picture = PlotImage(draw_learning_curve(run), alt)
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
    if refusal_rounds(run):
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
def draw_learning_curve(run: LoadedRun) -> str:
    """The curve on the test set and, if there is one, on the validation set."""
    records = run.test_rounds
    x = [record.round + 1 for record in records]
    f1 = [float(record.f1 or 0.0) for record in records]
    validation = _validation_points(run)
    forecast = _expected_points(run)
    room = 122 if validation or forecast else 82
    figure, axes = make_axes(1000, 350, margin_left=40, margin_right=room, margin_top=34)
    values = [*f1, *(value for _, value in [*validation, *forecast])]
    padding = max(max(values) - min(values), 4) * 0.12
    axes.set_ylim(max(min(values) - 1.6 * padding, -1), min(max(values) + padding, 101))
    _mark_warm_up(run, axes)
    _mark_learning_rates(run, axes)
    ends = [LineEnd(f1[-1], f"test {f1[-1]:.1f}", MAIN)]
    lines = (("validation", validation, VALIDATION, 5), ("expected", forecast, FORECAST, 1))
    for name, points, colour, dash in lines:
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, lw=1.7, ls=(0, (dash, 2)))
            ends.append(LineEnd(points[-1][1], f"{name} {points[-1][1]:.1f}", colour))
    _draw_headline(axes, x, f1)
    axes.plot(x, f1, color=MAIN, marker=marker_for(len(x)), ms=6, mec=PAPER, mew=1.2)
    best = int(np.argmax(f1))
    axes.plot(x[best], f1[best], "o", ms=11, mfc="none", mec=MAIN, mew=1.8)
    label_line_ends(axes, ends, room=0.065)
    _mark_events(run, axes)
    axes.locator_params(axis="y", nbins=6, steps=[1, 2, 5, 10])
    format_round_axis(axes, max(run.num_rounds, x[-1]), ticks=7)
    axes.set_title("Macro F1 on the test set, percent")
    return figure_svg(figure, "learning")


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
    events: set[int] = set()
    for event in method_events(run):
        events.update(*event_rounds(run, event).values())
    _draw_marks(axes, sorted(events), "^", 0.03)
    refusals: set[int] = set()
    _draw_marks(axes, sorted(refusals.union(*refusal_rounds(run).values())), "X", 0.085)


def _draw_marks(axes: Axes, rounds: list[int], marker: str, height: float) -> None:
    if not rounds:
        return
    low, high = axes.get_ylim()
    y = [low + height * (high - low)] * len(rounds)
    axes.plot(rounds, y, marker, ls="", color=NOISY, ms=9, mec=PAPER, mew=0.8)


def class_section(run: LoadedRun) -> PageSection | None:
    """From the last round with a confusion matrix."""
    records = [record for record in run.test_rounds if record.confusion]
    if not records:
        return None
    last = records[-1]
    confusion = last.confusion or ()
    intro = (
        "Each row of the matrix holds the test images with the label of one class, and shows what "
        "the model called them: percent of the row, with the number of images below. "
        "A perfect model has 100 % on the diagonal."
    )
    kappa = grade_kappa(run.setup, confusion)
    if kappa is not None:
        intro += f" The classes are grades: quadratic kappa {kappa:.2f}."
    matrix = count_matrix(f"Confusion matrix of round {last.round + 1}", run.classes, confusion)
    blocks: list[PageElement] = [MatrixGroup([matrix]), round_table(run, last)]
    return PageSection("classes", "Class by class", intro, blocks)


def round_table(run: LoadedRun, record: RoundRecord) -> Table:
    """Scores of every class in a round with a confusion matrix."""
    rows: list[list[str | Cell]] = []
    for name, scores in zip(run.classes, per_class(np.array(record.confusion)), strict=False):
        cells = [_score_cell(scores[key]) for key in ("f1", "recall", "precision")]
        rows.append([name, *cells, count_text(scores["support"])])
    head = ["Class", "F1", "Recall", "Precision", "Test images"]
    return Table(f"Scores of every class in round {record.round + 1}", head, rows, bars=(1, 2, 3))


def _score_cell(value: float) -> Cell:
    return Cell(score_number(value), bar=value / 100)


def final_model_section(run: LoadedRun) -> PageSection | None:
    """Of finished runs; those of older versions have no such statistics."""
    if run.result is None or run.result.statistics is None:
        return None
    statistics = run.result.statistics
    blocks: list[PageElement] = [score_table(statistics), class_table(statistics, run.classes)]
    if statistics.calibration is not None:
        blocks.append(_calibration_plots(statistics.calibration))
    if statistics.per_site:
        blocks.append(fold_long_table(site_score_table(statistics)))
    if statistics.groups is not None:
        blocks.append(BulletList(group_sentences(statistics.groups)))
    return PageSection(
        "final-model", "How sure these numbers are", describe_statistics(statistics), blocks
    )


def describe_statistics(statistics: FinalStatistics) -> str:
    """What was scored, and what the intervals mean."""
    text = (
        f"The model of round {statistics.round + 1} on {plural(statistics.images, 'test image')}, "
        "in percent. "
    )
    if not statistics.draws:
        units = plural(statistics.units, statistics.unit)
        return f"{text}They come from {units}: too few for confidence intervals."
    units = f"{plural(statistics.units, 'image')} were"
    if statistics.unit != "image":
        units = (
            f"{plural(statistics.units, statistics.unit)}, each with all of its images (images of "
            f"one {statistics.unit} resemble each other), were"
        )
    return (
        f"{text}The small range at a score is its 95 % confidence interval by a bootstrap: "
        f"{count_text(statistics.draws)} times, {units} drawn with replacement and scored. "
        "It says how much the choice of these test images matters. Another training "
        "with another seed differs in addition; a comparison over several seeds shows that."
    )


def interval_cell(interval: ScoreInterval | None) -> Cell:
    """A score, and its interval in small type."""
    if interval is None:
        return Cell(score_number(None))
    return Cell(score_number(interval.value), small=bounds_text(interval))


def score_table(statistics: FinalStatistics) -> Table:
    """Scores of the final model with their intervals."""
    measures = {
        "Macro F1": statistics.f1,
        "Balanced accuracy": statistics.recall,
        "Precision": statistics.precision,
        "Accuracy": statistics.accuracy,
        "AUROC": statistics.auroc,
        "Average precision": statistics.average_precision,
    }
    rows = []
    for name, interval in measures.items():
        if interval is not None:
            rows.append([name, score_number(interval.value), bounds_text(interval)])
    note = "All but the accuracy are means over the classes."
    return Table("The final model", ["Measure", "Score", "95 % interval"], rows, note=note)


def class_table(statistics: FinalStatistics, classes: Sequence[str]) -> Table:
    """Scores of every class with their intervals."""
    columns = {"F1": "f1", "Recall": "recall", "Precision": "precision"}
    note = ""
    if statistics.auroc is not None:  # there are probabilities
        columns = {"F1": "f1", "AUROC": "auroc", "Average precision": "average_precision"}
        note = (
            "AUROC: how often an image of the class has a higher probability for it than an image "
            "of another class; 50 is guessing. Average precision: the area under the curve of "
            "precision over recall; guessing gives the share of the class among the images."
        )
    rows: list[list[str | Cell]] = []
    for name in classes:
        if name in statistics.per_class:
            entry = statistics.per_class[name]
            rows.append([name, *(interval_cell(getattr(entry, key)) for key in columns.values())])
    head = ["Class", *columns]
    return Table("Each class against the others", head, rows, note=note)


def _calibration_plots(calibration: CalibrationResult) -> PlotGallery:
    ece = score_number(calibration.ece)
    verdict = "no more than chance explains"
    if calibration.ece > calibration.chance_ece:
        verdict = "more than chance explains"
    right = _mean_accuracy(calibration)
    direction = "too sure" if calibration.confidence > right else "too cautious"
    note = (
        f"Expected calibration error (ECE): {ece}, {verdict}: 95 % of perfectly calibrated models "
        f"stay below {score_number(calibration.chance_ece)} with as many images. "
        f"On average the model is {score_number(calibration.confidence)} % sure and right for "
        f"{score_number(right)} % of the images: "
    )
    note += f"it is {direction}." if abs(calibration.confidence - right) >= 0.05 else "it agrees."
    note += (
        f" Brier score {calibration.brier:.3f}, log loss {calibration.log_loss:.3f}. "
        "fedgsca export --temperature corrects the probabilities with one number."
    )
    curve = PlotImage(
        draw_calibration(calibration),
        f"Calibration curve of the final model; the expected calibration error is {ece} percent.",
    )
    legend = [
        LegendEntry("the final model", "s0"),
        LegendEntry("perfectly calibrated", "muted", "line", (4, 3)),
    ]
    return PlotGallery([curve], "half", legend, note)


def _mean_accuracy(calibration: CalibrationResult) -> float:
    images = sum(entry.images for entry in calibration.bins)
    hits = sum(entry.images * (entry.accuracy or 0.0) for entry in calibration.bins)
    return hits / max(1, images)


@with_plot_style
def draw_calibration(calibration: CalibrationResult) -> str:
    """How often the model is right over how sure it is; a larger dot has more images."""
    figure, axes = make_axes(490, 330)
    axes.plot([0, 100], [0, 100], color=GREY, lw=1.4, ls=(0, (4, 3)))
    points = []
    for entry in calibration.bins:
        if entry.confidence is not None and entry.accuracy is not None:
            points.append((entry.confidence, entry.accuracy, entry.images))
    x = [point[0] for point in points]
    y = [point[1] for point in points]
    largest = max(point[2] for point in points)
    sizes = [20 + 120 * point[2] / largest for point in points]
    axes.plot(x, y, color=MAIN)
    axes.scatter(x, y, s=sizes, color=MAIN, edgecolors=PAPER, linewidths=1.2, zorder=3)
    axes.set_xlim(0, 102)
    axes.set_ylim(0, 104)
    axes.set_xlabel("Probability of the predicted class, percent")
    axes.set_title("Predictions that are right, percent")
    return figure_svg(figure, "calibration")


def site_score_table(statistics: FinalStatistics) -> Table:
    """Scores of the test images of every site."""
    rows: list[list[str | Cell]] = []
    for name, site in statistics.per_site.items():
        cells = [interval_cell(site.f1), interval_cell(site.accuracy)]
        rows.append([name, *cells, count_text(site.images)])
    note = "Macro F1 of a site is the mean over the classes that occur among its test images."
    head = ["Site", "Macro F1", "Accuracy", "Test images"]
    return Table("The test images of every site", head, rows, note=note)


def group_sentences(groups: GroupStatistics) -> list[str]:
    """How many patients (or other groups) the model serves, and how well."""
    word = groups.word
    sentences = [
        f"{plural(groups.groups, word)} with {groups.images_per_group:g} test images each "
        f"(median). Averaged over them, {score_number(groups.mean_accuracy)} % of the images are "
        f"recognised; for one {word} in ten at most {score_number(groups.worst_tenth)} %, "
        f"and for {count_text(groups.all_wrong)} none at all."
    ]
    if groups.f1 is not None:
        sentences.append(
            f"One prediction per {word}, by the mean probability of its images: macro F1 "
            f"{score_number(groups.f1)}, over {plural(groups.same_label, word)} whose images all "
            "have the same label."
        )
    return sentences
