"""The numbers of an earlier run, to stand beside those of a run with corrected labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgsca.config import flat
from fedgsca.errors import RunFolderError
from fedgsca.report.run_reader import Run, read_json, read_run
from fedgsca.report.sentences import wrong_share
from fedgsca.support.files import write_atomic

FILE = "before.json"
LABELS = (
    "data.labels",
    "data.source",
    "noise.",
)  # keys that may differ: they are what was corrected


def snapshot(path: Path) -> dict[str, Any] | None:
    """What a comparison needs of a finished run; None if it is not finished, or the state of a hospital."""
    if not (path / "config.toml").is_file():
        return None
    run = read_run(path, with_losses=False)
    if run.result is None:
        return None
    kept = {name: run.result.get(name) for name in ("f1", "recall", "precision", "per_class")}
    return {
        "run": path.resolve().name,
        **kept,
        "wrong": wrong_share(run),
        "config": flat(run.config),
    }


def remember(path: Path, before: Path) -> None:
    """Note in a run's folder which run came before it: its report then shows both."""
    found = snapshot(before)
    if found is None:
        raise RunFolderError(
            "todo.previous-run-1",
            f"{before} is not the folder of a finished run",
            fix="give a finished run after --before",
        )
    write_atomic(path / FILE, json.dumps(found, indent=1, sort_keys=True).encode() + b"\n")


def earlier(run: Run) -> Mapping[str, Any] | None:
    """What was before: the run named by hand, else the one that the labels' log names."""
    logged = run.setup.get("labels", {}).get("review", {}).get("before")
    return read_json(run.path / FILE) or (logged if isinstance(logged, Mapping) else None)


def other_differences(run: Run, before: Mapping[str, Any]) -> list[str]:
    """Configuration keys, besides those of the labels, in which the two runs differ: then more than the labels changed."""
    mine, theirs = flat(run.config), before.get("config") or {}
    keys = sorted(key for key in mine | theirs if not key.startswith(LABELS))
    return [
        f"{key}: {theirs.get(key)} before, {mine.get(key)} now"
        for key in keys
        if mine.get(key) != theirs.get(key)
    ]
