"""Checkpoints: one file per round, whole or absent, the last two kept, checked by digest when read."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np

from fedgsca.errors import RunFolderError
from fedgsca.methods.base import ServerState
from fedgsca.support.files import write_atomic
from fedgsca.wire import Arrays, pack, unpack

log = logging.getLogger(__name__)
KEEP = 2


def _digest(*groups: Arrays) -> str:
    sha = hashlib.sha256()
    for arrays in groups:
        for name in sorted(arrays):
            sha.update(name.encode())
            sha.update(np.ascontiguousarray(arrays[name]).data)
    return sha.hexdigest()


def save(folder: Path, state: ServerState, fingerprint: str) -> None:
    header = {
        "round": state.round,
        "fingerprint": fingerprint,
        "digest": _digest(state.weights, state.extras),
    }
    write_atomic(
        folder / f"round-{state.round:06d}.safetensors",
        pack(header, weights=state.weights, extras=state.extras),
    )
    for old in sorted(folder.glob("round-*.safetensors"))[:-KEEP]:
        old.unlink(missing_ok=True)


def _read(path: Path, fingerprint: str) -> ServerState:
    header, (weights, extras) = unpack(path.read_bytes(), ("weights", "extras"))
    if header["digest"] != _digest(weights, extras):
        raise ValueError("its content does not match its checksum")
    if header["fingerprint"] != fingerprint:
        raise RunFolderError(
            "todo.checkpoint-1",
            f"checkpoint {path} belongs to another experiment",
            fix="use the folder's own config.toml, or another --out",
        )
    return ServerState(int(str(header["round"])), weights, extras)


def latest(folder: Path, fingerprint: str) -> ServerState | None:
    """The newest checkpoint that can be read; a damaged one is named and the one before it is used."""
    paths = sorted(folder.glob("round-*.safetensors"), reverse=True)
    for path in paths:
        try:
            return _read(path, fingerprint)
        except RunFolderError:
            raise
        except Exception as error:
            log.warning(
                "checkpoint %s is damaged (%s); going back to the one before it", path.name, error
            )
    if paths:
        raise RunFolderError(
            "todo.checkpoint-2",
            f"no checkpoint in {folder} can be read",
            fix="restore the folder from a backup, or start anew with another --out",
        )
    return None
