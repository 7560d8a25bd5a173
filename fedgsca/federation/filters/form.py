"""Form: whether something is an update of this run at all. Always on.

    names, types, shapes     as declared, and finite (wire.check_update)
    numbers                  weights within MAX_VALUE, variances not negative, counters plausible
    counts                   sums over images that the number of images allows (Extra.per_image)
    clip                     under `privacy`: a change no larger than clip plus what noise can add
    repetition               bytes of an earlier round, or of another site in this round

None of them compares values of different sites, so no honest site can fail one by being different.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping

import numpy as np

from fedgsca.config import PrivacyConfig
from fedgsca.errors import UpdateError
from fedgsca.federation.filters.base import ASK_THE_SITE, RoundContext, UpdateContext, UpdateFilter
from fedgsca.methods.aggregate import is_buffer
from fedgsca.wire import Arrays, Extra, Update, check_update

MAX_VALUE = 1e8  # no weight of a usable network is larger
MAX_STEPS = 10**9  # of a BatchNorm counter in one round
_DEVIATIONS = 8.0  # of the norm of the noise, beyond which nobody draws it
_ROUNDING = 1e-4
_DIGEST_SIZE = 16  # bytes
_DIGEST_ROUNDS = 50  # whose updates are recognised when they are sent again
# Honest sites whose samples have no loss left send the same bytes: a model that only weight decay
# scaled (cosine of change and model), or that only rounding changed (share of the model's norm).
_ONLY_SCALED = 0.9
_ONLY_ROUNDED = 1e-5


class FormFilter(UpdateFilter):
    """Declared names, types and shapes; numbers that a network of this run can have."""

    name = "form"

    def __init__(self, uploads: Mapping[str, Extra], dims: Mapping[str, int]) -> None:
        self.uploads = uploads
        self.dims = dims

    def examine(self, update: Update, context: UpdateContext) -> Update:
        """Raises UpdateError for anything else."""
        reference = context.payload.weights
        check_update(update, reference, self.uploads, self.dims)
        problem = number_problem(update.weights) or _counter_problem(update.weights, reference)
        if problem is not None:
            raise UpdateError("update.absurd-number", problem, fix=ASK_THE_SITE)
        for name, value in update.extras.items():
            self._check_sums(name, value, update.num_samples)
        return update

    def _check_sums(self, name: str, value: np.ndarray, num_samples: int) -> None:
        limits = self.uploads[name].per_image
        if limits is None:
            return
        sums = np.nansum(np.atleast_1d(value), axis=-1)
        low, high = (limit * num_samples for limit in limits)
        tolerance = _ROUNDING * max(abs(low), abs(high), 1.0)
        if sums.size and (sums.min() < low - tolerance or sums.max() > high + tolerance):
            raise UpdateError(
                "update.false-count",
                f"{name} adds up to {sums.min():.4g} to {sums.max():.4g}, which is not possible "
                f"with {num_samples:,} images",
                fix=ASK_THE_SITE,
            )


def number_problem(weights: Arrays) -> str | None:
    """Numbers that no usable network has, in words; None if there are none."""
    for name, value in weights.items():
        if value.dtype.kind == "f" and value.size and not np.abs(value).max() <= MAX_VALUE:
            return f"{name} has numbers that are not finite or beyond {MAX_VALUE:g}"
        if name.endswith("running_var") and (value < 0).any():
            return f"{name} is a variance and has negative numbers"
    return None


def _counter_problem(weights: Arrays, reference: Arrays) -> str | None:
    for name, value in weights.items():
        if value.dtype.kind in "iu" and value.size:
            steps = np.abs(value.astype(np.float64) - reference[name].astype(np.float64)).max()
            if steps > MAX_STEPS:
                return f"the counter {name} moved by {steps:.3g}"
    return None


class ClipFilter(UpdateFilter):
    """Under `privacy`, every site clips: a larger change was not made by this software."""

    name = "clip"

    def __init__(self, privacy: PrivacyConfig) -> None:
        self.privacy = privacy

    def examine(self, update: Update, context: UpdateContext) -> Update:
        """Raises UpdateError if the change is larger than clipping and noise allow."""
        reference = context.payload.weights
        norm, limit = change_norm(update.weights, reference), self._limit(reference)
        if norm > limit:
            raise UpdateError(
                "update.not-clipped",
                f"its change has the norm {norm:.4g}, but with privacy.clip = "
                f"{self.privacy.clip:g} at most {limit:.4g} is possible: the site does not clip",
                fix=ASK_THE_SITE,
            )
        return update

    def _limit(self, reference: Arrays) -> float:
        count = sum(value.size for value in reference.values() if value.dtype.kind == "f")
        noise = self.privacy.noise
        noise_norm = noise * (math.sqrt(count) + _DEVIATIONS) if noise else 0.0
        zeros = {name: np.zeros_like(value) for name, value in reference.items()}
        rounding = _ROUNDING * (1.0 + change_norm(reference, zeros))
        return self.privacy.clip * (1.0 + noise_norm) * (1.0 + _ROUNDING) + rounding


def change_norm(weights: Arrays, reference: Arrays) -> float:
    """L2 norm of a change over all floating-point arrays."""
    squares = []
    for name, value in reference.items():
        if value.dtype.kind == "f":
            change = np.subtract(weights[name], value, dtype=np.float64).ravel()
            squares.append(float(np.vdot(change, change)))
    return math.sqrt(math.fsum(squares))


class RepetitionFilter(UpdateFilter):
    """A round starts from another model and other random draws: no update occurs twice.

    Of two equal updates of a round nobody knows the original: the first one counts.
    """

    name = "repetition"

    def __init__(self) -> None:
        self.digests: dict[int, list[bytes]] = {}  # round -> of the updates that were used
        self._sites: dict[bytes, str] = {}  # of this round

    def start(self, context: RoundContext) -> None:
        """Forget the updates of an unfinished round."""
        self._sites = {}

    def examine(self, update: Update, context: UpdateContext) -> Update:
        """Raises UpdateError if the same weights were sent before."""
        if not _is_trained(update.weights, context.payload.weights):
            return update
        digest = _digest_of(update.weights)
        problem = None
        if digest in self._sites:
            problem = f"the update of {self._sites[digest]} in this round"
        for round_index, digests in self.digests.items():
            if digest in digests:
                problem = f"an update of round {round_index + 1}"
        if problem is not None:
            raise UpdateError("update.repeated", f"it is the same as {problem}", fix=ASK_THE_SITE)
        self._sites[digest] = update.site
        return update

    def remember(self, sites: Collection[str], context: RoundContext) -> None:
        """Add the updates that were used, and forget those of very old rounds."""
        digests = [digest for digest, site in self._sites.items() if site in sites]
        if digests:
            self.digests[context.payload.round] = digests
        for old_round in sorted(self.digests)[:-_DIGEST_ROUNDS]:
            del self.digests[old_round]

    def to_arrays(self) -> Arrays:
        """(n, _DIGEST_SIZE) bytes for each round."""
        arrays = {}
        for round_index, digests in self.digests.items():
            content = np.frombuffer(b"".join(digests), dtype=np.uint8)
            arrays[str(round_index)] = content.reshape(len(digests), _DIGEST_SIZE).copy()
        return arrays

    def from_arrays(self, arrays: Arrays) -> None:
        """The inverse of `to_arrays`."""
        for round_index in sorted(map(int, arrays)):
            rows = arrays[str(round_index)]
            self.digests[round_index] = [row.tobytes() for row in rows]


def trained_arrays(arrays: Arrays) -> dict[str, np.ndarray]:
    """The parameters without buffers and counters."""
    names = [name for name, value in arrays.items() if value.dtype.kind == "f"]
    return {name: arrays[name] for name in names if not is_buffer(name)}


def _is_trained(weights: Arrays, reference: Arrays) -> bool:
    """Whether the weights are more than the received ones, scaled or rounded."""
    product = change_square = model_square = 0.0
    for name, value in trained_arrays(reference).items():
        row = np.asarray(value, dtype=np.float64).ravel()
        difference = np.subtract(weights[name], value, dtype=np.float64).ravel()
        product += float(difference @ row)
        change_square += float(difference @ difference)
        model_square += float(row @ row)
    change, model = math.sqrt(change_square), math.sqrt(model_square)
    is_scaled = abs(product) > _ONLY_SCALED * change * model
    return change > _ONLY_ROUNDED * model and not is_scaled


def _digest_of(weights: Arrays) -> bytes:
    sha = hashlib.blake2b(digest_size=_DIGEST_SIZE)
    for name in sorted(weights):
        if weights[name].dtype.kind == "f":
            sha.update(np.ascontiguousarray(weights[name]).data)
    return sha.digest()
