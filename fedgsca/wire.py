"""The complete list of what travels between a hospital and the coordinator, and its check.

    coordinator -- Payload(round, weights, extras) -->  site
    coordinator <-- Update(site, num_samples, weights, extras) --  site

A method declares every extra with its shape. Shapes are written in symbols, none of which is the
number of a site's samples (C = classes, D = width of the feature vector, K = sites). What is not
declared, or is outside its declared range, is refused. The check sees shapes and ranges, not
meanings: that a number per class is a mean over at least SMALLEST_GROUP images is the method's
responsibility, and a contract test checks it.
Messages are encoded as safetensors: plain arrays with a JSON header, no code, no pickle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedgsca.errors import UpdateError
from fedgsca.support.text import one_line

Arrays = Mapping[str, np.ndarray]
# a site that claims more would outweigh all others, or be too much for a float
MAX_SAMPLES = 10**9
# A site sends nothing about a class with fewer images: the mean over one image is that image's own
# number.
SMALLEST_GROUP = 5
# the only metadata key of our safetensors: the library writes several in an order that changes
# from process to process
METADATA_KEY = "fedgsca"
# of extras of which the server takes the mean
_MEAN_TYPES = (np.dtype(np.float32), np.dtype(np.float64))
# problems of an update that are printed
_MAX_PROBLEMS = 3
_MAX_COUNT = 10**18 - 1
_MAX_COUNT_TEXT = 40  # characters of a wrong count in a message


@dataclass(frozen=True)
class Extra:
    """Declaration of one array that travels beside the weights."""

    # () for one number; symbols: C classes, D feature width, K sites
    shape: tuple[int | str, ...]
    # for the hospital that reads `fedgsca wire METHOD`
    description: str
    # sent only in some rounds
    optional: bool = False
    # smallest and largest plausible value: a diverged or malicious site must not move the others
    low: float = -1e9
    high: float = 1e9
    # NaN means "none"
    nan: bool = False
    # infinity has a meaning
    inf: bool = False
    # for people only, no step of the method reads it: not sent under `privacy`, nor by a hospital
    # whose settings do not agree to it
    diagnostic: bool = False
    # Under `privacy`: (low, high) to which each number of a vector is clamped before it is noised,
    # and the function that makes the noised numbers meaningful again (sorted, summing to one). An
    # extra with neither bounds nor diagnostic keeps its method from running under `privacy`.
    bounds: tuple[tuple[float, float], ...] | None = None
    # "mean": the server averages it over the sites, so an aggregation rule treats it like weights
    vote: Literal["", "mean"] = ""
    # smallest and largest sum along the last axis, for each image of the site
    per_image: tuple[float, float] | None = None
    # belongs to a part that is off under `privacy`
    off_under_privacy: bool = False
    finish: Callable[[np.ndarray], np.ndarray] | None = None

    def resolve(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in numbers, given those of the symbols."""
        return tuple(part if isinstance(part, int) else dims[part] for part in self.shape)

    def problem(self, value: np.ndarray) -> str | None:
        """What is wrong with the values, for a message; None if nothing is."""
        nan = np.isnan(value)
        inf = np.isinf(value)
        if (nan.any() and not self.nan) or (inf.any() and not self.inf):
            return "values that are not finite"
        finite = value[~nan & ~inf]
        if finite.size and (finite.min() < self.low or finite.max() > self.high):
            return (
                f"values from {finite.min():g} to {finite.max():g}, "
                f"outside the plausible range {self.low:g} to {self.high:g}"
            )
        return None


def unprotected(uploads: Mapping[str, Extra]) -> list[str]:
    """Extras that the method needs and that privacy cannot protect.

    A method with any cannot run under `privacy`.
    """
    names = []
    for name, extra in uploads.items():
        if extra.bounds is None and not extra.diagnostic:
            names.append(name)
    return names


@dataclass(frozen=True)
class Payload:
    """Everything the coordinator sends to a site at the start of a round."""

    round: int
    weights: Arrays
    extras: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """Everything a site sends back in one round. Nothing else leaves it."""

    site: str
    num_samples: int
    weights: Arrays
    extras: Arrays = field(default_factory=dict)


def num_bytes(arrays: Arrays) -> int:
    """Size of the arrays, without names and headers."""
    return sum(int(np.asarray(a).nbytes) for a in arrays.values())


# ---- checks ----


def drop_diagnostics(extras: Arrays, declarations: Mapping[str, Extra]) -> Arrays:
    """The extras without those that are for people only."""
    names = {name for name, extra in declarations.items() if extra.diagnostic}
    return {name: array for name, array in extras.items() if name not in names}


def check_extras(
    sender: str, extras: Arrays, declarations: Mapping[str, Extra], dims: Mapping[str, int]
) -> None:
    """Refuse an extra that is undeclared, missing, or not of the declared shape and range.

    This is how the declaration is enforced. `dims` are the numbers behind the symbols C, D and K.
    """
    problems = [f"{name} is not declared" for name in sorted(set(extras) - set(declarations))]
    for name, extra in declarations.items():
        if name in extras:
            problem = _extra_problem(np.asarray(extras[name]), extra, dims)
            if problem is not None:
                problems.append(f"{name} has {problem}")
        elif not (extra.optional or extra.diagnostic):
            problems.append(f"{name} is missing")
    if problems:
        raise UpdateError(
            "update.invalid-extras",
            f"{sender}: {'; '.join(problems)}",
            fix="if the method is new, declare the extra in its `uploads` or `downloads`; "
            "otherwise check whether training at the sender has diverged",
        )


