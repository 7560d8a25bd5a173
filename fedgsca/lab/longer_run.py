"""More rounds for a finished run: a copy of it continues from its last checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedgsca.config import to_toml
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.federation import checkpoint
from fedgsca.federation.run_folder import read_config, read_result
from fedgsca.support.files import make_folders, write_atomic

# what the end of the shorter run has written
_FINAL_FILES = ("result.json", "report.html", "model.safetensors", "paired.json")


def copy_for_more_rounds(run: Path, rounds: int, out: Path | None = None) -> Path:
    """Make a folder in which `fedgsca resume` trains the run up to `rounds`.

    The learning rate follows the longer schedule from here on, so the result is not that of a run
    which had `rounds` from the beginning. The folder of the shorter run stays as it is.
    """
    if (run / "plan.json").exists() or read_result(run) is None:
        raise RunFolderError(
            "run.not-finished",
            f"{run} is not the folder of a finished run",
            fix=f"run `fedgsca resume {run}` without --rounds first",
        )
    config = read_config(run)
    if rounds <= config.train.rounds:
        raise ConfigError(
            "run.rounds-not-more",
            f"{run} has {config.train.rounds} rounds already, and --rounds is {rounds}",
            fix=f"choose more than {config.train.rounds}",
        )
    folder = out or run.with_name(f"{run.name}-{rounds}")
    longer = config.model_copy(update={"train": config.train.model_copy(update={"rounds": rounds})})
    if folder.exists():
        if (folder / "config.toml").is_file() and read_config(folder) == longer:
            return folder  # interrupted before: continue
        raise RunFolderError(
            "file.already-exists",
            f"{folder} already exists and is not overwritten",
            fix="choose another --out",
        )
    state = checkpoint.latest(run / "checkpoint", config.fingerprint())
    if state is None or state.round != config.train.rounds:
        raise RunFolderError(
            "run.no-last-checkpoint",
            f"{run} has no checkpoint of its last round",
            fix="start a new run with more rounds",
        )
    patterns = shutil.ignore_patterns(*_FINAL_FILES, ".lock", "checkpoint", "audit")
    shutil.copytree(run, folder, ignore=patterns)
    make_folders(folder / "checkpoint")
    checkpoint.save(folder / "checkpoint", state, longer.fingerprint())
    write_atomic(folder / "config.toml", to_toml(longer).encode())
    return folder
