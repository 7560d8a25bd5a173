"""A run on corrected labels and the run before it: its scores, and whether the two differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedgsca.federation.final_statistics import read_predictions_file
from fedgsca.federation.records import PreviousRun
from fedgsca.federation.run_folder import read_result
from fedgsca.lab.records import PairedDifference
from fedgsca.lab.report.run_facts import wrong_share
from fedgsca.lab.report.run_reader import LoadedRun, read_json, read_run
from fedgsca.lab.statistic import measure_difference, score_run
from fedgsca.support.files import write_atomic

DIFFERENCE_FILE = "paired.json"
# keys that may differ between the two runs: they are what was corrected
_LABEL_KEYS = ("data.labels", "data.source", "noise.")


def snapshot_run(path: Path) -> PreviousRun | None:
    """What a comparison needs of a finished run; None if it is not a finished run."""
    if not (path / "config.toml").is_file():
        return None
    run = read_run(path, with_losses=False)
    if run.result is None:
        return None
    return PreviousRun(
        run=path.resolve().name,
        f1=run.result.f1,
        recall=run.result.recall,
        precision=run.result.precision,
        per_class=run.result.per_class,
        wrong_share=wrong_share(run),
        config=run.settings.values,
    )


def find_previous(run: LoadedRun) -> PreviousRun | None:
    """The run that the log of the corrected labels names."""
    labels = run.setup.labels
    return None if labels is None or labels.review is None else labels.review.previous_run


def other_differences(run: LoadedRun, previous: PreviousRun) -> list[str]:
    """Settings other than the labels in which the two runs differ."""
    new, old = run.settings.values, previous.config
    differences = []
    for key in sorted({*new, *old}):
        if not key.startswith(_LABEL_KEYS) and new.get(key) != old.get(key):
            differences.append(f"{key}: {old.get(key)} before, {new.get(key)} now")
    return differences


# ---- is it better? ----


def compare_with_previous(out: Path) -> None:
    """For a run on corrected labels: write paired.json.

    Nothing if the audited run cannot be read any more, or if its test images differ.
    """
    previous = _find_previous_folder(out)
    if previous is None:
        return
    predictions = read_predictions_file(out)
    old_predictions = read_predictions_file(previous)
    result, old_result = read_result(out), read_result(previous)
    if predictions is None or old_predictions is None or result is None or old_result is None:
        return
    is_same = np.array_equal(predictions.ids, old_predictions.ids)
    if not (is_same and np.array_equal(predictions.labels, old_predictions.labels)):
        return
    difference = measure_difference(
        {0: score_run(result.f1, predictions)},
        {0: score_run(old_result.f1, old_predictions)},
        noise="",
        method=out.resolve().name,
        reference=previous.resolve().name,
    )
    if difference is not None:
        text = json.dumps(difference.to_json(), indent=1, sort_keys=True)
        write_atomic(out / DIFFERENCE_FILE, text.encode() + b"\n")


def read_difference(out: Path) -> PairedDifference | None:
    """The content of paired.json; None if it was not written."""
    tree = read_json(out / DIFFERENCE_FILE)
    return None if tree is None else PairedDifference.from_json(tree)


def _find_previous_folder(out: Path) -> Path | None:
    """The folder of the audited run: above the labels file, or beside this run."""
    run = read_run(out, with_losses=False)
    previous = find_previous(run)
    labels = run.settings.values.get("data.labels")
    if previous is None or not isinstance(labels, str):
        return None
    candidates = [*Path(labels).expanduser().resolve().parents, out.resolve().parent / previous.run]
    for candidate in candidates:
        if candidate.name == previous.run and (candidate / "result.json").is_file():
            return candidate
    return None