def _extra_problem(value: np.ndarray, extra: Extra, dims: Mapping[str, int]) -> str | None:
    if value.dtype.kind not in "fiub":
        return f"type {value.dtype}, which is not a number"
    if extra.vote == "mean" and value.dtype not in _MEAN_TYPES:
        # the mean has the type of the first site: an integer or half a float would spoil it
        return f"type {value.dtype}, but its mean needs float32 or float64"
    shape = extra.resolve(dims)
    if value.shape != shape:
        return f"shape {value.shape}, but {extra.shape} = {shape} is declared"
    return extra.problem(value)


def read_count(value: object, name: str) -> int:
    """The count `name` in the header of a message: an integer, or its ASCII digits.

    Raises ValueError for anything else. `int` would also take 2.7, True, "1_0" and digits of other
    scripts, which no version of this software writes.
    """
    if type(value) is int and 0 <= value <= _MAX_COUNT:
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    text = "an integer out of range"  # repr refuses one of thousands of digits
    if type(value) is not int or abs(value) <= _MAX_COUNT:
        text = one_line(repr(value), _MAX_COUNT_TEXT)
    raise ValueError(f"{name} is {text}, which is not a count")


def check_update(
    update: Update, reference: Arrays, declarations: Mapping[str, Extra], dims: Mapping[str, int]
) -> None:
    """Refuse an update whose names, shapes, types or values differ from what was sent out.

    `reference` are the weights of the payload. Extras are checked, too (`check_extras`).
    """
    problems = _name_problems(update.weights, reference)
    for name in sorted(set(reference) & set(update.weights)):
        problem = _weight_problem(update.weights[name], reference[name])
        if problem is not None:
            problems.append(f"{name} has {problem}")
    # a bool is an int, too
    if type(update.num_samples) is not int or not 0 <= update.num_samples <= MAX_SAMPLES:
        problems.append(f"num_samples is {update.num_samples!r}")
    if problems:
        summary = "; ".join(problems[:_MAX_PROBLEMS])
        if len(problems) > _MAX_PROBLEMS:
            summary += f"; and {len(problems) - _MAX_PROBLEMS} more"
        raise UpdateError(
            "update.invalid-weights",
            f"the update of {update.site} was refused: {summary}",
            fix="check that the site runs the same version and that its training has not diverged",
        )
    check_extras(f"update of {update.site}", update.extras, declarations, dims)


def _name_problems(weights: Arrays, reference: Arrays) -> list[str]:
    problems = []
    missing = sorted(set(reference) - set(weights))
    if missing:
        problems.append(f"{len(missing)} weights are missing, first: {missing[0]}")
    extra = sorted(set(weights) - set(reference))
    if extra:
        problems.append(f"{len(extra)} weights are unknown, first: {extra[0]}")
    return problems


def _weight_problem(value: np.ndarray, reference: np.ndarray) -> str | None:
    if value.shape != reference.shape:
        return f"shape {value.shape} instead of {reference.shape}"
    if value.dtype != reference.dtype:
        return f"type {value.dtype} instead of {reference.dtype}"
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        return f"{int((~np.isfinite(value)).sum())} values that are not finite"
    return None


# ---- encoding ----


def save_tensors(arrays: Arrays, metadata: Mapping[str, object]) -> bytes:
    """safetensors with the metadata as JSON; the same arguments give the same bytes."""
    from safetensors.numpy import save

    # not ascontiguousarray: it turns a single number, shape (), into shape (1,)
    tensors = {name: np.asarray(a, order="C") for name, a in arrays.items()}
    return bytes(save(tensors, metadata={METADATA_KEY: json.dumps(metadata, sort_keys=True)}))


def read_metadata(data: bytes) -> dict[str, object]:
    """The metadata of `save_tensors`."""
    size = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    return dict(json.loads(metadata.get(METADATA_KEY, "{}")))


def pack(header: Mapping[str, object], **groups: Arrays) -> bytes:
    """Named groups of arrays, and a small header, as one message."""
    tensors = {}
    for group, arrays in groups.items():
        for name, a in arrays.items():
            tensors[f"{group}/{name}"] = a
    return save_tensors(tensors, header)


def unpack(
    data: bytes, groups: Sequence[str]
) -> tuple[dict[str, object], list[dict[str, np.ndarray]]]:
    """The header and the groups of `pack`, in the given order."""
    from safetensors.numpy import load

    arrays: dict[str, dict[str, np.ndarray]] = {group: {} for group in groups}
    for key, value in load(data).items():
        group, _, name = key.partition("/")
        arrays[group][name] = value
    return read_metadata(data), [arrays[group] for group in groups]


def encode_payload(payload: Payload) -> bytes:
    """A payload as bytes; the same payload gives the same bytes."""
    return pack({"round": payload.round}, weights=payload.weights, extras=payload.extras)


def decode_payload(data: bytes) -> Payload:
    """The inverse of `encode_payload`."""
    with _readable_message():
        header, (weights, extras) = unpack(data, ("weights", "extras"))
        return Payload(round=read_count(header["round"], "round"), weights=weights, extras=extras)


def encode_update(update: Update) -> bytes:
    """An update as bytes; the same update gives the same bytes."""
    header = {"site": update.site, "num_samples": update.num_samples}
    return pack(header, weights=update.weights, extras=update.extras)


def decode_update(data: bytes) -> Update:
    """The inverse of `encode_update`."""
    with _readable_message():
        header, (weights, extras) = unpack(data, ("weights", "extras"))
        return Update(
            site=str(header["site"]),
            num_samples=read_count(header["num_samples"], "num_samples"),
            weights=weights,
            extras=extras,
        )


@contextmanager
def _readable_message() -> Iterator[None]:
    """Turn the many types of errors that damaged bytes cause into one."""
    try:
        yield
    except Exception as error:
        raise UpdateError(
            "update.unreadable",
            f"a message cannot be decoded ({type(error).__name__})",
            fix="check that both sides run the same version, then send it again",
        ) from error
