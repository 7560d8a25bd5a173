"""The measured parts of a model card: label noise and results."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgsca.experiment.records import SiteRecord
from fedgsca.metrics import HEADLINE_ROUNDS, per_class
from fedgsca.report.number_text import count_text, percent_text, score_number
from fedgsca.report.run_facts import (
    headline_scores,
    knows_truth,
    noise_title,
    site_noise,
)
from fedgsca.report.run_reader import LoadedRun
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
    """Columns of the numbers that sites reported: a share of flagged labels, or a noise level."""
    last_records: Mapping[str, SiteRecord] = run.metrics[-1].sites if run.metrics else {}
    columns = {}
    for title, name, records in (
        ("Labels flagged", "delta", run.last_selection),
        ("Estimated wrong", "noise_level", last_records),
    ):
        shares = [_site_number(records, site, name) for site in run.sites]
        if any(share is not None for share in shares):
            columns[title] = [percent_text(share, 1) for share in shares]
    return columns


def _site_number(records: Mapping[str, SiteRecord], site: str, name: str) -> float | None:
    return records[site].number(name) if site in records else None


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
    ]
