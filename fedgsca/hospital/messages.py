"""What one message between the coordinator and a hospital is, on every part of its way.

    coordinator -- Terms, Payload(round, weights, extras) --> site
    coordinator <-- reply header, Update(weights, extras) --  site

A message is encoded once, where it is written, and decoded once, where it is used. An
`EncodedMessage` has one long array for all floating-point weights of a type, around which Flower's
own privacy mods can be put, and a safetensors block: the header, the declared extras, and integer
buffers, which those mods would spoil. Everything between (records of Flower, the socket of the site
worker) moves these bytes as they are. This file imports neither torch nor MONAI, and flwr only
where records are made: a process that lives for one message needs it.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

# read when flwr is imported
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from fedgsca.errors import (
    ClassListError,
    ConfigError,
    DataError,
    MissingExtraError,
    RunFolderError,
    UpdateError,
    WeightsError,
)
from fedgsca.federation.base import Reply
from fedgsca.support.json_record import Record
from fedgsca.support.text import printable
from fedgsca.support.version import __version__
from fedgsca.wire import Arrays, Update, pack, read_count, read_metadata, unpack

if TYPE_CHECKING:
    from flwr.app import RecordDict

    from fedgsca.federation.simulation import Experiment

MessageKind = Literal["hello", "train", "test", "model"]
MESSAGE_TYPES: Mapping[MessageKind, str] = {  # Flower's words
    "hello": "query",
    "train": "train",
    "test": "evaluate",
    "model": "query.model",
}
_MAX_SITE_NAME = 200  # characters of the name that a node tells
_NUMPY = "numpy.ndarray"  # Flower's word for arrays in numpy's own format
_PUBLIC_REASONS: Mapping[type[BaseException], str] = {
    DataError: "its images or labels cannot be used",
    ConfigError: "the configuration cannot be used there",
    WeightsError: "its weights file does not fit",
    RunFolderError: "it cannot write to its disk, or its memory is damaged",
    MissingExtraError: "a package is missing there",
    MemoryError: "it ran out of memory",
}


# ---- the terms ----


@dataclass(frozen=True)
class Terms(Record):
    """What coordinator and site must agree on; part of every message to a site."""

    version: str
    config: Mapping[str, Any]  # as in config.toml
    fingerprint: str  # of the configuration
    classes: str  # digest of the class list
    backbone: str  # digest of the weights behind frozen features, else empty


def terms_of(experiment: Experiment) -> Terms:
    """The terms of the coordinator."""
    from fedgsca.federation.samples import backbone_digest

    config = experiment.config
    return Terms(
        version=__version__,
        config=config.to_tree(),
        fingerprint=config.fingerprint(),
        classes=list_digest(experiment.table.classes),
        backbone=backbone_digest(config),
    )


def list_digest(names: Sequence[str]) -> str:
    """sha256 of a list of names in their order."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()


# ---- encoding ----


@dataclass(frozen=True)
class EncodedMessage:
    """A message as it travels."""

    kind: MessageKind
    block: bytes  # safetensors: header, extras, integer buffers
    weights: Mapping[str, bytes]  # type -> all weights of this type, one array in numpy's format

    @property
    def header(self) -> dict[str, Any]:
        """The header alone; no array is read."""
        return read_metadata(self.block)

    def to_bytes(self) -> bytes:
        """For the socket of the site worker: kind, names and lengths, then the pieces."""
        pieces = {"": self.block, **self.weights}
        sizes = [[name, len(piece)] for name, piece in pieces.items()]
        head = json.dumps({"kind": self.kind, "sizes": sizes}).encode()
        return b"".join([len(head).to_bytes(4, "big"), head, *pieces.values()])

    @staticmethod
    def from_bytes(data: bytes) -> EncodedMessage:
        """The inverse of `to_bytes`."""
        start = 4 + int.from_bytes(data[:4], "big")
        head = json.loads(data[4:start])
        pieces: dict[str, bytes] = {}
        for name, size in head["sizes"]:
            pieces[name] = data[start : start + size]
            start += size
        return EncodedMessage(head["kind"], pieces.pop(""), pieces)


def encode(
    kind: MessageKind, header: Mapping[str, Any], weights: Arrays, extras: Arrays
) -> EncodedMessage:
    """Encode a message. All floating-point weights of one type are one long array.

    Flower pays for every array with several calls at every hop.
    """
    groups: dict[str, list[np.ndarray]] = {}
    buffers: dict[str, np.ndarray] = {}
    layout = []
    for name, value in weights.items():
        array = np.asarray(value)
        if array.dtype.kind != "f":
            buffers[name] = array
            continue
        layout.append([name, array.dtype.name, list(array.shape)])
        groups.setdefault(array.dtype.name, []).append(array.ravel())
    flat = {dtype: _save_array(np.concatenate(group)) for dtype, group in groups.items()}
    block = pack({**header, "layout": layout}, extras=extras, buffers=buffers)
    return EncodedMessage(kind, block, flat)


