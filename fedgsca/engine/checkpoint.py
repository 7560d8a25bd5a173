"""Checkpoints: one file per round, complete or absent, checked by digest when read.

The last two are kept.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.methods.base import ServerState
from fedgsca.support.files import write_atomic
from fedgsca.wire import Arrays, pack, read_metadata, unpack

log = logging.getLogger(__name__)
KEEP = 2
_PATTERN = "round-*.safetensors"


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
    companions: Mapping[str, object] | None = None,
) -> None:
    """Write the state after a round. `fingerprint` names the experiment.

    `companions` describe the files that belong to this state (run_companions.py).
    """
    header: dict[str, object] = {
        "round": state.round,
        "fingerprint": fingerprint,
        "digest": _digest(state.weights, state.extras),
    }
    if companions:
        header["companions"] = companions
    path = folder / f"round-{state.round:06d}.safetensors"
    write_atomic(path, pack(header, weights=state.weights, extras=state.extras))
    for old_path in sorted(folder.glob(_PATTERN))[:-KEEP]:
        old_path.unlink(missing_ok=True)


def latest(folder: Path, fingerprint: str) -> ServerState | None:
    """The newest checkpoint that can be read, or None if there is none.

    A damaged one is reported, and the one before it is used.
    """
    paths = sorted(folder.glob(_PATTERN), reverse=True)
    for path in paths:
        try:
            return _read(path, fingerprint)
        except RunFolderError:
            raise
        except Exception as error:
            log.warning("checkpoint %s is damaged (%s); using the one before it", path.name, error)
    if paths:
        raise RunFolderError(
            "run.no-readable-checkpoint",
            f"none of the checkpoints in {folder} can be read",
            fix="restore the folder from a backup, or start again with another --out",
        )
    return None


def read_companions(folder: Path, round_index: int) -> Mapping[str, object]:
    """The companions of a readable checkpoint; empty for those of 0.2."""
    path = folder / f"round-{round_index:06d}.safetensors"
    companions = read_metadata(path.read_bytes()).get("companions")
    return companions if isinstance(companions, dict) else {}


def _read(path: Path, fingerprint: str) -> ServerState:
    header, (weights, extras) = unpack(path.read_bytes(), ("weights", "extras"))
    if header["digest"] != _digest(weights, extras):
        raise ValueError("its content does not match its checksum")
    if header["fingerprint"] != fingerprint:
        raise RunFolderError(
            "run.other-checkpoint",
            f"the checkpoint {path} belongs to another experiment",
            fix="use the folder's own config.toml, or another --out",
        )
    return ServerState(int(str(header["round"])), weights, extras)
