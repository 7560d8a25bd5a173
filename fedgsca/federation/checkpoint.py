"""Checkpoints: one file per round, complete or absent, checked by digest when read.

The last four are kept, so that a run can go back (`fedgsca resume --from`). A checkpoint also holds
the memory of the filters (filters/base.py), and describes its companions: the log so far, and the
memory of the sites on this machine. A run does not silently continue without them: lines that are
missing would falsify the result, and a site without its memory would train another model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.methods.base import ServerState
from fedgsca.methods.site_store import Store
from fedgsca.support.files import write_atomic
from fedgsca.wire import Arrays, pack, unpack

log = logging.getLogger(__name__)
KEEP = 4  # a site's memory (site_store.py) has one version more


@dataclass(frozen=True)
class Checkpoint:
    """The state of the method after a round, the memory of the filters, and the companions."""

    state: ServerState
    filters: Arrays = field(default_factory=dict)
    companions: Mapping[str, object] = field(default_factory=dict)


def _digest(*groups: Arrays) -> str:
    sha = hashlib.sha256()
    for arrays in groups:
        for name in sorted(arrays):
            sha.update(name.encode())
            sha.update(np.ascontiguousarray(arrays[name]).data)
    return sha.hexdigest()


def save(
    folder: Path,
    state: ServerState,
    fingerprint: str,
    filters: Arrays | None = None,
    companions: Mapping[str, object] | None = None,
) -> None:
    """Write the state after a round. `fingerprint` names the experiment.

    `companions` are those of `describe_companions`.
    """
    filters = filters or {}
    header: dict[str, object] = {
        "round": state.round,
        "fingerprint": fingerprint,
        "digest": _digest(state.weights, state.extras, filters),
    }
    if companions:
        header["companions"] = companions
    content = pack(header, weights=state.weights, extras=state.extras, filters=filters)
    write_atomic(_path(folder, state.round), content)
    for old_path in paths(folder)[:-KEEP]:
        old_path.unlink(missing_ok=True)


def _path(folder: Path, rounds: int) -> Path:
    return folder / f"round-{rounds:06d}.safetensors"


def paths(folder: Path) -> list[Path]:
    """All checkpoints, the newest last."""
    return sorted(folder.glob("round-*.safetensors"))


def round_of(path: Path) -> int:
    """The number of rounds before a checkpoint."""
    return int(path.stem.removeprefix("round-"))


def latest(folder: Path, fingerprint: str) -> ServerState | None:
    """The state of the newest checkpoint that can be read, or None if there is none."""
    newest = read_latest(folder, fingerprint)
    return None if newest is None else newest.state


def go_back(folder: Path, rounds: int, fingerprint: str) -> None:
    """Make the checkpoint after `rounds` rounds the newest one; 0 is the start of the run."""
    if rounds > 0:
        try:
            _read(_path(folder, rounds), fingerprint)
        except RunFolderError:
            raise
        except Exception as error:
            choices = ", ".join(str(rounds + 1) for rounds in [0, *map(round_of, paths(folder))])
            raise RunFolderError(
                "run.no-such-checkpoint",
                f"{folder} has no readable checkpoint before round {rounds + 1}: {error}",
                fix=f"use one of: --from {choices}",
            ) from None
    for path in reversed(paths(folder)):
        if round_of(path) > rounds:
            path.unlink(missing_ok=True)


def read_latest(folder: Path, fingerprint: str) -> Checkpoint | None:
    """The newest checkpoint that can be read, or None if there is none.

    A damaged one is reported, and the one before it is used.
    """
    stored_paths = paths(folder)
    for path in reversed(stored_paths):
        try:
            return _read(path, fingerprint)
        except RunFolderError:
            raise
        except Exception as error:
            log.warning("checkpoint %s is damaged (%s); using the one before it", path.name, error)
    if stored_paths:
        raise RunFolderError(
            "run.no-readable-checkpoint",
            f"none of the checkpoints in {folder} can be read",
            fix="restore the folder from a backup, or start again with another --out",
        )
    return None


def _read(path: Path, fingerprint: str) -> Checkpoint:
    header, (weights, extras, filters) = unpack(path.read_bytes(), ("weights", "extras", "filters"))
    if header["digest"] != _digest(weights, extras, filters):
        raise ValueError("its content does not match its checksum")
    if header["fingerprint"] != fingerprint:
        raise RunFolderError(
            "run.other-checkpoint",
            f"the checkpoint {path} belongs to another experiment",
            fix="use the folder's own config.toml, or another --out",
        )
    companions = header.get("companions")
    state = ServerState(int(str(header["round"])), weights, extras)
    return Checkpoint(state, filters, companions if isinstance(companions, dict) else {})


# ---- the files that belong to a checkpoint ----


_LOG = "metrics.jsonl"
_STORES = ("store", "evidence")


def describe_companions(folder: Path, rounds: int) -> dict[str, object]:
    """The checksum of the first `rounds` lines of the log, and the newest memory of each site."""
    lines = _log_lines(folder)[:rounds]
    return {"log": _log_digest(lines), "memory": describe_memory(folder, rounds)}


def describe_memory(folder: Path, rounds: int) -> dict[str, int]:
    """The newest memory of the first `rounds` rounds: folder of a site -> version."""
    memory: dict[str, int] = {}
    for kind in _STORES:
        for place in sorted(Path(path) for path, _, _ in os.walk(folder / kind)):
            versions = [version for version in Store(place).versions() if version < rounds]
            if versions:
                memory[place.relative_to(folder).as_posix()] = versions[-1]
    return memory


def check_companions(folder: Path, newest: Checkpoint) -> None:
    """Stop with an error if a file that belongs to the checkpoint is not as it was."""
    rounds = newest.state.round
    lines = _log_lines(folder)[:rounds]
    for round_index in range(rounds):
        if round_index >= len(lines) or not _is_round(lines[round_index], round_index):
            raise _damaged_log(folder, f"line {round_index + 1} is not that of round {round_index}")
    digest = newest.companions.get("log")
    if digest is not None and digest != _log_digest(lines):
        raise _damaged_log(folder, "its lines have changed since they were written")
    memory = newest.companions.get("memory")
    if isinstance(memory, dict):
        for name, version in memory.items():
            Store(folder / str(name)).require(int(version))


def _log_lines(folder: Path) -> list[bytes]:
    try:
        return (folder / _LOG).read_bytes().split(b"\n")[:-1]  # the last one may be incomplete
    except FileNotFoundError:
        return []


def _log_digest(lines: list[bytes]) -> str:
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
