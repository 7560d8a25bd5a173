"""Optional clipping and Gaussian noise on what a site sends. Pure functions.

The engine calls `protect` where an update leaves a site. The unit of protection is a site as a
whole: replace all of its images and labels by any others, as many of them, and what it sends in a
round moves by at most a known distance. Two vectors are bounded:

    change   received -> sent, over all floating-point arrays, running statistics of BatchNorm
             included; L2 norm <= clip
    extras   numbers with declared `bounds`, each clamped and scaled to [-1, 1];
             L2 norm <= sqrt(how many they are)

Two vectors of norm <= r are at most 2 r apart. Noise has std = noise * r in each, so a round is two
Gaussian mechanisms (one, if the method has no such extras) with multiplier noise / 2. Nothing else
of an update may depend on the data: integer counters go back as they were received, diagnostics are
not sent, a number that the site does not have is replaced by the middle of its bounds, and a site
that fails in the method sends the same with noise as if nothing had changed. What is done to noised
numbers afterwards costs nothing.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fedgsca.wire import Arrays, Extra, Payload, Update

if TYPE_CHECKING:
    from fedgsca.config import PrivacyConfig

# name, shape -> standard normal numbers
NormalSource: TypeAlias = Callable[[str, tuple[int, ...]], np.ndarray]
MIN_VARIANCE = 1e-3  # a running variance must stay positive whatever the noise did to it


def treatment(extra: Extra) -> str:
    """What `privacy` does to an extra, in words."""
    if extra.bounds is not None:
        return "clamped, noised"
    if extra.diagnostic or extra.off_under_privacy:
        return "not sent"
    return "cannot be protected"


def noise_multiplier(noise: float, uploads: Mapping[str, Extra]) -> float:
    """Noise over sensitivity of a round as one Gaussian mechanism; 0 without noise."""
    releases = 1 + any(extra.bounds is not None for extra in uploads.values())
    return noise / (2.0 * math.sqrt(releases))


def secret_normals() -> NormalSource:
    """Standard normal numbers that nobody can compute again, however many are published."""
    return keyed_normals(secrets.token_bytes(32))


def keyed_normals(key: bytes) -> NormalSource:
    """Standard normal numbers from a secret key.

    numpy's generators are not made for secrets. SHAKE-256 is, and the Box-Muller transform turns
    its bits into normal numbers.
    """

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        size = math.prod(shape)
        pairs = (size + 1) // 2
        stream = hashlib.shake_256(key + name.encode()).digest(16 * pairs)
        bits = np.frombuffer(stream, "<u8") >> np.uint64(11)
        u, v = ((bits + 0.5) * 2.0**-53).reshape(2, pairs)  # in (0, 1)
        radius = np.sqrt(-2.0 * np.log(u))
        angle = 2.0 * np.pi * v
        numbers = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return numbers[:size].reshape(shape)

    return draw


def protect(
    update: Update,
    payload: Payload,
    uploads: Mapping[str, Extra],
    privacy: PrivacyConfig,
    normals: NormalSource,
    num_samples: int,
) -> Update:
    """The update as it may leave the site."""
    weights = clip_and_noise_change(
        payload.weights, update.weights, privacy.clip, privacy.noise, normals
    )
    extras = clamp_and_noise_extras(update.extras, uploads, privacy.noise, normals)
    return Update(update.site, num_samples, weights, extras)


def clip_and_noise_change(
    received_weights: Arrays,
    new_weights: Arrays,
    clip: float,
    noise: float,
    normals: NormalSource,
) -> dict[str, np.ndarray]:
    """The received weights plus the change, clipped to the norm `clip` and noised.

    Integer arrays come back as they were received. A change that is not finite counts as zero.
    """
    changes: dict[str, np.ndarray] = {}
    for name, array in sorted(received_weights.items()):
        if array.dtype.kind == "f":
            changes[name] = new_weights[name].astype(np.float64) - array
    norm = math.sqrt(math.fsum(float(np.vdot(c, c)) for c in changes.values()))
    scale = min(1.0, clip / norm) if norm > 0 else 1.0
    if not math.isfinite(norm):  # the training has diverged: send nothing but noise
        changes = {name: np.zeros(c.shape) for name, c in changes.items()}
        scale = 1.0
    weights = dict(received_weights)
    for name, change in changes.items():
        draws = normals(f"weights/{name}", change.shape) if noise else 0.0
        step = scale * change + noise * clip * draws
        # in this order: what is rounded here, however large a crafted weight, was noised before
        value = received_weights[name] + step
        if name.endswith("running_var"):
            value = np.maximum(value, MIN_VARIANCE)
        weights[name] = np.asarray(value, dtype=received_weights[name].dtype)
    return weights


def clamp_and_noise_extras(
    extras: Arrays, uploads: Mapping[str, Extra], noise: float, normals: NormalSource
) -> dict[str, np.ndarray]:
    """All extras with bounds, whether the site has them or not: which ones it has is not sent."""
    all_bounds = {}
    for name, extra in sorted(uploads.items()):
        if extra.bounds is not None:
            all_bounds[name] = extra.bounds
    radius = math.sqrt(sum(len(bounds) for bounds in all_bounds.values()))
    protected_extras: dict[str, np.ndarray] = {}
    for name, bounds in all_bounds.items():
        low, high = (np.array(side) for side in zip(*bounds, strict=True))
        middle = (low + high) / 2
        half = (high - low) / 2
        value = np.asarray(extras.get(name, middle), dtype=np.float64)
        unit = np.clip(np.nan_to_num((value - middle) / half, nan=0.0), -1.0, 1.0)
        if noise:
            draws = normals(f"extras/{name}", value.shape)
            unit = np.clip(unit + noise * radius * draws, -1.0, 1.0)
        result = middle + half * unit
        finish = uploads[name].finish
        protected_extras[name] = result if finish is None else finish(result)
    return protected_extras
