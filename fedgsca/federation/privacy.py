"""Differential privacy of a site: clipping and noise on what it sends, budget, one answer a round.

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
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fedgsca.config import Config
from fedgsca.errors import ConfigError, MissingExtraError, RunFolderError, UpdateError
from fedgsca.methods.base import load_methods
from fedgsca.support.files import file_lock, remove_quietly, write_atomic
from fedgsca.wire import Arrays, Extra, Payload, Update, encode_payload, pack, read_count, unpack

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


# ---- the budget of a run; the only place that imports opacus (extra [privacy]) ----


# Renyi orders: fine where large budgets have their optimum, far out for small ones
ORDERS = (
    [1 + x / 100 for x in range(1, 100)]
    + [1 + x / 10 for x in range(10, 110)]
    + [float(x) for x in range(12, 1025, 4)]
)


def epsilon(noise: float, uploads: Mapping[str, Extra], rounds: int, delta: float) -> float:
    """Upper bound for a site that took part in so many rounds.

    Every round counts in full. With partial participation a site takes part in fewer rounds, but
    the coordinator knows in which: no credit is taken for the draw.
    """
    try:
        from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise MissingExtraError(
            "extra.privacy-missing",
            "the privacy accountant is not installed",
            fix="pip install 'fedgsca[privacy]'",
        ) from error
    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier(noise, uploads), 1.0, rounds)]
    # it recommends other orders if the best is the first or the last of ours; the bound holds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta=delta, alphas=ORDERS))


def noise_for(target: float, uploads: Mapping[str, Extra], rounds: int, delta: float) -> float:
    """The smallest noise, rounded up to three digits, that stays within this epsilon."""
    low, high = 1e-3, 1e6
    if epsilon(high, uploads, rounds, delta) > target:
        raise ConfigError(
            "privacy.unreachable-epsilon",
            f"no noise reaches epsilon {target:g} at delta {delta:g}",
            fix="choose a larger epsilon or delta",
        )
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        if epsilon(middle, uploads, rounds, delta) > target:
            low = middle
        else:
            high = middle
    step = 10.0 ** (math.floor(math.log10(high)) - 2)
    return float(f"{math.ceil(high / step) * step:.3g}")


def spent_epsilon(config: Config, rounds: int) -> float | None:
    """Epsilon after so many rounds, at the delta of the configuration; None without a promise.

    Nothing is promised without `privacy`, and by clipping without noise.
    """
    privacy = config.privacy
    if privacy is None or privacy.noise == 0:
        return None
    uploads = load_methods()[config.method].uploads
    return epsilon(privacy.noise, uploads, rounds, privacy.delta)


# ---- one answer to each round ----
# The budget counts one answer per round. Two would cost twice as much; with the same noise, their
# difference would have none. So an update is stored on the site's disk before it leaves: a repeated
# request gets it again, and a request with another model for an answered round, or for an earlier
# round, is refused. A site's private memory (site_store.py) is not led along two paths, either.


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
    write_atomic(path, content, mode=0o600)


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
