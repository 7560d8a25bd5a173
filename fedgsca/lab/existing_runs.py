"""A comparison of runs that exist already, wherever they are."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedgsca.errors import RunFolderError
from fedgsca.federation.records import Comparison, RunResult
from fedgsca.federation.run_folder import read_config, read_result, read_setup
from fedgsca.lab.comparison import make_cell
from fedgsca.lab.report.run_facts import method_title
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
    )
    return comparison, _find_differences(paths)


def _read_finished(path: Path) -> RunResult:
    result = read_result(path) if path.is_dir() else None
    if result is None:
        raise RunFolderError(
            "run.not-finished",
            f"{path} is not the folder of a finished run",
            fix="give folders of finished runs, or finish it with `fedgsca resume`",
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
