"""Under `privacy` a site of a deployment answers each round once.

The budget counts one answer a round. Two answers to one round would cost twice as much; and if they had the same noise, their difference
would have none. So an answer is kept on the site's disk before it leaves: a message that comes again gets it again, and another model for a
round that was answered, or a round before it, is refused. A site's private memory (store.py) then cannot be led along two paths, either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from fedgsca.engine.local import Reply
from fedgsca.errors import RunFolderError, UpdateError
from fedgsca.support.files import locked, remove_quietly, write_atomic
from fedgsca.wire import Payload, Update, encode_payload, pack, unpack

_KEEP = 2  # answers, as many as the coordinator keeps checkpoints


def once(folder: Path, payload: Payload, rounds: int, run_round: Callable[[], Reply]) -> Reply:
    """The answer to this payload: the kept one, or a new one if neither this round nor a later one was answered before."""
    asked = hashlib.sha256(encode_payload(payload)).hexdigest()
    path = folder / f"round-{payload.round:06d}.safetensors"
    with locked(folder / ".lock"):
        kept = sorted(folder.glob("round-*.safetensors"))
        if path in kept:
            update = _read(path, asked)
            return Reply(update.site, update)
        if not 0 <= payload.round < rounds or (kept and path < kept[-1]):
            raise UpdateError(
                "todo.reply-cache-1",
                "under privacy it answers every round of the experiment once, in their order",
                fix="go on",
            )
        reply = run_round()
        if (made := reply.update) is not None:
            header = {"asked": asked, "site": made.site, "num_samples": made.num_samples}
            write_atomic(path, pack(header, weights=made.weights, extras=made.extras), mode=0o600)
            for old in kept[: 1 - _KEEP]:
                remove_quietly(old)
        return reply


def _read(path: Path, asked: str) -> Update:
    try:
        header, (weights, extras) = unpack(path.read_bytes(), ("weights", "extras"))
        same, update = (
            header["asked"] == asked,
            Update(str(header["site"]), int(str(header["num_samples"])), weights, extras),
        )
    except Exception as error:
        raise RunFolderError(
            "todo.reply-cache-2",
            f"the kept answer {path} is damaged: {error}",
            fix="leave it: the site answers the rounds after this one",
        ) from error
    if not same:
        raise UpdateError(
            "todo.reply-cache-3",
            "under privacy it has answered this round for another model",
            fix="go on with the next round",
        )
    return update
