"""A message of Flower: one ArrayRecord and one ConfigRecord.

The ArrayRecord holds the floating-point weights, concatenated, around which Flower's own privacy
mods can be put. The ConfigRecord holds a safetensors block: the header, the declared extras, and
integer buffers, which those mods would spoil. This file imports neither torch nor MONAI: a process
that lives for one message needs it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

# read when flwr is imported
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from fedgsca.errors import MissingExtraError
from fedgsca.wire import Arrays, pack, unpack

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
except ImportError as error:
    raise MissingExtraError(
        "extra.flower-missing",
        "Flower is not installed",
        fix="pip install 'fedgsca[flower]'",
    ) from error

if TYPE_CHECKING:
    from fedgsca.engine.site_node import MessageKind

MESSAGE_TYPES: Mapping[MessageKind, str] = {
    "hello": "query",
    "train": "train",
    "judge": "evaluate",
}


def to_records(header: Mapping[str, Any], weights: Arrays, extras: Arrays) -> RecordDict:
    """A message. All floating-point weights of one type are one long array.

    Flower pays for every array with several calls at every hop.
    """
    floats: dict[str, np.ndarray] = {}
    buffers: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        array = np.asarray(value)
        target = floats if array.dtype.kind == "f" else buffers
        target[name] = array
    layout = [[name, array.dtype.name, list(array.shape)] for name, array in floats.items()]
    parts: dict[str, list[np.ndarray]] = {}
    for array in floats.values():
        parts.setdefault(array.dtype.name, []).append(array.ravel())
    arrays = {dtype: Array(np.concatenate(group)) for dtype, group in parts.items()}
    block = pack({**header, "layout": layout}, extras=extras, buffers=buffers)
    return RecordDict({"weights": ArrayRecord(arrays), "rest": ConfigRecord({"fedgsca": block})})


def from_records(
    records: RecordDict,
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Header, weights and extras of a message.

    Raises ValueError for anything unexpected: the sender may run other software.
    """
    try:
        block = bytes(records.config_records["rest"]["fedgsca"])  # type: ignore[arg-type]
        header, (extras, buffers) = unpack(block, ("extras", "buffers"))
        flat = {dtype: array.numpy() for dtype, array in records.array_records["weights"].items()}
        floats = _split_arrays(flat, header.pop("layout"))
    except Exception as error:
        raise ValueError(f"the message cannot be read ({type(error).__name__})") from error
    return header, {**floats, **buffers}, extras


def _split_arrays(flat: Mapping[str, np.ndarray], layout: Any) -> dict[str, np.ndarray]:
    """The concatenated arrays. They must use up exactly what came, in the type they claim."""
    arrays: dict[str, np.ndarray] = {}
    offsets = dict.fromkeys(flat, 0)
    for name, dtype, shape in layout:
        end = offsets[dtype] + math.prod(shape)
        part = flat[dtype][offsets[dtype] : end]
        if min(shape, default=0) < 0 or part.dtype.name != dtype or name in arrays:
            raise ValueError(name)
        arrays[name] = part.reshape(shape)
        offsets[dtype] = end
    if any(array.shape != (offsets[dtype],) for dtype, array in flat.items()):
        raise ValueError("layout")
    return arrays
