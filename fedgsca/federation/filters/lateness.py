"""Updates that arrive in a later round than the one they answer.

With `federation.staleness` = B, an update for round t that arrives in round t + s, s <= B, still
counts if the method declares that it fits (`Method.late`), otherwise it is dropped as without it.
It was trained from theta_t, while the federation is at theta_{t+s}: taking the model itself would
pull the others back. So its change is taken, and discounted:

    theta_k  <-  theta_{t+s} + (theta_k - theta_t) / (1 + s)

For BatchNorm's statistics, of which a sum may be meaningless (a negative variance), the same weight
mixes the two values. The site's weight in the average remains n_k. A site that still works on an
earlier round is not asked for a new one as long as its answer may count.

`LateSites` makes sites late in a simulation, so that lateness can be studied reproducibly.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedgsca.config import Config
from fedgsca.errors import UpdateError
from fedgsca.federation.base import Engine, Reply
from fedgsca.federation.filters.base import UpdateContext, UpdateFilter
from fedgsca.methods.aggregate import is_buffer
from fedgsca.methods.base import Method
from fedgsca.rng import stream
from fedgsca.support.files import write_atomic
from fedgsca.support.text import plural
from fedgsca.wire import (
    Arrays,
    Payload,
    Update,
    decode_payload,
    decode_update,
    encode_payload,
    encode_update,
)


class LatenessFilter(UpdateFilter):
    """Discounts a late update; it follows all filters that look at what the site sent."""

    name = "lateness"

    def __init__(self, method: Method, bound: int) -> None:
        """`bound` is the largest number of rounds."""
        self.method = method
        self.bound = bound

    def examine(self, update: Update, context: UpdateContext) -> Update:
        """Raises UpdateError if the update is too late."""
        old_payload, payload = context.payload, context.round.payload
        if context.reply.late_to is None:
            return update
        check_lateness(self.method, old_payload, payload, self.bound)
        rounds = payload.round - old_payload.round
        context.round.note(update.site, "rounds_late", rounds)
        context.round.tell(
            f"round {payload.round + 1}: the update of {update.site} for round"
            f" {old_payload.round + 1} counts with a smaller weight"
        )
        update = rebase(update, old_payload.weights, payload.weights, late_weight(rounds))
        return self.method.trim_late(update)


def late_weight(rounds: int) -> float:
    """The weight of a change that is so many rounds late."""
    return 1.0 / (1.0 + rounds)


def check_lateness(method: Method, old_payload: Payload, payload: Payload, bound: int) -> None:
    """Raises UpdateError if an update for the round of `old_payload` does not count any more."""
    rounds = payload.round - old_payload.round
    reason = None
    if rounds > bound:
        reason = f"it is {plural(rounds, 'round')} late, and at most {bound} are allowed"
    elif not method.late.is_tolerated:
        reason = f"the method does not use late updates: {method.late.reason}"
    elif _stage(method, old_payload) != _stage(method, payload):
        reason = f"the stage of the method has changed since round {old_payload.round + 1}"
    if reason is not None:
        raise UpdateError(
            "update.too-late",
            f"its update of round {old_payload.round + 1} arrived too late: {reason}",
            fix="give the site more time: raise federation.deadline or federation.staleness",
        )


def _stage(method: Method, payload: Payload) -> float | None:
    if method.late.stage is None:
        return None
    return float(payload.extras[method.late.stage])


def rebase(update: Update, old_model: Arrays, model: Arrays, weight: float) -> Update:
    """The update as if its change, times `weight`, had been made to `model`, the current one.

    `old_model` is the model that the site received.
    """
    weights: dict[str, np.ndarray] = {}
    for name, value in update.weights.items():
        if value.dtype.kind != "f":
            weights[name] = np.asarray(np.maximum(value, model[name]))
            continue
        base = model[name] if is_buffer(name) else old_model[name]
        change = np.subtract(value, base, dtype=np.float64)
        weights[name] = np.asarray(model[name] + weight * change).astype(value.dtype)
    return Update(update.site, update.num_samples, weights, update.extras)


# ---- late sites in a simulation ----


FOLDER = "late"
_PAYLOAD = "payload.safetensors"
MAX_DELAY = 10  # rounds
_KEPT_ROUNDS = 5  # beyond the longest delay: the run can go back to an earlier checkpoint
_MAX_ATTEMPTS = 5  # of a round whose sites are busy or send nothing usable


class LateSites:
    """Wraps an engine, and makes its sites answer late.

    The delay of an update, in rounds, is drawn from the address stream(seed, "lateness", round,
    site): it is at least s with probability q^s, where q is `federation.simulated_lateness`, and at
    most MAX_DELAY. A late update waits in the run folder,

        late/round-000003/payload.safetensors    the model that the sites of the round received
        late/round-000003/<site>.safetensors     an update on its way; empty if it is too late

    and arrives in its round if that is within `federation.staleness`. Until then the site is busy,
    whether its update will count or not. A round in which too few sites are in time is repeated,
    and then waits for all sites that it asks, as a deployment does.
    """

    def __init__(self, engine: Engine, config: Config, names: Sequence[str], folder: Path) -> None:
        self.engine = engine
        self.config = config
        self.names = tuple(sorted(names))
        self.folder = folder / FOLDER
        self.last_round = -1
        self.patient_round = -1  # this round waits for late sites

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        """Replies in time by site names, then the late ones of earlier rounds by site names."""
        self.last_round = payload.round
        self._clean_up(payload.round)
        names = self.names if sites is None else sorted(sites)
        busy = self._busy_sites(payload.round)
        arrivals = [site for site in busy if self._arrives(busy[site], site, payload.round)]
        free_sites = [name for name in names if name not in busy]
        for reply in self.engine.exchange(payload, free_sites):
            yield self._hold_back(reply, payload)
        for name in names:
            if name in busy and name not in arrivals:
                yield Reply(name, None, f"it is still busy with round {busy[name] + 1}")
        for name in arrivals:
            yield self._read(busy[name], name)

    def wait_for_quorum(self, attempt: int, problem: str) -> bool:
        """The repeated round waits for its sites."""
        self.patient_round = self.last_round
        return attempt < _MAX_ATTEMPTS

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def delay(self, round_index: int, site: str) -> int:
        """By how many rounds the update of a site for a round is late."""
        rng = stream(self.config.seed, "lateness", round_index, site)
        rounds = 0
        while rounds < MAX_DELAY:
            if rng.random() >= self.config.federation.simulated_lateness:
                break
            rounds += 1
        return rounds

    def _hold_back(self, reply: Reply, payload: Payload) -> Reply:
        """The reply, if it is in time; otherwise its update is stored."""
        rounds = self.delay(payload.round, reply.site)
        is_in_time = rounds == 0 or payload.round == self.patient_round
        if reply.update is None or is_in_time:
            return reply
        folder = self._round_folder(payload.round)
        content = b""
        if rounds <= self.config.federation.staleness:
            content = encode_update(reply.update)
            if not (folder / _PAYLOAD).exists():
                write_atomic(folder / _PAYLOAD, encode_payload(payload))
        write_atomic(folder / f"{reply.site}.safetensors", content)
        reason = "it did not answer in time"
        return replace(reply, update=None, error=reason, simulation_metrics={})

    def _busy_sites(self, round_index: int) -> dict[str, int]:
        """site -> the earlier round on which it still works, in the order of names."""
        busy = {}
        for start in range(max(0, round_index - MAX_DELAY), round_index):
            for path in sorted(self._round_folder(start).glob("*.safetensors")):
                site = path.name.removesuffix(".safetensors")
                if path.name != _PAYLOAD and start + self.delay(start, site) >= round_index:
                    busy[site] = start
        return {site: busy[site] for site in sorted(busy)}

    def _arrives(self, start: int, site: str, round_index: int) -> bool:
        """Whether the update of a site for round `start` is usable in this round."""
        rounds = self.delay(start, site)
        return start + rounds == round_index and rounds <= self.config.federation.staleness

    def _read(self, round_index: int, site: str) -> Reply:
        folder = self._round_folder(round_index)
        update = decode_update((folder / f"{site}.safetensors").read_bytes())
        old_payload = decode_payload((folder / _PAYLOAD).read_bytes())
        return Reply(site, update, late_to=old_payload)

    def _clean_up(self, round_index: int) -> None:
        """Delete what an attempt at this round left behind, and what no round can need."""
        oldest = round_index - MAX_DELAY - _KEPT_ROUNDS
        for folder in sorted(self.folder.glob("round-*")):
            if not oldest <= int(folder.name.removeprefix("round-")) < round_index:
                shutil.rmtree(folder, ignore_errors=True)

    def _round_folder(self, round_index: int) -> Path:
        return self.folder / f"round-{round_index:06d}"
