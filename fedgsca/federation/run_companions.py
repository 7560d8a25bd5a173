"""Files that belong to a checkpoint: the log so far, and the memory of the sites on this machine.

A checkpoint records them, so that a run does not silently continue without them: lines that are
missing would falsify the result, and a site without its memory would train another model.
Checkpoints of 0.2 record nothing, and only the rounds of the log are compared.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from fedgsca.errors import RunFolderError
from fedgsca.methods.site_store import Store

_LOG = "metrics.jsonl"
_STORES = ("store", "evidence")


def describe_companions(folder: Path, rounds: int) -> dict[str, object]:
    """The checksum of the first `rounds` lines of the log, and the newest memory of each site."""
    lines = _log_lines(folder)[:rounds]
    return {"log": _digest(lines), "memory": describe_memory(folder, rounds)}


def describe_memory(folder: Path, rounds: int) -> dict[str, int]:
    """The newest memory of the first `rounds` rounds: folder of a site -> version."""
    memory: dict[str, int] = {}
    for kind in _STORES:
        for place in sorted(Path(path) for path, _, _ in os.walk(folder / kind)):
            versions = [version for version in Store(place).versions() if version < rounds]
            if versions:
                memory[place.relative_to(folder).as_posix()] = versions[-1]
    return memory


def check_companions(folder: Path, rounds: int, companions: Mapping[str, object]) -> None:
    """Stop with an error if a file that belongs to the checkpoint after `rounds` is not as it was.

    `companions` is what `describe_companions` returned then; empty for a run of 0.2.
    """
    lines = _log_lines(folder)[:rounds]
    for round_index in range(rounds):
        if round_index >= len(lines) or not _is_round(lines[round_index], round_index):
            raise _damaged_log(folder, f"line {round_index + 1} is not that of round {round_index}")
    digest = companions.get("log")
    if digest is not None and digest != _digest(lines):
        raise _damaged_log(folder, "its lines have changed since they were written")
    memory = companions.get("memory")
    if isinstance(memory, dict):
        for name, version in memory.items():
            Store(folder / str(name)).require(int(version))


def _log_lines(folder: Path) -> list[bytes]:
    try:
        return (folder / _LOG).read_bytes().split(b"\n")[:-1]  # the last one may be incomplete
    except FileNotFoundError:
        return []


def _digest(lines: list[bytes]) -> str:
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def _is_round(line: bytes, round_index: int) -> bool:
    try:
        tree = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(tree, dict) and tree.get("round") == round_index


def _damaged_log(folder: Path, reason: str) -> RunFolderError:
    return RunFolderError(
        "run.damaged-log",
        f"{folder / _LOG} does not belong to the checkpoint: {reason}",
        fix="restore the file from a backup, or start again with another --out",
    )
