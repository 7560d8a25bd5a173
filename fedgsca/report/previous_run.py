"""The scores of an earlier run, shown beside those of a run on corrected labels."""

from __future__ import annotations

import json
from pathlib import Path

from fedgsca.errors import RunFolderError
from fedgsca.experiment.records import PreviousRun
from fedgsca.report.run_facts import wrong_share
from fedgsca.report.run_reader import LoadedRun, read_json, read_run
from fedgsca.support.files import write_atomic

FILE = "before.json"
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


def remember_previous(path: Path, previous: Path) -> None:
    """Note in a run folder which run came before it: its report then shows both."""
    snapshot = snapshot_run(previous)
    if snapshot is None:
        raise RunFolderError(
            "run.not-finished",
            f"{previous} is not the folder of a finished run",
            fix="give the folder of a finished run",
        )
    text = json.dumps(snapshot.to_json(), indent=1, sort_keys=True)
    write_atomic(path / FILE, text.encode() + b"\n")


def find_previous(run: LoadedRun) -> PreviousRun | None:
    """The run that was named by hand, else the one that the log of the labels names."""
    tree = read_json(run.path / FILE)
    if tree is not None:
        return PreviousRun.from_json(tree)
    labels = run.setup.labels
    if labels is None or labels.review is None:
        return None
    return labels.review.previous_run


def other_differences(run: LoadedRun, previous: PreviousRun) -> list[str]:
    """Settings other than the labels in which the two runs differ."""
    new, old = run.settings.values, previous.config
    differences = []
    for key in sorted({*new, *old}):
        if not key.startswith(_LABEL_KEYS) and new.get(key) != old.get(key):
            differences.append(f"{key}: {old.get(key)} before, {new.get(key)} now")
    return differences
