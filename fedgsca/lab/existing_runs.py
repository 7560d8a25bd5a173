"""Finished runs again: several as a comparison, or one of them with more rounds."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedgsca.config import to_toml
from fedgsca.errors import ConfigError, RunFolderError
from fedgsca.federation import checkpoint
from fedgsca.federation.records import RunResult
from fedgsca.federation.run_folder import read_config, read_result, read_setup
from fedgsca.lab.comparison import make_cell
from fedgsca.lab.records import Comparison
from fedgsca.lab.report.run_facts import method_title
from fedgsca.support.files import make_folders, write_atomic
from fedgsca.support.text import join_words


def compare_existing(paths: Sequence[Path], out: Path) -> tuple[Comparison, list[str]]:
    """The content of compare.json for the folder `out`, and what makes the comparison unfair.

    Runs that differ only in the seed become one row. Where several runs have the same method, noise
    and seed, each of them is a row of its own, under the name of its folder.
    """
    results = [_read_finished(path) for path in paths]
    identities = [(result.method, result.noise, result.seed) for result in results]
    has_twins = max(Counter(identities).values()) > 1
    cells = []
    for path, result in zip(paths, results, strict=True):
        cell = replace(
            make_cell(read_config(path), result, path),
            label=method_title(result.method),
            path=os.path.relpath(path.resolve(), out.resolve()),
        )
        if has_twins:
            name = path.resolve().name
            cell = replace(cell, method=name, label=f"{cell.label} ({name})")
        cells.append(cell)
    data = join_words(sorted({result.data for result in results}))
    comparison = Comparison(
        title=f"{join_words(list(dict.fromkeys(cell.label for cell in cells)))} on {data}",
        data=data,
        noises=tuple(dict.fromkeys(cell.noise for cell in cells)),
        methods=tuple(dict.fromkeys(cell.method for cell in cells)),
        seeds=tuple(dict.fromkeys(cell.seed for cell in cells)),
        cells=tuple(cells),
        ceiling={},
        classes=read_setup(paths[0]).data.classes or None,
    )
    return comparison, _find_differences(paths)


def _read_finished(path: Path) -> RunResult:
    result = read_result(path) if path.is_dir() else None
    if result is None or (path / "plan.json").exists():
        raise RunFolderError(
            "run.not-finished",
            f"{path} is not the folder of a finished run",
            fix=f"give the folder of a finished run, or finish it with `fedgsca resume {path}`",
        )
    return result


def _find_differences(paths: Sequence[Path]) -> list[str]:
    """Images, rounds or networks that are not the same in all runs."""
    fingerprints = set()
    rounds = set()
    models = set()
    for path in paths:
        config = read_config(path)
        fingerprints.add(read_setup(path).data.fingerprint)
        rounds.add(config.train.rounds)
        models.add(f"{config.model.name}{' (frozen)' if config.model.frozen else ''}")
    warnings = []
    if len(fingerprints) > 1:
        warnings.append("the runs used different images, labels or splits")
    if len(rounds) > 1:
        warnings.append(f"the runs had different numbers of rounds: {sorted(rounds)}")
    if len(models) > 1:
        warnings.append(f"the runs used different networks: {', '.join(sorted(models))}")
    return warnings


# what the end of the shorter run has written
_FINAL_FILES = ("result.json", "report.html", "model.safetensors", "paired.json")


def copy_for_more_rounds(run: Path, rounds: int, out: Path | None = None) -> Path:
    """Make a folder in which `fedgsca resume` trains the run up to `rounds`.

    The learning rate follows the longer schedule from here on, so the result is not that of a run
    which had `rounds` from the beginning. The folder of the shorter run stays as it is.
    """
    _read_finished(run)
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
