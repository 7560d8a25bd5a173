"""The complete list of what crosses between a hospital and the coordinator, and the check that nothing else does.

    coordinator -- Payload(round, weights, extras) -->  site
    coordinator <-- Update(site, num_samples, weights, extras) --  site

A method declares every extra with its shape. Shapes are written in symbols, none of which is the number of a site's samples
(C = classes, D = width of the feature vector, K = sites), and what is not declared, or out of its declared range, is refused. The
check sees shapes and ranges, not meanings: that a number per class is a mean over at least SMALLEST_GROUP images is the method's duty,
and a contract test looks at it.
Messages are encoded as safetensors: plain arrays with a JSON header, no code, no pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedgsca.errors import UpdateError

Arrays = Mapping[str, np.ndarray]
MOST_SAMPLES = 10**9  # a site that claims more would be the whole mean, or too much for a float
SMALLEST_GROUP = 5  # a site says nothing about a class with fewer images: the mean over one image is that image's own number


@dataclass(frozen=True)
class Extra:
    """Declaration of one array that travels beside the weights."""

    shape: tuple[int | str, ...]  # () for one number; symbols: C classes, D feature width, K sites
    what: str  # in words, for the hospital that reads `fedgsca wire METHOD`
    optional: bool = False  # sent only in some rounds
    low: float = -1e9  # smallest and largest believable value: a diverged or malicious site must not move the others
    high: float = 1e9
    nan: bool = False  # NaN stands for "none"
    inf: bool = False  # infinity has a meaning
    diagnostic: bool = (
        False  # for people only, no step of the method reads it: not sent under `privacy`
    )
    # under `privacy`: (low, high) to which each number of a vector is clamped before it is noised, and what makes the noised ones
    # meaningful again (sorted, adding up to one); neither bounds nor diagnostic: the method cannot run under `privacy`
    bounds: tuple[tuple[float, float], ...] | None = None
    finish: Callable[[np.ndarray], np.ndarray] | None = None

    def resolve(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(part if isinstance(part, int) else dims[part] for part in self.shape)

    def problem(self, value: np.ndarray) -> str | None:
        """What is wrong with the values, in words; None if nothing is."""
        nan, inf = np.isnan(value), np.isinf(value)
        if (nan.any() and not self.nan) or (inf.any() and not self.inf):
            return "values that are not finite"
        known = value[~nan & ~inf]
        if known.size and (known.min() < self.low or known.max() > self.high):
            return f"values from {known.min():g} to {known.max():g}, believable are {self.low:g} to {self.high:g}"
        return None


def unprotected(uploads: Mapping[str, Extra]) -> list[str]:
    """Extras that the method needs and for which there is no rule; a method with any cannot run under privacy."""
    return [
        name for name, extra in uploads.items() if extra.bounds is None and not extra.diagnostic
    ]


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
    return sum(int(np.asarray(a).nbytes) for a in arrays.values())


def check_extras(
    who: str, extras: Arrays, declared: Mapping[str, Extra], dims: Mapping[str, int]
) -> None:
    """Refuse an extra that is undeclared, missing, or not of the declared shape and range: this is what 'enforced' means."""
    problems = [f"{name} is not declared" for name in sorted(set(extras) - set(declared))]
    for name, extra in declared.items():
        if name not in extras:
            if not extra.optional:
                problems.append(f"{name} is missing")
            continue
        value = np.asarray(extras[name])
        if value.dtype.kind not in "fiub":
            problems.append(f"{name} has type {value.dtype}, not a number")
        elif value.shape != extra.resolve(dims):
            problems.append(
                f"{name} has shape {value.shape}, declared {extra.shape} = {extra.resolve(dims)}"
            )
        elif (wrong := extra.problem(value)) is not None:
            problems.append(f"{name} has {wrong}")
    if problems:
        raise UpdateError(
            "todo.wire-1",
            f"{who}: " + "; ".join(problems),
            fix="if the method is new, declare the extra in its `uploads`/`downloads`; otherwise the sender's training has diverged",
        )


def check_update(
    update: Update, reference: Arrays, declared: Mapping[str, Extra], dims: Mapping[str, int]
) -> None:
    """Names, shapes, types and finite values of an update, against what was sent out."""
    problems: list[str] = []
    missing, unknown = (
        sorted(set(reference) - set(update.weights)),
        sorted(set(update.weights) - set(reference)),
    )
    if missing:
        problems.append(f"{len(missing)} weights are missing, first: {missing[0]}")
    if unknown:
        problems.append(f"{len(unknown)} weights are unknown, first: {unknown[0]}")
    for name in sorted(set(reference) & set(update.weights)):
        got, want = update.weights[name], reference[name]
        if got.shape != want.shape:
            problems.append(f"{name} has shape {got.shape} instead of {want.shape}")
        elif got.dtype != want.dtype:
            problems.append(f"{name} has type {got.dtype} instead of {want.dtype}")
        elif got.dtype.kind == "f" and not np.isfinite(got).all():
            problems.append(
                f"{name} contains {int((~np.isfinite(got)).sum())} values that are not finite"
            )
    if not isinstance(update.num_samples, int) or not 0 <= update.num_samples <= MOST_SAMPLES:
        problems.append(f"num_samples is {update.num_samples!r}")
    if problems:
        shown = "; ".join(problems[:3]) + (
            f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        )
        raise UpdateError(
            "todo.wire-2",
            f"update of {update.site} refused: {shown}",
            fix="check that the site runs the same version and its training did not diverge",
        )
    check_extras(f"update of {update.site}", update.extras, declared, dims)


def save_tensors(arrays: Arrays, metadata: Mapping[str, str]) -> bytes:
    """safetensors with sorted metadata: the library keeps them in a hash map, whose order changes from process to process."""
    from safetensors.numpy import save

    # not ascontiguousarray: it turns a single number, shape (), into shape (1,)
    data = bytes(
        save(
            {name: np.asarray(a, order="C") for name, a in arrays.items()}, metadata=dict(metadata)
        )
    )
    if len(metadata) < 2:
        return data
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the arrays to eight bytes
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(data)[8 + size :]))


def pack(header: Mapping[str, object], **groups: Arrays) -> bytes:
    tensors = {
        f"{group}/{name}": a for group, arrays in groups.items() for name, a in arrays.items()
    }
    return save_tensors(tensors, {"fedgsca": json.dumps(header, sort_keys=True)})


def unpack(
    data: bytes, groups: Sequence[str]
) -> tuple[dict[str, object], list[dict[str, np.ndarray]]]:
    from safetensors.numpy import load

    size = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["fedgsca"])
    found: dict[str, dict[str, np.ndarray]] = {group: {} for group in groups}
    for key, value in load(data).items():
        group, _, name = key.partition("/")
        found[group][name] = value
    return header, [found[group] for group in groups]


def encode_payload(payload: Payload) -> bytes:
    return pack({"round": payload.round}, weights=payload.weights, extras=payload.extras)


def decode_payload(data: bytes) -> Payload:
    header, (weights, extras) = unpack(data, ("weights", "extras"))
    return Payload(round=int(str(header["round"])), weights=weights, extras=extras)


def encode_update(update: Update) -> bytes:
    header = {"site": update.site, "num_samples": update.num_samples}
    return pack(header, weights=update.weights, extras=update.extras)


def decode_update(data: bytes) -> Update:
    header, (weights, extras) = unpack(data, ("weights", "extras"))
    return Update(
        site=str(header["site"]),
        num_samples=int(str(header["num_samples"])),
        weights=weights,
        extras=extras,
    )
