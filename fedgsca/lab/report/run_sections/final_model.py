"""The final model on the test images: intervals, ranking of every class, calibration, sites."""

from __future__ import annotations

from fedgsca.federation.records import (
    CalibrationResult,
    FinalStatistics,
    GroupStatistics,
    ScoreInterval,
)
from fedgsca.lab.report.elements import (
    BulletList,
    PageElement,
    PageSection,
    PlotGallery,
    PlotImage,
    fold_long_table,
)
from fedgsca.lab.report.number_text import bounds_text, count_text, score_number
from fedgsca.lab.report.page_sections import run_section
from fedgsca.lab.report.palette import GREY, MAIN, PAPER
from fedgsca.lab.report.plot_style import make_axes, with_plot_style
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.lab.report.svg_output import figure_svg
from fedgsca.lab.table import Cell, LegendEntry, Table
from fedgsca.support.text import plural


@run_section(position=25)
def final_model_section(run: LoadedRun) -> PageSection | None:
    """Of finished runs; those of older versions have no such statistics."""
    if run.result is None or run.result.statistics is None:
        return None
    statistics = run.result.statistics
    blocks: list[PageElement] = [_score_table(statistics), _class_table(statistics)]
    if statistics.calibration is not None:
        blocks.append(_calibration_plots(statistics.calibration))
    if statistics.per_site:
        blocks.append(fold_long_table(_site_table(statistics)))
    if statistics.groups is not None:
        blocks.append(BulletList(_group_sentences(statistics.groups)))
    return PageSection("final-model", "How sure these numbers are", _intro(statistics), blocks)


def _intro(statistics: FinalStatistics) -> str:
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


def _score_table(statistics: FinalStatistics) -> Table:
    measures = {
        "Macro F1": statistics.f1,
        "Recall": statistics.recall,
        "Precision": statistics.precision,
        "Accuracy": statistics.accuracy,
    }
    if statistics.auroc is not None:
        measures["AUROC"] = statistics.auroc
    if statistics.average_precision is not None:
        measures["Average precision"] = statistics.average_precision
    rows = []
    for name, interval in measures.items():
        rows.append([name, score_number(interval.value), bounds_text(interval)])
    note = "All but the accuracy are means over the classes."
    return Table("The final model", ["Measure", "Score", "95 % interval"], rows, note=note)


def _class_table(statistics: FinalStatistics) -> Table:
    head = ["Class", "F1"]
    has_probabilities = statistics.auroc is not None
    if has_probabilities:
        head += ["AUROC", "Average precision"]
    else:
        head += ["Recall", "Precision"]
    rows: list[list[str | Cell]] = []
    for name, entry in statistics.per_class.items():
        cells = [interval_cell(entry.f1)]
        if has_probabilities:
            cells += [interval_cell(entry.auroc), interval_cell(entry.average_precision)]
        else:
            cells += [interval_cell(entry.recall), interval_cell(entry.precision)]
        rows.append([name, *cells])
    note = ""
    if has_probabilities:
        note = (
            "AUROC: how often an image of the class has a higher probability for it than an image "
            "of another class; 50 is guessing. Average precision: the area under the curve of "
            "precision over recall; guessing gives the share of the class among the images."
        )
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
    histogram = PlotImage(
        draw_confidence(calibration),
        f"Histogram of the largest probability, {score_number(calibration.confidence)} percent on "
        "average.",
    )
    legend = [
        LegendEntry("the final model", "s0"),
        LegendEntry("perfectly calibrated", "muted", "line", (4, 3)),
    ]
    return PlotGallery([curve, histogram], "half", legend, note)


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


@with_plot_style
def draw_confidence(calibration: CalibrationResult) -> str:
    """How many images have which largest probability."""
    figure, axes = make_axes(490, 330)
    for entry in calibration.bins:
        middle = 0.5 * (entry.low + entry.high)
        axes.bar(middle, entry.images, width=0.88 * (entry.high - entry.low), color=MAIN)
    axes.set_xlim(0, 102)
    axes.locator_params(axis="y", nbins=6, integer=True)
    axes.set_xlabel("Probability of the predicted class, percent")
    axes.set_title("Test images")
    return figure_svg(figure, "confidence")


def _site_table(statistics: FinalStatistics) -> Table:
    rows: list[list[str | Cell]] = []
    for name, site in statistics.per_site.items():
        cells = [interval_cell(site.f1), interval_cell(site.accuracy)]
        rows.append([name, *cells, count_text(site.images)])
    note = "Macro F1 of a site is the mean over the classes that occur among its test images."
    head = ["Site", "Macro F1", "Accuracy", "Test images"]
    return Table("The test images of every site", head, rows, note=note)


def _group_sentences(groups: GroupStatistics) -> list[str]:
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