def decode(
    message: EncodedMessage,
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Header, weights and extras.

    Raises ValueError for anything unexpected: the sender may run other software.
    """
    try:
        header, (extras, buffers) = unpack(message.block, ("extras", "buffers"))
        flat = {}
        for dtype, data in message.weights.items():
            flat[dtype] = np.load(io.BytesIO(data), allow_pickle=False)
        floats = _split_arrays(flat, header.pop("layout"))
    except Exception as error:
        raise ValueError(f"the message cannot be read ({type(error).__name__})") from error
    return header, {**floats, **buffers}, extras


def _save_array(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


def _split_arrays(flat: Mapping[str, np.ndarray], layout: Any) -> dict[str, np.ndarray]:
    """The arrays that were concatenated. They must fill what came, and have the type they claim."""
    arrays: dict[str, np.ndarray] = {}
    offsets = dict.fromkeys(flat, 0)
    for name, dtype, shape in layout:
        end = offsets[dtype] + math.prod(shape)
        piece = flat[dtype][offsets[dtype] : end]
        if min(shape, default=0) < 0 or piece.dtype.name != dtype or name in arrays:
            raise ValueError(name)
        arrays[name] = piece.reshape(shape)
        offsets[dtype] = end
    if any(array.shape != (offsets[dtype],) for dtype, array in flat.items()):
        raise ValueError("layout")
    return arrays


# ---- records of Flower ----


def require_flower() -> None:
    """Report a missing Flower; call it before flwr is imported."""
    if find_spec("flwr") is None:
        raise MissingExtraError(
            "extra.flower-missing",
            "Flower is not installed",
            fix="pip install 'fedgsca[flower]'",
        )


def to_records(message: EncodedMessage) -> RecordDict:
    """The content of a message of Flower: one ArrayRecord and one ConfigRecord."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {}
    for dtype, data in message.weights.items():
        file = io.BytesIO(data)
        np.lib.format.read_magic(file)
        shape = np.lib.format.read_array_header_1_0(file)[0]
        arrays[dtype] = Array(dtype, shape, _NUMPY, data)
    block = ConfigRecord({"fedgsca": message.block})
    return RecordDict({"weights": ArrayRecord(arrays), "rest": block})


def from_records(kind: MessageKind, records: RecordDict) -> EncodedMessage:
    """The inverse of `to_records`; ValueError if the records or the header cannot be read."""
    try:
        block = bytes(records.config_records["rest"]["fedgsca"])  # type: ignore[arg-type]
        weights = {name: array.data for name, array in records.array_records["weights"].items()}
        message = EncodedMessage(kind, block, weights)
        read_count(message.header["round"], "round")
    except Exception as error:
        raise ValueError(f"the message cannot be read ({type(error).__name__})") from error
    return message


def kind_of(message_type: str) -> MessageKind | None:
    """The kind of a message of this type of Flower's; None if no site answers it."""
    return next((kind for kind, name in MESSAGE_TYPES.items() if name == message_type), None)


# ---- replies ----


def encode_reply(kind: MessageKind, round_index: int, reply: Reply) -> EncodedMessage:
    """A site's reply, on its way to the coordinator."""
    update = reply.update or Update(reply.site, 0, {})
    header = {
        "kind": kind,
        "round": round_index,
        "site": update.site,
        "num_samples": update.num_samples,
        "error": reply.error,
        "observed": dict(reply.simulation_metrics),
        "seconds": reply.seconds,
        "memory_since": reply.memory_since,
    }
    return encode(kind, header, update.weights, update.extras)


def public_reason(error: Exception) -> str:
    """What the coordinator may know about a failure at a site."""
    if isinstance(error, UpdateError):  # it only speaks of versions, names and declared numbers
        return error.message
    if isinstance(error, ClassListError):
        return "its class list is not that of the consortium"
    for error_class, reason in _PUBLIC_REASONS.items():
        if isinstance(error, error_class):
            return f"{reason}; its own log says more"
    return f"it failed with {type(error).__name__}; its own log says more"


@dataclass(frozen=True)
class SiteMessage:
    """The answer to one message: its content, or the transport's reason why there is none."""

    reply_to: str  # id of the message that this answers
    header: dict[str, Any] | None = None
    weights: dict[str, np.ndarray] | None = None
    extras: dict[str, np.ndarray] | None = None
    error: str | None = None
    is_malformed: bool = False  # it arrived, but cannot be read
    is_absent: bool = False  # nothing arrived


def read_message(message: SiteMessage, site: str, kind: MessageKind, round_index: int) -> Reply:
    """The reply of `site`; anything wrong with it becomes the reason for leaving the site out."""
    if message.error is not None or message.header is None:
        reason = message.error or "an empty message"
        is_absent = message.is_absent
        return Reply(site, None, reason, is_malformed=message.is_malformed, is_absent=is_absent)
    try:
        return _parse_reply(message, message.header, site, kind, round_index)
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # JSON allows Infinity
        reason = f"its message cannot be used ({type(error).__name__}: {error})"
        return Reply(site, None, reason, is_malformed=True)


def _parse_reply(
    message: SiteMessage, header: dict[str, Any], site: str, kind: MessageKind, round_index: int
) -> Reply:
    from fedgsca.federation.local import check_metrics  # the coordinator only: it is heavy

    if (header["kind"], header["round"]) != (kind, round_index):
        round_number = read_count(header["round"], "round") + 1
        return Reply(site, None, f"it answered {header['kind']} of round {round_number}")
    name = printable(str(header["site"])[:_MAX_SITE_NAME], keep="")
    if header["error"] is not None:
        return Reply(site, None, str(header["error"]))
    num_samples = read_count(header["num_samples"], "num_samples")
    update = Update(name, num_samples, message.weights or {}, message.extras or {})
    seconds = float(header["seconds"])
    if not math.isfinite(seconds):
        raise ValueError(f"it took {seconds} seconds")
    since = header.get("memory_since")
    return Reply(
        site,
        update,
        None,
        check_metrics(dict(header["observed"])),
        seconds,
        None if since is None else read_count(since, "memory_since"),
    )
