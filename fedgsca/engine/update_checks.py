"""What can be checked in an update on its own, without the updates of other sites."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from fedgsca.aggregate import is_buffer
from fedgsca.config import Config
from fedgsca.engine.guard_memory import DIGEST_SIZE, MODEL
from fedgsca.errors import UpdateError
from fedgsca.wire import Arrays, Extra, Payload, Update

MAX_VALUE = 1e8  # no weight of a usable network is larger
MAX_COUNT = 10**9  # steps of a BatchNorm counter in one round
_DEVIATIONS = 8.0  # of the norm of the noise, beyond which nobody draws it
_ROUNDING = 1e-4
FIX = 'look at the data and the software of the site; the page "Lying sites" explains the check'


def averaged_extras(uploads: Mapping[str, Extra], extras: Arrays) -> list[str]:
    """The names of extras of which the server takes the mean."""
    return [name for name in sorted(extras) if name in uploads and uploads[name].vote == "mean"]


def received_arrays(payload: Payload, part: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """What the coordinator sent under the names of `arrays`; zeros for extras it did not send."""
    source = payload.weights if part == MODEL else payload.extras
    reference = {}
    for name, value in arrays.items():
        reference[name] = np.asarray(source[name]) if name in source else np.zeros_like(value)
    return reference


def change_norm(weights: Arrays, reference: Arrays) -> float:
    """L2 norm of a change over all floating-point arrays; infinite if it is too large to square."""
    squares = []
    for name, value in reference.items():
        if value.dtype.kind == "f":
            change = np.subtract(weights[name], value, dtype=np.float64).ravel()
            squares.append(float(np.vdot(change, change)))
    return math.sqrt(math.fsum(squares))


def trained_arrays(arrays: Arrays) -> dict[str, np.ndarray]:
    """The parameters without buffers and counters."""
    names = [name for name, value in arrays.items() if value.dtype.kind == "f"]
    return {name: arrays[name] for name in names if not is_buffer(name)}


def resemblance_of(arrays: Arrays, reference: Arrays) -> float | None:
    """The cosine of the trained parameters that were sent with those that were received."""
    product = square = reference_square = 0.0
    for name, value in trained_arrays(reference).items():
        a = np.asarray(arrays[name], dtype=np.float64).ravel()
        b = np.asarray(value, dtype=np.float64).ravel()
        product += float(a @ b)
        square += float(a @ a)
        reference_square += float(b @ b)
    if square == 0.0 or reference_square == 0.0:
        return None
    return product / math.sqrt(square) / math.sqrt(reference_square)


def _norm_of(arrays: Arrays) -> float:
    return math.sqrt(
        math.fsum(
            float(np.square(value, dtype=np.float64).sum())
            for value in arrays.values()
            if value.dtype.kind == "f"
        )
    )


def absurd_array(weights: Arrays) -> str | None:
    """The first array with numbers that are not finite or beyond MAX_VALUE, if there is one."""
    for name, value in weights.items():
        if value.dtype.kind == "f" and value.size and not np.abs(value).max() <= MAX_VALUE:
            return name
    return None


def check_magnitude(update: Update, reference: Arrays) -> None:
    """No number is beyond what a usable network has."""
    name = absurd_array(update.weights)
    if name is not None:
        largest = float(np.abs(update.weights[name]).max())
        raise UpdateError(
            "update.absurd-number",
            f"{name} has numbers up to {largest:.3g}, beyond {MAX_VALUE:g}",
            fix=FIX,
        )
    for name, value in update.weights.items():
        if name.endswith("running_var") and (value < 0).any():
            raise UpdateError(
                "update.absurd-number",
                f"{name} is a variance and has negative numbers",
                fix=FIX,
            )
        if value.dtype.kind in "iu" and value.size:
            steps = value.astype(np.float64) - reference[name].astype(np.float64)
            if np.abs(steps).max() > MAX_COUNT:
                raise UpdateError(
                    "update.absurd-number",
                    f"the counter {name} moved by {np.abs(steps).max():.3g}",
                    fix=FIX,
                )


def check_counts(update: Update, uploads: Mapping[str, Extra]) -> None:
    """Sums over images must fit the number of images."""
    for name, value in update.extras.items():
        limits = uploads[name].per_image if name in uploads else None
        if limits is None:
            continue
        sums = np.nansum(np.atleast_1d(value), axis=-1)
        low, high = (limit * update.num_samples for limit in limits)
        tolerance = _ROUNDING * max(abs(low), abs(high), 1.0)
        if sums.size and (sums.min() < low - tolerance or sums.max() > high + tolerance):
            raise UpdateError(
                "update.false-count",
                f"{name} adds up to {sums.min():.4g} to {sums.max():.4g}, which is not possible "
                f"with {update.num_samples:,} images",
                fix=FIX,
            )


def check_clip(config: Config, norm: float, reference: Arrays) -> None:
    """Under `privacy`, every site clips: a larger change was not made by this software."""
    privacy = config.privacy
    if privacy is None:
        return
    count = sum(value.size for value in reference.values() if value.dtype.kind == "f")
    noise_norm = privacy.noise * (math.sqrt(count) + _DEVIATIONS) if privacy.noise else 0.0
    rounding = _ROUNDING * (1.0 + _norm_of(reference))
    limit = privacy.clip * (1.0 + noise_norm) * (1.0 + _ROUNDING) + rounding
    if norm > limit:
        raise UpdateError(
            "update.not-clipped",
            f"its change has the norm {norm:.4g}, but with privacy.clip = {privacy.clip:g} "
            f"at most {limit:.4g} is possible: the site does not clip",
            fix=FIX,
        )


def digest_of(weights: Arrays) -> bytes:
    """Of the bytes of a model."""
    sha = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for name in sorted(weights):
        if weights[name].dtype.kind == "f":
            sha.update(np.ascontiguousarray(weights[name]).data)
    return sha.digest()
