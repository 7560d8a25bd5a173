"""Sections about the training: learning curve, classes, thresholds of pseudo-labels, stability."""

from __future__ import annotations

import numpy as np

from fedgsca.metrics import per_class
from fedgsca.report.elements import Cell, Gallery, Heats, Key, Picture, Section, Table, heat_of
from fedgsca.report.plots import (
    class_thresholds,
    guarded_rounds,
    learning_curve,
    refused_rounds,
    stability_curve,
)
from fedgsca.report.run_reader import LAST, Run, number
from fedgsca.report.sentences import count, score, wrong_share


def learning_section(run: Run) -> Section | None:
    lines = run.evaluated
    if len(lines) < 2:
        return None
    legend = [Key("test set", "s0")]
    if any("val_f1" in line for line in lines):
        legend.append(Key("validation set", "s2", "line", (5, 2)))
    legend += [
        Key("best round", "s0", "ring"),
        Key(f"mean of the last {min(LAST, len(lines))}", "s0-soft", "block"),
    ]
    if run.selecting_from:
        legend.append(Key("warm-up: all labels are used", "shade", "block"))
    if guarded_rounds(run):
        legend.append(Key("guard stepped in", "noisy", "triangle"))
    if refused_rounds(run):
        legend.append(Key("update refused", "noisy", "cross"))
    first, last, top = lines[0], lines[-1], max(float(line["f1"]) for line in lines)
    alt = f"Line chart of macro F1 over {len(lines)} rounds: from {score(first['f1'])} in round {first['round'] + 1} "
    alt += f"to {score(last['f1'])} in round {last['round'] + 1}, at most {score(top)}."
    intro = (
        "Macro F1 gives every class the same weight, however rare it is: 100 means that every test image is recognised. "
        f"{_test_labels(run)} Dotted lines mark steps of the learning rate (lr)."
    )
    return Section(
        "learning",
        "How well it learned",
        intro,
        [
            Gallery(
                [Picture(learning_curve(run), alt, narrow=learning_curve(run, wide=False))],
                "wide",
                legend,
            )
        ],
    )


def _test_labels(run: Run) -> str:
    """What the scores rest on. Only the built-in images, and labels that the run itself made wrong, have a known truth."""
    if wrong_share(run) is not None or run.config.get("data", {}).get("source") == "synthetic":
        return "The test labels are not corrupted by the run and were never trained on."
    return "The test labels are taken as given: a wrong one counts against the model. They were never trained on."


def classes_section(run: Run) -> Section | None:
    lines = [line for line in run.evaluated if line.get("confusion")]
    if not lines:
        return None
    last, names = lines[-1], run.classes
    matrix = last["confusion"]
    rows: list[list[str | Cell]] = []
    for name, entry in zip(names, per_class(np.array(matrix)), strict=False):
        cells = [Cell(score(entry[key]), entry[key] / 100) for key in ("f1", "recall", "precision")]
        rows.append([name, *cells, count(entry["support"])])
    where = f"round {int(last['round']) + 1}"
    intro = (
        "Each row of the matrix holds the test images with the label of one class, and shows what the model called them: "
        "percent of the row, with the number of images below. A perfect model has 100 % on the diagonal."
    )
    table = Table(
        f"Scores of every class in {where}",
        ["Class", "F1", "Recall", "Precision", "Test images"],
        rows,
        bars=(1, 2, 3),
    )
    return Section(
        "classes",
        "Class by class",
        intro,
        [Heats([heat_of(f"Confusion matrix of {where}", names, matrix)]), table],
    )


def thresholds_section(run: Run) -> Section | None:
    size = len(run.classes)
    kept = {
        name: site["thresholds"]
        for name, site in run.last_selection.items()
        if len(site.get("thresholds") or ()) == size
    }
    told = {
        c: [v for values in kept.values() if (v := number(values[c])) is not None]
        for c in range(size)
    }
    means = {c: sum(values) / len(values) for c, values in told.items() if values}
    if not means:
        return None
    low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    alt = f"Thresholds by class: lowest on average for {run.classes[low]} ({means[low]:.2f}), "
    alt += f"highest for {run.classes[high]} ({means[high]:.2f})."
    intro = (
        "A suspect image gets the model's own opinion as its new label (a pseudo-label) if the model is confident enough. "
        "How confident depends on the class: where the model is still unsure, less is asked, so that rare classes get a chance."
    )
    picture = Picture(
        class_thresholds(kept, run.classes),
        alt,
        narrow=class_thresholds(kept, run.classes, wide=False),
    )
    legend = [Key("one site", "s0", "dot"), Key("range over the sites", "s0-soft", "block")]
    return Section(
        "thresholds", "How sure a new label must be", intro, [Gallery([picture], "wide", legend)]
    )


def stability_section(run: Run) -> Section | None:
    values = [value for line in run.metrics if (value := number(line.get("stability"))) is not None]
    if len(values) < 2:
        return None
    alt = f"Stability curve: {values[0]:.3g} in the first round, {values[-1]:.3g} in the last, at most {max(values):.3g}."
    intro = (
        "How far the sites pull the shared model away from where it was: the squared distance between a site's weights before "
        "and after its training, averaged over the sites (the paper's stability metric). Lower is calmer."
    )
    return Section(
        "stability",
        "How steady the training is",
        intro,
        [
            Gallery(
                [Picture(stability_curve(run), alt, narrow=stability_curve(run, wide=False))],
                "wide",
            )
        ],
    )
