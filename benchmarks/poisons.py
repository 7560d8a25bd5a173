"""Lies of a site, each as a function from its honest update to the one it sends.

A lie sees what a dishonest hospital sees: the payload, its own honest update and its own earlier
ones. Some also need the honest updates of the round (`others`), which only somebody who reads the
coordinator's network would have.
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
    earlier: list[Update] = field(default_factory=list)  # its own honest ones, of earlier rounds
    others: list[Update] = field(default_factory=list)  # of this round, from honest sites
    first_weights: Arrays | None = None  # that it received in its first round; None: it is now


Poison = Callable[[Liar], Update]
POISONS: dict[str, Poison] = {}


def _poison(name: str) -> Callable[[Poison], Poison]:
    def register(function: Poison) -> Poison:
        POISONS[name] = function
        return function

    return register


def _map_floats(update: Update, change: Callable[[str, np.ndarray], np.ndarray]) -> Update:
    weights = {}
    for name, value in update.weights.items():
        if value.dtype.kind == "f":
            value = np.asarray(change(name, value), dtype=value.dtype)
        weights[name] = value
    return replace(update, weights=weights)


def _norm(weights: Arrays, received: Arrays) -> float:
    squares = 0.0
    for name, value in weights.items():
        if value.dtype.kind == "f":
            squares += float(np.square(value - received[name], dtype=np.float64).sum())
    return float(np.sqrt(squares))


# ---- its change, made larger or reversed ----


def _scaled_change(liar: Liar, factor: float) -> Update:
    received = liar.payload.weights
    return _map_floats(
        liar.update, lambda name, value: received[name] + factor * (value - received[name])
    )


def _add_scaling(name: str, factor: float, honest_rounds: int = 0) -> None:
    @_poison(name)
    def scale(liar: Liar) -> Update:
        return _scaled_change(liar, factor) if len(liar.earlier) >= honest_rounds else liar.update


for _factor in (-1.0, -2.0, -5.0, -10.0, 3.5, 10.0, 100.0):
    _add_scaling(f"change x {_factor:g}", _factor)
_add_scaling("change x -2 from round 5", -2.0, honest_rounds=4)
_add_scaling("change x -5 from round 5", -5.0, honest_rounds=4)


@_poison("x -5 in every second round")
def _alternate(liar: Liar) -> Update:
    return _scaled_change(liar, -5.0) if len(liar.earlier) % 2 else liar.update


@_poison("reversed and pulled back")
def _hidden_reversal(liar: Liar) -> Update:
    """The change times -1, and a pull of the whole model halfway to zero."""
    received = liar.payload.weights
    return _map_floats(
        liar.update,
        lambda name, value: received[name] - (value - received[name]) - 0.5 * received[name],
    )


@_poison("the same push")
def _same_push(liar: Liar) -> Update:
    """In every round the reversed change of its second round, twice as large."""
    if len(liar.earlier) < 2:
        return liar.update
    first, second = liar.earlier[0].weights, liar.earlier[1].weights
    received = liar.payload.weights
    return _map_floats(
        liar.update, lambda name, value: received[name] - 2.0 * (second[name] - first[name])
    )


# ---- a pull to one wrong model ----


def _is_head(name: str) -> bool:
    return name.startswith("head.")


def _pull_to_wrong_model(liar: Liar, norm: float, offset: float = 0.0) -> Update:
    """A step of this norm at most to its first model, classes shifted and three times as large.

    `offset` times the norm is added to the rows of all classes alike, which softmax ignores.
    """
    first = liar.earlier[0].weights if liar.earlier else liar.update.weights
    received = liar.payload.weights
    steps = {}
    for name, value in first.items():
        if value.dtype.kind == "f":
            target = np.roll(value, 1, axis=0) if _is_head(name) else value
            steps[name] = 3.0 * target - received[name]
    squares = [float(np.square(step, dtype=np.float64).sum()) for step in steps.values()]
    factor = min(1.0, norm / max(float(np.sqrt(sum(squares))), 1e-30))

    def move(name: str, value: np.ndarray) -> np.ndarray:
        step = factor * steps[name]
        if offset and _is_head(name):
            step = step + offset * norm / np.sqrt(value.size)
        return np.asarray(received[name] + step)

    return _map_floats(liar.update, move)


def _first_norm(liar: Liar) -> float:
    first = liar.earlier[0].weights if liar.earlier else liar.update.weights
    return _norm(first, liar.payload.weights if liar.first_weights is None else liar.first_weights)


@_poison("one wrong model")
def _wrong_model(liar: Liar) -> Update:
    """With the norm of its first change: honest ones become smaller, so it wins in the end."""
    return _pull_to_wrong_model(liar, _first_norm(liar))


@_poison("one wrong model, three times the norm")
def _sustained(liar: Liar) -> Update:
    return _pull_to_wrong_model(liar, 3.0 * _norm(liar.update.weights, liar.payload.weights))


@_poison("one wrong model behind an offset")
def _offset(liar: Liar) -> Update:
    return _pull_to_wrong_model(liar, _first_norm(liar), offset=3.0)


_STRIKE_ROUND = 7  # of 12: the last one before the learning rate falls


@_poison("strike in round 8")
def _strike(liar: Liar) -> Update:
    if len(liar.earlier) != _STRIKE_ROUND:
        return liar.update
    return _pull_to_wrong_model(liar, 3.0 * _first_norm(liar))


# ---- numbers that no training makes ----


@_poison("weights x 100")
def _weights_times_hundred(liar: Liar) -> Update:
    return _map_floats(liar.update, lambda name, value: value * 100.0)


@_poison("weights x -1")
def _weights_flipped(liar: Liar) -> Update:
    return _map_floats(liar.update, lambda name, value: -value)


def _add_constant(name: str, number: float) -> None:
    @_poison(name)
    def fill(liar: Liar) -> Update:
        if len(liar.earlier) != 2:
            return liar.update
        return _map_floats(liar.update, lambda name, value: np.full_like(value, number))


_add_constant("1e30 once", 1e30)
_add_constant("3e38 once", 3e38)


@_poison("one weight 1e6")
def _one_weight(liar: Liar) -> Update:
    def change(name: str, value: np.ndarray) -> np.ndarray:
        if name != min(liar.update.weights):
            return value
        result = value.copy()
        result.flat[0] = 1e6
        return result

    return _map_floats(liar.update, change)


# ---- what others sent, or nobody ----


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


@_poison("nearly a copy of another site")
def _near_copy(liar: Liar) -> Update:
    """With one per cent of noise, so that no two updates are equal: others look far away."""
    if not liar.others:
        return liar.update
    copy = replace(liar.update, weights=liar.others[0].weights)
    return _map_floats(copy, _noise_of(liar, 0.01))


@_poison("no change")
def _zero(liar: Liar) -> Update:
    return replace(liar.update, weights=dict(liar.payload.weights))


@_poison("additive noise")
def _noise(liar: Liar) -> Update:
    """Gaussian noise with the norm of the honest change, added to it."""
    return _map_floats(liar.update, _noise_of(liar, 1.0))


@_poison("noise only x 3")
def _only_noise(liar: Liar) -> Update:
    unchanged = replace(liar.update, weights=dict(liar.payload.weights))
    return _map_floats(unchanged, _noise_of(liar, 3.0))


def _noise_of(liar: Liar, factor: float) -> Callable[[str, np.ndarray], np.ndarray]:
    count = sum(value.size for value in liar.update.weights.values() if value.dtype.kind == "f")
    scale = factor * _norm(liar.update.weights, liar.payload.weights) / np.sqrt(count)

    def add(name: str, value: np.ndarray) -> np.ndarray:
        rng = stream(0, "poison", liar.update.site, liar.payload.round, name)
        return np.asarray(value + scale * rng.standard_normal(value.shape))

    return add


# ---- lies that know the honest updates ----


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


@_poison("as far as the others are")
def _within_spread(liar: Liar) -> Update:
    """The mean of the others moved to a wrong model, no farther from any of them than they are
    from each other (Shejwalkar and Houmansadr, NDSS 2021). All liars send the same."""
    if len(liar.others) < 2:
        return liar.update
    names = [name for name, value in liar.update.weights.items() if value.dtype.kind == "f"]
    honest = [_flat(other.weights, names) for other in liar.others]
    mean = np.mean(honest, axis=0)
    mean_model = _split(mean, liar.update.weights, names)
    target = {
        name: np.roll(value, 1, axis=0) if _is_head(name) else value
        for name, value in mean_model.items()
    }
    direction = _flat(target, names) - mean
    direction /= max(float(np.linalg.norm(direction)), 1e-30)
    limit = max(float(np.linalg.norm(a - b)) for a in honest for b in honest)
    low, high = 0.0, 2.0 * limit
    for _ in range(30):
        middle = 0.5 * (low + high)
        far = max(float(np.linalg.norm(mean + middle * direction - a)) for a in honest)
        low, high = (middle, high) if far <= limit else (low, middle)
    model = _split(mean + low * direction, liar.update.weights, names)
    return _map_floats(liar.update, lambda name, value: model[name])


def _flat(weights: Arrays, names: list[str]) -> np.ndarray:
    return np.concatenate([np.asarray(weights[name], np.float64).ravel() for name in names])


def _split(vector: np.ndarray, like: Arrays, names: list[str]) -> dict[str, np.ndarray]:
    ends = np.cumsum([like[name].size for name in names])[:-1]
    parts = np.split(vector, ends)
    return {name: part.reshape(like[name].shape) for name, part in zip(names, parts, strict=True)}


# ---- labels ----


@_poison("head reversed")
def _reversed_head(liar: Liar) -> Update:
    """The rows of the classifier in reverse order: every class is called by another name."""
    return _map_floats(
        liar.update, lambda name, value: value[::-1].copy() if _is_head(name) else value
    )


# of the data, not of the update: the noise of the liar's labels
LABEL_POISONS: Mapping[str, str] = {"labels flipped (P90)": "P90", "labels random (S90)": "S90"}


# ---- what travels beside the model ----


def _is_averaged(name: str) -> bool:
    return name in ("evidence.weight", "evidence.bias") or name.startswith("gnn_")


@_poison("extras x -5")
def _reversed_extras(liar: Liar) -> Update:
    """True weights; the change of evidence heads and of FedGP's graph network times -5."""
    extras = dict(liar.update.extras)
    for name, value in extras.items():
        if _is_averaged(name):
            received = liar.payload.extras.get(name, np.zeros_like(value))
            extras[name] = np.asarray(received - 5.0 * (value - received), dtype=value.dtype)
    return replace(liar.update, extras=extras)


