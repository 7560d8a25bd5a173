"""Under `privacy` a site of a deployment answers each round once.

The budget counts one answer per round. Two answers to one round would cost twice as much; with the
same noise, their difference would have none. So an update is stored on the site's disk before it
leaves: a repeated request gets the stored update again, and a request with another model for an
answered round, or for an earlier round, is refused. A site's private memory (site_store.py) then
cannot be led along two paths, either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from fedgsca.errors import RunFolderError, UpdateError
from fedgsca.support.files import file_lock, remove_quietly, write_atomic
from fedgsca.wire import Payload, Update, encode_payload, pack, read_count, unpack

_KEEP = 2  # updates, as many as the coordinator keeps checkpoints


def answer_once(
    folder: Path, payload: Payload, rounds: int, train: Callable[[], Update | None]
) -> Update | None:
    """The update for this payload: the stored one, or a new one by `train`.

    A new one is made only if neither this round nor a later one was answered before. None if
    `train` makes none; nothing is stored then.
    """
    request_digest = hashlib.sha256(encode_payload(payload)).hexdigest()
    path = folder / f"round-{payload.round:06d}.safetensors"
    with file_lock(folder / ".lock"):
        stored_paths = sorted(folder.glob("round-*.safetensors"))
        if path in stored_paths:
            return _read_update(path, request_digest)
        is_earlier = bool(stored_paths) and path < stored_paths[-1]
        if is_earlier or not 0 <= payload.round < rounds:
            raise UpdateError(
                "privacy.round-out-of-order",
                "under privacy it answers every round of the experiment once, in their order",
                fix="continue with the next round",
            )
        update = train()
        if update is not None:
            _write_update(path, update, request_digest)
            for old_path in stored_paths[: 1 - _KEEP]:
                remove_quietly(old_path)
        return update


def _write_update(path: Path, update: Update, request_digest: str) -> None:
    header = {
        "asked": request_digest,
        "site": update.site,
        "num_samples": update.num_samples,
    }
    content = pack(header, weights=update.weights, extras=update.extras)
    write_atomic(path, content)


def _read_update(path: Path, request_digest: str) -> Update:
    try:
        header, (weights, extras) = unpack(path.read_bytes(), ("weights", "extras"))
        is_same_request = header["asked"] == request_digest
        num_samples = read_count(header["num_samples"], "num_samples")
        update = Update(str(header["site"]), num_samples, weights, extras)
    except Exception as error:
        raise RunFolderError(
            "privacy.damaged-update",
            f"the stored update {path} is damaged: {error}",
            fix="leave it: the site answers the rounds after this one",
        ) from error
    if not is_same_request:
        raise UpdateError(
            "privacy.round-already-answered",
            "under privacy it has answered this round for another model",
            fix="continue with the next round",
        )
    return update
