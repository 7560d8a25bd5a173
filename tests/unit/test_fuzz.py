"""Any bytes in, a result or one of our errors out: readers, configuration, messages, records.

The normal suite tries a few hundred inputs; `make slow` many thousand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import tempfile
import typing
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedgsca.config import Config, build, load_config
from fedgsca.data.image_files import UnreadableImageError, decode, inspect_image
from fedgsca.data.readers.folder import list_folder
from fedgsca.data.readers.npz import read_npz
from fedgsca.errors import FedgscaError, UpdateError
from fedgsca.federation import records
from fedgsca.hospital.messages import SiteMessage, read_message
from fedgsca.labels.decisions import Decisions
from fedgsca.support.json_record import Record
from fedgsca.support.text import one_line, printable
from fedgsca.wire import Payload, Update, check_update, decode_payload, decode_update, encode_update

Property = Callable[..., None]
SLOW_FACTOR = 40

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)


def damage(content: bytes, places: list[tuple[int, int]], length: int) -> bytes:
    """The content with some bytes changed, cut or extended to `length` thousandths."""
    data = bytearray(content)
    for place, value in places:
        data[place % len(data)] = value
    return bytes(data[: len(data) * length // 1000])


places = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6)
lengths = st.integers(0, 1000) | st.just(1000)


def sample_picture(kind: str) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    pixels = np.arange(20 * 16 * 3, dtype=np.uint8).reshape(20, 16, 3)
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def sample_npz() -> bytes:
    content = io.BytesIO()
    images = np.zeros((4, 8, 8), np.uint8)
    labels = np.array([0, 1, 0, 1])
    np.savez(
        content, train_images=images, train_labels=labels, test_images=images, test_labels=labels
    )
    return content.getvalue()


PICTURES = {kind: sample_picture(kind) for kind in ("PNG", "JPEG", "TIFF", "BMP")}
NPZ = sample_npz()
UPDATE = Update("north", 5, {"w": np.ones((2, 3), np.float32)}, {"x": np.array(1.0)})


# ---- properties ----


def picture_property(kind: str, changes: list[tuple[int, int]], length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{kind.lower()}"
        path.write_bytes(damage(PICTURES[kind], changes, length))
        inspect_image(path)
        try:
            assert decode(path, 8).shape == (8, 8, 3)
        except UnreadableImageError as error:
            assert str(error)


def npz_property(changes: list[tuple[int, int]], length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        path.write_bytes(damage(NPZ, changes, length))
        _read_npz(path)


def npy_header_property(header: str) -> None:
    """A readable archive whose array has any header."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        with zipfile.ZipFile(io.BytesIO(NPZ)) as source, zipfile.ZipFile(path, "w") as target:
            for member in source.namelist():
                content = source.read(member)
                if member == "train_labels.npy":
                    text = header.encode("latin-1", "replace") + b"\n"
                    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
                target.writestr(member, content)
        _read_npz(path)


def _read_npz(path: Path) -> None:
    try:
        table = read_npz(path, cache_dir=path.parent / "cache")
    except FedgscaError as error:
        assert error.code and error.fix
    else:
        assert len(table.labels) == 8


def labels_property(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "a.png").write_bytes(PICTURES["PNG"])
        (root / "labels.csv").write_bytes(text)
        for problem in list_folder(root).problems:
            assert problem.code and problem.fix


def toml_property(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.toml"
        path.write_bytes(content)
        try:
            load_config(path)
        except FedgscaError as error:
            assert error.code.startswith("config.")


def config_property(key: str, value: object) -> None:
    section, _, name = key.partition(".")
    try:
        config = build({section: {name: value} if name else value})
    except FedgscaError as error:
        assert error.code.startswith("config.")
    else:
        assert build(config.to_tree()).fingerprint() == config.fingerprint()
        tomli_w.dumps(config.to_tree())


def message_property(changes: list[tuple[int, int]], length: int) -> None:
    """A damaged update is refused, or has the shapes that it declares."""
    data = damage(encode_update(UPDATE), changes, length)
    for decoder in (decode_update, decode_payload):
        try:
            message = decoder(data)
        except UpdateError as error:
            assert error.code == "update.unreadable"
        else:
            assert isinstance(message, Update | Payload)


def is_shown(text: str) -> bool:
    """Whether a terminal shows the text. Joiners and soft hyphens stay, although Python minds."""
    joiners = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}\N{SOFT HYPHEN}"
    return "".join(mark for mark in text if mark not in joiners).isprintable()


