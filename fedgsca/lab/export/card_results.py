"""The measured parts of a model card: label noise and results."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgsca.federation.records import GroupStatistics, SiteRecord
from fedgsca.lab.export.temperature import GIVEN_LABELS_CAUTION, TemperatureFit, describe_fit
from fedgsca.lab.report.number_text import count_text, interval_text, percent_text, score_number
from fedgsca.lab.report.run_facts import (
    headline_scores,
    knows_truth,
    noise_title,
    site_noise,
    unused_shares,
)
from fedgsca.lab.report.run_reader import LoadedRun
from fedgsca.metrics import HEADLINE_ROUNDS, per_class
from fedgsca.support.markdown import markdown_table


def noise_section(run: LoadedRun) -> list[str]:
    """The noise that was added (simulations), and what the method estimates."""
    columns: dict[str, list[str]] = {}
    is_simulation = knows_truth(run, run.sites)
    if is_simulation:
        columns["Noise added"] = [noise_title(site_noise(run, site)) for site in run.sites]
        columns["Labels wrong"] = [percent_text(run.noise_rate(site), 1) for site in run.sites]
    estimates = _estimate_columns(run)
    columns |= estimates
    lines = ["## Label noise", ""]
    if is_simulation:
        lines += ["This was a simulation: labels were made wrong on purpose for training.", ""]
    else:
        text = "No labels were changed on purpose. How many of the given labels are wrong is not"
        lines += [f"{text} known.", ""]
    if estimates:
        lines += [
            "What the method found is an estimate, not a statement about patients or annotators.",
            "",
        ]
    else:
        lines += [
            "No site reported how many of its labels look wrong: either the method does not "
            "estimate it, or it was still in its warm-up.",
            "",
        ]
    if not columns:
        return lines
    rows = [list(row) for row in zip(run.sites, *columns.values(), strict=True)]
    return [*lines, *markdown_table(["Site", *columns], rows)]


def _estimate_columns(run: LoadedRun) -> dict[str, list[str]]:
    """What sites reported: labels that were not trained on as given, and estimates of the noise."""
    columns = {}
    shares = unused_shares(run.metrics, run.settings.noise_level)
    if shares:
        texts = [percent_text(shares.get(site), 1) for site in run.sites]
        columns["Labels not trained on as given"] = texts
    last_records: Mapping[str, SiteRecord] = run.metrics[-1].sites if run.metrics else {}
    for name, records in (("delta", run.last_selection), ("noise_level", last_records)):
        estimates = {site: record.number(name) for site, record in records.items()}
        if any(estimate is not None for estimate in estimates.values()):
            texts = [percent_text(estimates.get(site), 1) for site in run.sites]
            columns["Estimated wrong"] = texts
    return columns


def results_section(run: LoadedRun, rounds: int) -> list[str]:
    """Scores of the model after this many rounds."""
    records = [record for record in run.test_rounds if record.round < rounds and record.confusion]
    if not records:
        return ["## Results", "", "No round was tested.", ""]
    last = records[-1]
    rows = []
    num_images = 0
    for name, scores in zip(run.classes, per_class(np.array(last.confusion)), strict=True):
        numbers = [score_number(scores[key]) for key in ("precision", "recall", "f1")]
        rows.append([name, *numbers, count_text(scores["support"])])
        num_images += int(scores["support"])
    means = [score_number(value) for value in (last.precision, last.recall, last.f1)]
    rows.append(["mean of the classes", *means, count_text(num_images)])
    num_rounds = min(HEADLINE_ROUNDS, len(records))
    f1 = score_number(headline_scores(run).f1)
    return [
        "## Results",
        "",
        f"On the test set after round {last.round + 1}, in percent:",
        "",
        *markdown_table(["Class", "Precision", "Recall", "F1", "Test images"], rows),
        f"Macro F1, mean of the last {num_rounds} tested rounds: {f1}.",
        "",
        *_statistics_lines(run, rounds),
    ]


def _statistics_lines(run: LoadedRun, rounds: int) -> list[str]:
    """Intervals, ranking and calibration; only of the model of a finished run."""
    statistics = None if run.result is None else run.result.statistics
    if statistics is None or statistics.round + 1 != rounds:
        return []
    lines = ["### Confidence intervals", ""]
    if statistics.draws:
        drawn_units = f"{statistics.units} {statistics.unit}s"
        lines += [
            f"In brackets: 95 % intervals by a bootstrap over {drawn_units} of the test set, in "
            "percent. They do not contain the variation between trainings.",
            "",
        ]
    rows = [
        ["macro F1", interval_text(statistics.f1)],
        ["macro recall", interval_text(statistics.recall)],
        ["macro precision", interval_text(statistics.precision)],
        ["accuracy", interval_text(statistics.accuracy)],
    ]
    if statistics.auroc is not None:
        rows.append(["AUROC, one class versus the others, mean", interval_text(statistics.auroc)])
        rows.append(["average precision, mean", interval_text(statistics.average_precision)])
    lines += markdown_table(["Measure", "Score"], rows)
    class_rows = []
    for name, entry in statistics.per_class.items():
        intervals = [entry.f1, entry.auroc, entry.average_precision]
        class_rows.append([name, *(interval_text(interval) for interval in intervals)])
    lines += markdown_table(["Class", "F1", "AUROC", "Average precision"], class_rows)
    if statistics.per_site:
        site_rows = []
        for name, site in statistics.per_site.items():
            scores = [interval_text(site.f1), interval_text(site.accuracy)]
            site_rows.append([name, *scores, count_text(site.images)])
        lines += markdown_table(["Site", "Macro F1", "Accuracy", "Test images"], site_rows)
    if statistics.groups is not None:
        lines += [_describe_groups(statistics.groups), ""]
    return lines


def _describe_groups(groups: GroupStatistics) -> str:
    text = (
        f"Averaged over {groups.groups} {groups.word}s, {score_number(groups.mean_accuracy)} % of "
        f"the images are recognised; for one {groups.word} in ten at most "
        f"{score_number(groups.worst_tenth)} %."
    )
    if groups.f1 is not None:
        text += f" Macro F1 with one prediction per {groups.word}: {score_number(groups.f1)}."
    return text


def calibration_section(run: LoadedRun, rounds: int, fit: TemperatureFit | None) -> list[str]:
    """How far the probabilities can be trusted, before and after temperature scaling."""
    lines = ["## Calibration", ""]
    statistics = None if run.result is None else run.result.statistics
    if statistics is None or statistics.round + 1 != rounds or statistics.calibration is None:
        lines.append("The calibration of the run's model was not measured.")
    else:
        calibration = statistics.calibration
        lines.append(
            f"The run's model, on the test set: expected calibration error "
            f"{score_number(calibration.ece)} % (10 bins; 95 % of perfectly calibrated models stay "
            f"below {score_number(calibration.chance_ece)} % with as many images), mean confidence "
            f"{score_number(calibration.confidence)} %, accuracy "
            f"{score_number(statistics.accuracy.value)} %, Brier score {calibration.brier:.3f}."
        )
    lines.append("")
    if fit is None:
        return [*lines, "The probabilities of this file are not scaled.", ""]
    lines += [f"The probabilities of this file are scaled: {describe_fit(fit)}.", ""]
    if fit.has_given_labels:
        lines += [f"Note: {GIVEN_LABELS_CAUTION}.", ""]
    return lines
