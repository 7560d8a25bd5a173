"""Optional clipping and Gaussian noise on what a site sends. Pure functions; the engine calls `protect` where an update leaves a site.

The unit is a whole site: replace all of its images and labels by any others, as many of them, and what it sends in a round moves by at
most a known distance. Two vectors are bounded:

    change   received -> sent, over all floating-point arrays, running statistics of BatchNorm included; L2 norm <= clip
    extras   numbers with declared `bounds`, each clamped and scaled to [-1, 1]; L2 norm <= sqrt(how many they are)

Two vectors of norm <= r are at most 2 r apart. Noise has std = noise * r in each, so a round is two Gaussian mechanisms (one, if the
method has no such extras) with multiplier noise / 2. Nothing else of an update may depend on the data: integer counters go back as they were
received, diagnostics are not sent, a number that the site does not have is replaced by the middle of its bounds, a site that fails in the
method says the same with noise as if nothing had changed. What is done to noised numbers afterwards costs nothing.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.wire import Arrays, Extra, Payload, Update

if TYPE_CHECKING:
    from fedgsca.config import PrivacyConfig

Draw = Callable[[str, tuple[int, ...]], np.ndarray]  # name, shape -> standard normal numbers
LEAST_VARIANCE = 1e-3  # a running variance must stay positive whatever the noise did to it


def fate(extra: Extra) -> str:
    """What happens to it, in words."""
    return (
        "clamped, noised"
        if extra.bounds is not None
        else "not sent"
        if extra.diagnostic
        else "cannot be protected"
    )


def multiplier(noise: float, uploads: Mapping[str, Extra]) -> float:
    """Noise over sensitivity of one round as a single Gaussian mechanism; 0 if there is no noise."""
    releases = 1 + any(extra.bounds is not None for extra in uploads.values())
    return noise / (2.0 * math.sqrt(releases))


def secret_normals() -> Draw:
    """Standard normal numbers that nobody can compute again, however many of them he has seen."""
    return normals(secrets.token_bytes(32))


def normals(key: bytes) -> Draw:
    """numpy's generators are not made for secrets. SHAKE-256 is, and Box and Muller turn its bits into normal numbers."""

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        size = math.prod(shape)
        pairs = (size + 1) // 2
        bits = np.frombuffer(
            hashlib.shake_256(key + name.encode()).digest(16 * pairs), "<u8"
        ) >> np.uint64(11)
        u, v = ((bits + 0.5) * 2.0**-53).reshape(2, pairs)  # in (0, 1)
        radius, angle = np.sqrt(-2.0 * np.log(u)), 2.0 * np.pi * v
        found: np.ndarray = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[
            :size
        ].reshape(shape)
        return found

    return draw


def protect(
    update: Update,
    payload: Payload,
    uploads: Mapping[str, Extra],
    privacy: PrivacyConfig,
    draw: Draw,
    num_samples: int,
) -> Update:
    """The update as it may leave."""
    weights = bounded_change(payload.weights, update.weights, privacy.clip, privacy.noise, draw)
    extras = bounded_extras(update.extras, uploads, privacy.noise, draw)
    return Update(update.site, num_samples, weights, extras)


def bounded_change(
    received: Arrays, sent: Arrays, clip: float, noise: float, draw: Draw
) -> dict[str, np.ndarray]:
    floats = [name for name, value in sorted(received.items()) if value.dtype.kind == "f"]
    change = {name: sent[name].astype(np.float64) - received[name] for name in floats}
    norm = math.sqrt(math.fsum(float(np.vdot(c, c)) for c in change.values()))
    scale = min(1.0, clip / norm) if norm > 0 else 1.0
    if not math.isfinite(norm):  # diverged: says nothing but noise
        change, scale = {name: np.zeros(c.shape) for name, c in change.items()}, 1.0
    made = dict(received)
    for name, c in change.items():
        moved = scale * c + (noise * clip * draw(f"weights/{name}", c.shape) if noise else 0.0)
        value = (
            received[name] + moved
        )  # in this order: what is rounded here, however large a crafted weight, was noised before
        if name.endswith("running_var"):
            value = np.maximum(value, LEAST_VARIANCE)
        made[name] = np.asarray(value, dtype=received[name].dtype)
    return made


def bounded_extras(
    extras: Arrays, uploads: Mapping[str, Extra], noise: float, draw: Draw
) -> dict[str, np.ndarray]:
    """All that have bounds, whether the site has them or not: which ones it has is not told."""
    known = {
        name: extra.bounds for name, extra in sorted(uploads.items()) if extra.bounds is not None
    }
    radius = math.sqrt(sum(len(bounds) for bounds in known.values()))
    made: dict[str, np.ndarray] = {}
    for name, bounds in known.items():
        low, high = (np.array(side) for side in zip(*bounds, strict=True))
        middle, half = (low + high) / 2, (high - low) / 2
        value = np.asarray(extras.get(name, middle), dtype=np.float64)
        scaled = np.clip(np.nan_to_num((value - middle) / half, nan=0.0), -1.0, 1.0)
        if noise:
            scaled = np.clip(
                scaled + noise * radius * draw(f"extras/{name}", value.shape), -1.0, 1.0
            )
        finish = uploads[name].finish
        made[name] = finish(middle + half * scaled) if finish else middle + half * scaled
    return made