def reply_property(header: dict[str, Any]) -> None:
    reply = read_message(SiteMessage("1", header), "north", "train", 0)
    assert reply.error is None or (is_shown(reply.error) and len(reply.error) <= 500)
    if reply.update is not None:
        with contextlib.suppress(UpdateError):
            check_update(reply.update, UPDATE.weights, {}, {})


def record_property(index: int, tree: object) -> None:
    kind = RECORDS[index]
    record = kind.from_json(tree)
    kind.from_json(json.loads(json.dumps(record.to_json(), default=str)))


def decision_property(lines: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        good: dict[str, object] = {"reviewer": "anna", "row": 1, "id": "a", "hash": "h"}
        good |= {"given": "c", "action": "keep", "label": None, "time": "2026"}
        odd_lines = [line.replace(b"\n", b" ") for line in lines]
        content = b"\n".join([*odd_lines, json.dumps(good).encode(), b""])
        (Path(folder) / "decisions.jsonl").write_bytes(content)
        assert 1 in Decisions(Path(folder)).by_reviewer("anna")


def text_property(text: str) -> None:
    line = one_line(text, 50)
    assert len(line) <= 50 and is_shown(line) and line.encode() is not None
    assert "\x1b" not in printable(text)


def _record_kinds() -> list[type[Record]]:
    kinds = [value for value in vars(records).values() if isinstance(value, type)]
    return [
        kind
        for kind in kinds
        if issubclass(kind, Record) and kind is not Record and dataclasses.is_dataclass(kind)
    ]


def _config_keys() -> list[str]:
    keys = []
    for name, info in Config.model_fields.items():
        keys.append(name)
        section = next(
            (
                kind
                for kind in (info.annotation, *typing.get_args(info.annotation))
                if hasattr(kind, "model_fields")
            ),
            None,
        )
        if section is not None:
            keys += [f"{name}.{field}" for field in section.model_fields]
    return keys


RECORDS = _record_kinds()
header_keys = st.sampled_from(
    ["kind", "round", "site", "error", "num_samples", "seconds", "observed"]
)
headers = st.dictionaries(header_keys, trees).map(
    lambda tree: {"kind": "train", "round": 0, "site": "north", "error": None} | tree
)
npy_headers = st.text(max_size=60) | st.builds(
    "{{'descr': {!r}, 'fortran_order': {}, 'shape': {}}}".format,
    st.sampled_from(["<i8", "|O", "<f4", "|u1", "<U9", "<m8", "|V3"]) | st.text(max_size=5),
    st.booleans(),
    st.tuples(st.integers(-9, 9)) | st.tuples(st.integers(), st.integers()) | st.text(max_size=4),
)
csv_texts = st.binary(max_size=200) | st.text(max_size=200).map(
    lambda text: b"file,label,group,split\n" + text.encode(errors="replace")
)
toml_texts = st.binary(max_size=80) | st.text(max_size=80).map(lambda text: text.encode())
json_lines = st.lists(st.binary(max_size=60) | trees.map(lambda tree: json.dumps(tree).encode()))

PROPERTIES: dict[str, tuple[Property, dict[str, Any], int]] = {
    "pictures": (
        picture_property,
        {"kind": st.sampled_from(sorted(PICTURES)), "changes": places, "length": lengths},
        60,
    ),
    "npz files": (npz_property, {"changes": places, "length": lengths}, 40),
    "npy headers": (npy_header_property, {"header": npy_headers}, 40),
    "labels.csv": (labels_property, {"text": csv_texts}, 60),
    "toml": (toml_property, {"content": toml_texts}, 60),
    "configuration": (
        config_property,
        {"key": st.sampled_from(_config_keys()), "value": trees},
        60,
    ),
    "messages": (message_property, {"changes": places, "length": lengths}, 100),
    "replies": (reply_property, {"header": headers}, 60),
    "records": (
        record_property,
        {"index": st.integers(0, len(RECORDS) - 1), "tree": trees},
        60,
    ),
    "decisions": (decision_property, {"lines": json_lines}, 40),
    "texts": (text_property, {"text": st.text() | st.characters().map(lambda c: c * 9)}, 100),
}


def explore(name: str, factor: int) -> None:
    """Search for an input that breaks the property."""
    check, strategies, count = PROPERTIES[name]
    budget = settings(
        max_examples=count * factor,
        deadline=None,
        database=None,
        derandomize=factor == 1,
        suppress_health_check=list(HealthCheck),
    )
    budget(given(**strategies)(check))()


@pytest.mark.parametrize("name", PROPERTIES)
def test_any_input_gives_a_result_or_an_error_of_ours(name: str) -> None:
    explore(name, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPERTIES)
def test_many_inputs(name: str) -> None:
    explore(name, SLOW_FACTOR)