@_poison("wrong evidence heads")
def _wrong_heads(liar: Liar) -> Update:
    """True weights; evidence heads pulled to its first ones with the classes shifted."""
    extras = dict(liar.update.extras)
    for name, value in extras.items():
        if name.startswith("evidence.") and _is_averaged(name):
            first = (liar.earlier[0] if liar.earlier else liar.update).extras.get(name, value)
            received = liar.payload.extras.get(name, np.zeros_like(value))
            step = 3.0 * np.roll(first, 1, axis=-1) - received
            norm = 3.0 * float(np.linalg.norm(value - received))
            factor = min(1.0, norm / max(float(np.linalg.norm(step)), 1e-30))
            extras[name] = np.asarray(received + factor * step, dtype=value.dtype)
    return replace(liar.update, extras=extras)


@_poison("statistics x 100")
def _large_statistics(liar: Liar) -> Update:
    """True weights; selector, class losses, LID, counts and centroids times 100."""
    extras = dict(liar.update.extras)
    for name, value in extras.items():
        if np.asarray(value).dtype.kind == "f" and not _is_averaged(name):
            extras[name] = np.asarray(np.clip(100.0 * value, -1e8, 1e8), dtype=value.dtype)
    for name in ("noise_level", "noisy", "trains"):  # they must stay within 0 and 1
        if name in extras:
            extras[name] = np.clip(extras[name], 0.0, 1.0)
    return replace(liar.update, extras=extras)


# ---- numbers of images: agreed ones stop these, and no rule does ----


@_poison("10^9 images")
def _many_images(liar: Liar) -> Update:
    return replace(liar.update, num_samples=10**9)


@_poison("10^9 images from round 3")
def _many_images_later(liar: Liar) -> Update:
    return replace(liar.update, num_samples=10**9) if len(liar.earlier) >= 2 else liar.update


@_poison("images x 10")
def _ten_times_the_images(liar: Liar) -> Update:
    return replace(liar.update, num_samples=10 * liar.update.num_samples)


@_poison("one wrong model and images x 3")
def _wrong_model_of_many_images(liar: Liar) -> Update:
    return replace(_wrong_model(liar), num_samples=3 * liar.update.num_samples)
