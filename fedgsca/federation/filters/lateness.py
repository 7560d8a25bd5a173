"""Updates that arrive in a later round than the one they answer.

With `federation.staleness` = B, an update for round t that arrives in round t + s, s <= B, still
counts if the method declares that it fits (`Method.late`), otherwise it is dropped as without it.
It was trained from theta_t, while the federation is at theta_{t+s}: taking the model itself would
pull the others back. So its change is taken, and discounted:

    theta_k  <-  theta_{t+s} + (theta_k - theta_t) / (1 + s)

For BatchNorm's statistics, of which a sum may be meaningless (a negative variance), the same weight
mixes the two values. The site's weight in the average remains n_k. A site that still works on an
earlier round is not asked for a new one as long as its answer may count.
"""

from __future__ import annotations

import numpy as np

from fedgsca.errors import UpdateError
from fedgsca.federation.filters.base import UpdateContext, UpdateFilter
from fedgsca.methods.aggregate import is_buffer
from fedgsca.methods.base import Method
from fedgsca.support.text import plural
from fedgsca.wire import Arrays, Payload, Update


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
