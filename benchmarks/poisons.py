"""Lies of a site, each as a function from its honest update to the one it sends.

A poison sees what a dishonest hospital sees: the payload, its own honest update, and its own
earlier updates. `collusion` also gives it the honest updates of the sites that answered before it,
which only an attacker at the coordinator's network would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fedgsca.rng import stream
from fedgsca.wire import Arrays, Payload, Update


@dataclass
class Liar:
    """What a lying site knows when it answers."""

    payload: Payload
    update: Update  # the honest one
    earlier: list[Update] = field(default_factory=list)  # its own, of earlier rounds
    others: list[Update] = field(default_factory=list)  # of this round, from honest sites
    first_weights: Arrays | None = None  # that it received in its first round; None: it is now


Poison = Callable[[Liar], Update]
POISONS: dict[str, Poison] = {}
# poisons that scale, flip or inflate
CRUDE: list[str] = []


def _poison(name: str, *, crude: bool = False) -> Callable[[Poison], Poison]:
    def register(function: Poison) -> Poison:
        POISONS[name] = function
        if crude:
            CRUDE.append(name)
        return function

    return register


def _map_floats(
    update: Update, change: Callable[[str, np.ndarray], np.ndarray], num_samples: int | None = None
) -> Update:
    weights = {}
    for name, value in update.weights.items():
        if value.dtype.kind == "f":
            value = np.asarray(change(name, value), dtype=value.dtype)
        weights[name] = value
    size = update.num_samples if num_samples is None else num_samples
    return replace(update, weights=weights, num_samples=size)


def _scaled_change(liar: Liar, factor: float) -> Update:
    received = liar.payload.weights
    return _map_floats(
        liar.update, lambda name, value: received[name] + factor * (value - received[name])
    )


def _add_scaling(name: str, factor: float) -> None:
    @_poison(name, crude=True)
    def scale(liar: Liar) -> Update:
        return _scaled_change(liar, factor)


for _name, _factor in {
    "change x -1": -1.0,
    "change x -2": -2.0,
    "change x -5": -5.0,
    "change x 3.5": 3.5,  # below what the guard scales down at once
    "change x -10": -10.0,
    "change x 10": 10.0,
    "change x 100": 100.0,
}.items():
    _add_scaling(_name, _factor)


def _add_late_scaling(name: str, factor: float) -> None:
    @_poison(name)
    def scale(liar: Liar) -> Update:
        return _scaled_change(liar, factor) if len(liar.earlier) >= _HONEST_ROUNDS else liar.update


_HONEST_ROUNDS = 4
for _name, _factor in {
    "change x -2 from round 5": -2.0,
    "change x -5 from round 5": -5.0,
}.items():
    _add_late_scaling(_name, _factor)


@_poison("reversed and pulled back")
def _hidden_reversal(liar: Liar) -> Update:
    """The change times -1, and a pull towards zero that makes the response negative again."""
    received = liar.payload.weights
    return _map_floats(
        liar.update,
        lambda name, value: received[name] - (value - received[name]) - 0.5 * received[name],
    )


@_poison("x -5 in every second round")
def _alternate(liar: Liar) -> Update:
    return _scaled_change(liar, -5.0) if len(liar.earlier) % 2 else liar.update


@_poison("the same push")
def _same_push(liar: Liar) -> Update:
    """In every round the reversed change of its second round, twice as large.

    A change does not depend on the model then, so it has no response.
    """
    if len(liar.earlier) < 2:
        return liar.update
    # both updates begin at models that are near each other: their difference is a direction
    first, second = liar.earlier[0].weights, liar.earlier[1].weights
    received = liar.payload.weights
    return _map_floats(
        liar.update, lambda name, value: received[name] - 2.0 * (second[name] - first[name])
    )


def _pull_to_wrong_model(liar: Liar, images: int) -> Update:
    """Always towards one model: its first one, classes shifted by one, three times as large.

    The norm is that of its first change. Honest changes become smaller, so it wins in the end;
    with a false number of images, at once.
    """
    first = liar.earlier[0].weights if liar.earlier else liar.update.weights
    received = liar.payload.weights
    first_received = received if liar.first_weights is None else liar.first_weights
    first_norm, _ = _norm(first, first_received)
    steps = {}
    for name, value in first.items():
        if value.dtype.kind == "f":
            target = np.roll(value, 1, axis=0) if name.startswith("head.") else value
            steps[name] = 3.0 * target - received[name]
    squares = [float(np.square(step, dtype=np.float64).sum()) for step in steps.values()]
    factor = min(1.0, first_norm / max(float(np.sqrt(sum(squares))), 1e-30))
    return _map_floats(
        liar.update,
        lambda name, value: received[name] + factor * steps[name],
        images * liar.update.num_samples,
    )


@_poison("one wrong model")
def _wrong_model(liar: Liar) -> Update:
    return _pull_to_wrong_model(liar, 1)


@_poison("one wrong model and images x 3")
def _wrong_model_of_many_images(liar: Liar) -> Update:
    return _pull_to_wrong_model(liar, 3)


@_poison("weights x 100", crude=True)
def _weights_times_hundred(liar: Liar) -> Update:
    return _map_floats(liar.update, lambda name, value: value * 100.0)


@_poison("weights x -1", crude=True)
def _weights_flipped(liar: Liar) -> Update:
    return _map_floats(liar.update, lambda name, value: -value)


@_poison("1e30 once", crude=True)
def _huge_once(liar: Liar) -> Update:
    if len(liar.earlier) != 2:
        return liar.update
    return _map_floats(liar.update, lambda name, value: np.full_like(value, 1e30))


@_poison("3e38 once", crude=True)
def _largest_float(liar: Liar) -> Update:
    if len(liar.earlier) != 2:
        return liar.update
    return _map_floats(liar.update, lambda name, value: np.full_like(value, 3e38))


@_poison("one weight 1e6", crude=True)
def _one_weight(liar: Liar) -> Update:
    def change(name: str, value: np.ndarray) -> np.ndarray:
        if name != min(liar.update.weights):
            return value
        result = value.copy()
        result.flat[0] = 1e6
        return result

    return _map_floats(liar.update, change)


@_poison("10^9 images", crude=True)
def _many_images(liar: Liar) -> Update:
    return replace(liar.update, num_samples=10**9)


@_poison("10^9 images from round 3", crude=True)
def _many_images_later(liar: Liar) -> Update:
    return replace(liar.update, num_samples=10**9) if len(liar.earlier) >= 2 else liar.update


@_poison("images x 10", crude=True)
def _ten_times_the_images(liar: Liar) -> Update:
    return replace(liar.update, num_samples=10 * liar.update.num_samples)


@_poison("own update of round 1 again")
def _replay(liar: Liar) -> Update:
    if not liar.earlier:
        return liar.update
    return replace(liar.update, weights=liar.earlier[0].weights)


@_poison("copy of another site")
def _copy(liar: Liar) -> Update:
    if not liar.others:
        return liar.update
    return replace(liar.update, weights=liar.others[0].weights)


@_poison("no change")
def _zero(liar: Liar) -> Update:
    return replace(liar.update, weights=dict(liar.payload.weights))


@_poison("additive noise")
def _noise(liar: Liar) -> Update:
    """Gaussian noise with the norm of the honest change, added to it."""
    return _map_floats(liar.update, _noise_of(liar, 1.0))


@_poison("noise only x 3")
def _only_noise(liar: Liar) -> Update:
    noisy = _map_floats(liar.update, _noise_of(liar, 3.0))
    received = liar.payload.weights
    honest = liar.update.weights
    return _map_floats(noisy, lambda name, value: value - honest[name] + received[name])


def _noise_of(liar: Liar, factor: float) -> Callable[[str, np.ndarray], np.ndarray]:
    norm, count = _norm(liar.update.weights, liar.payload.weights)
    scale = factor * norm / np.sqrt(count)

    def add(name: str, value: np.ndarray) -> np.ndarray:
        rng = stream(0, "poison", liar.update.site, liar.payload.round, name)
        return np.asarray(value + scale * rng.standard_normal(value.shape))

    return add


def _norm(weights: Arrays, received: Arrays) -> tuple[float, int]:
    total, count = 0.0, 0
    for name, value in weights.items():
        if value.dtype.kind == "f":
            total += float(np.square(value - received[name], dtype=np.float64).sum())
            count += value.size
    return float(np.sqrt(total)), count


@_poison("inner product")
def _inner_product(liar: Liar) -> Update:
    """Minus the mean change of the others (Xie et al., UAI 2019), with their norm."""
    if not liar.others:
        return _scaled_change(liar, -1.0)
    received = liar.payload.weights

    def change(name: str, value: np.ndarray) -> np.ndarray:
        mean = np.mean([other.weights[name] - received[name] for other in liar.others], axis=0)
        return np.asarray(received[name] - mean)

    return _map_floats(liar.update, change)


@_poison("a little is enough")
def _little(liar: Liar) -> Update:
    """The mean of the others minus 1.5 standard deviations of each weight (Baruch et al., 2019)."""
    if len(liar.others) < 2:
        return liar.update

    def change(name: str, value: np.ndarray) -> np.ndarray:
        stack = np.stack([other.weights[name] for other in liar.others])
        return np.asarray(stack.mean(axis=0) - 1.5 * stack.std(axis=0))

    return _map_floats(liar.update, change)


@_poison("head reversed")
def _reversed_head(liar: Liar) -> Update:
    """The rows of the classifier in reverse order: every class is called by another name."""
    return _map_floats(
        liar.update,
        lambda name, value: value[::-1].copy() if name.startswith("head.") else value,
    )


@_poison("extras x -5")
def _reversed_extras(liar: Liar) -> Update:
    """Honest weights; the change of evidence heads and of FedGP's graph network times -5."""
    extras = dict(liar.update.extras)
    for name in extras:
        if _is_averaged(name):
            value = extras[name]
            received = liar.payload.extras.get(name, np.zeros_like(value))
            extras[name] = np.asarray(received - 5.0 * (value - received), dtype=value.dtype)
    return replace(liar.update, extras=extras)


@_poison("statistics x 100")
def _large_statistics(liar: Liar) -> Update:
    """Honest weights; selector, class losses, LID, masses, counts and centroids times 100."""
    extras = dict(liar.update.extras)
    for name, value in extras.items():
        if np.asarray(value).dtype.kind == "f" and not _is_averaged(name):
            extras[name] = np.asarray(np.clip(100.0 * value, -1e8, 1e8), dtype=value.dtype)
    for name in ("noise_level", "noisy", "trains"):  # they must stay within 0 and 1
        if name in extras:
            extras[name] = np.clip(extras[name], 0.0, 1.0)
    return replace(liar.update, extras=extras)


def _is_averaged(name: str) -> bool:
    return name in ("evidence.weight", "evidence.bias") or name.startswith("gnn_")


# Poisons of the data, not of the update: site -> noise specification of the liar.
LABEL_POISONS: Mapping[str, str] = {"labels flipped (P90)": "P90", "labels random (S90)": "S90"}
