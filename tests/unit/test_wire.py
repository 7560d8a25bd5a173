"""What may cross between a site and the coordinator, and what is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from fedgsca.errors import UpdateError
from fedgsca.wire import (
    Extra,
    Payload,
    Update,
    check_extras,
    check_update,
    decode_payload,
    decode_update,
    encode_payload,
    encode_update,
    num_bytes,
    read_metadata,
    save_tensors,
)

DIMS = {"C": 3, "D": 8, "K": 4}
DECLARED = {"means": Extra(("C", "D"), "class means"), "rate": Extra((), "a share", optional=True)}
WEIGHTS: dict[str, np.ndarray] = {
    "layer.weight": np.ones((2, 3), np.float32),
    "layer.count": np.array(7, np.int64),
}
MEANS = np.zeros((3, 8))
# of two small messages, as version 0.2 wrote them
PAYLOAD_SHA256 = "7933fb782e85133028eced46651627faa070360528030257b3512cdf1bbbe73c"
UPDATE_SHA256 = "420fafe175a181c440247963c55cf8ccf353ef2505740132e9d7f83030fd4020"


def update(**changes: Any) -> Update:
    fields: dict[str, Any] = {
        "site": "north",
        "num_samples": 10,
        "weights": WEIGHTS,
        "extras": {"means": MEANS},
        **changes,
    }
    return Update(**fields)


def test_a_good_update_passes() -> None:
    check_update(update(), WEIGHTS, DECLARED, DIMS)
    check_update(update(extras={"means": MEANS, "rate": np.array(0.5)}), WEIGHTS, DECLARED, DIMS)


BAD_WEIGHTS: list[tuple[dict[str, object], tuple[str, ...]]] = [
    ({"weights": {"layer.weight": WEIGHTS["layer.weight"]}}, ("missing", "layer.count")),
    ({"weights": {**WEIGHTS, "other": np.zeros(1)}}, ("unknown", "other")),
    (
        {"weights": {**WEIGHTS, "layer.weight": np.ones((3, 2), np.float32)}},
        ("layer.weight", "(3, 2)", "(2, 3)"),
    ),
    (
        {"weights": {**WEIGHTS, "layer.weight": np.ones((2, 3))}},
        ("layer.weight", "float64", "float32"),
    ),
    (
        {"weights": {**WEIGHTS, "layer.count": np.array(7.0)}},
        ("layer.count", "float64", "int64"),
    ),
    (
        {"weights": {**WEIGHTS, "layer.weight": np.full((2, 3), np.nan, np.float32)}},
        ("layer.weight", "6 values"),
    ),
    (
        {"weights": {**WEIGHTS, "layer.weight": np.array([[1, np.inf, 1]] * 2, np.float32)}},
        ("layer.weight", "2 values"),
    ),
    ({"num_samples": -1}, ("num_samples", "-1")),
    ({"num_samples": 2.5}, ("num_samples", "2.5")),
    ({"num_samples": 10**400}, ("num_samples", "1000")),
]
BAD_EXTRAS: list[tuple[dict[str, object], tuple[str, ...]]] = [
    ({"extras": {}}, ("means", "missing")),
    ({"extras": {"means": MEANS, "images": np.zeros((10, 8, 8, 3))}}, ("images", "not declared")),
    ({"extras": {"means": np.zeros((10, 8))}}, ("means", "(10, 8)", "('C', 'D')", "(3, 8)")),
    ({"extras": {"means": MEANS, "rate": np.zeros(1)}}, ("rate", "(1,)")),
    ({"extras": {"means": np.full((3, 8), "patient")}}, ("means", "not a number")),
]


@pytest.mark.parametrize(
    ("code", "changes", "parts"),
    [
        *(("update.invalid-weights", *case) for case in BAD_WEIGHTS),
        *(("update.invalid-extras", *case) for case in BAD_EXTRAS),
    ],
)
def test_a_bad_update_is_refused_with_the_reason(
    code: str, changes: dict[str, object], parts: tuple[str, ...]
) -> None:
    with pytest.raises(UpdateError) as error:
        check_update(update(**changes), WEIGHTS, DECLARED, DIMS)
    assert error.value.code == code
    assert "north" in error.value.message and error.value.fix
    for part in parts:
        assert part in error.value.message


def test_many_problems_are_counted_not_poured_out() -> None:
    reference = {f"w{i}": np.zeros(2, np.float32) for i in range(20)}
    broken = {name: np.zeros(3, np.float32) for name in reference}
    with pytest.raises(UpdateError) as error:
        check_update(update(weights=broken), reference, DECLARED, DIMS)
    assert "17 more" in error.value.message and "w4" not in error.value.message


def test_messages_keep_names_types_shapes_and_bytes() -> None:
    extras = {
        "scalar": np.array(1.5),
        "flags": np.array([True, False]),
        "empty": np.zeros((0, 3), np.float32),
    }
    strided = np.arange(12, dtype=np.float32).reshape(3, 4).T
    sent = Update("Süd 1", 3, {"a": strided, **WEIGHTS}, extras)
    got = decode_update(encode_update(sent))
    assert (got.site, got.num_samples) == ("Süd 1", 3)
    for old, new in ((sent.weights, got.weights), (sent.extras, got.extras)):
        assert sorted(old) == sorted(new)
        for name in old:
            assert old[name].dtype == new[name].dtype and old[name].shape == new[name].shape
            assert np.array_equal(old[name], new[name])
    payload = decode_payload(encode_payload(Payload(12, WEIGHTS, extras)))
    assert payload.round == 12 and set(payload.extras) == set(extras)


def test_encoding_is_deterministic() -> None:
    assert encode_update(update()) == encode_update(update())


def test_metadata_are_one_key_and_deterministic() -> None:
    """The library itself writes several keys in the order of a salted hash."""
    from safetensors.numpy import load

    metadata: dict[str, object] = {name: f"{name} ä" for name in "qwertyuiopasdfgh"}
    data = save_tensors(WEIGHTS, metadata)
    assert data == save_tensors(WEIGHTS, dict(reversed(metadata.items())))
    assert read_metadata(data) == metadata
    back = load(data)
    for name, weights in WEIGHTS.items():
        assert np.array_equal(back[name], weights) and back[name].shape == weights.shape


def test_messages_have_the_bytes_of_version_0_2() -> None:
    payload = Payload(3, WEIGHTS, {"rate": np.array(0.5)})
    assert hashlib.sha256(encode_payload(payload)).hexdigest() == PAYLOAD_SHA256
    assert hashlib.sha256(encode_update(update())).hexdigest() == UPDATE_SHA256


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_a_cut_message_is_an_error_not_a_wrong_answer(cut: int) -> None:
    with pytest.raises(Exception):  # noqa: B017  whatever the reader says
        decode_update(encode_update(update())[:cut])


def test_num_bytes() -> None:
    assert num_bytes(WEIGHTS) == 6 * 4 + 8


def test_values_out_of_the_declared_range_are_refused() -> None:
    """One diverged or malicious site must not move the numbers that all sites are judged by."""
    declared = {
        "share": Extra((), "a share", low=0, high=1),
        "fit": Extra((2,), "a fit; NaN: none", nan=True),
    }
    check_extras("site", {"share": np.array(0.5), "fit": np.array([np.nan, 1.0])}, declared, {})
    for name, value, part in (
        ("share", np.array(1.5), "1.5"),
        ("share", np.array(np.nan), "not finite"),
        ("fit", np.array([np.inf, 1.0]), "not finite"),
        ("fit", np.array([1e30, 1.0]), "1e+30"),
    ):
        sent = {"share": np.array(0.5), "fit": np.zeros(2), name: value}
        with pytest.raises(UpdateError) as error:
            check_extras("site", sent, declared, {})
        assert error.value.code == "update.invalid-extras"
        assert name in error.value.message and part in error.value.message


@pytest.mark.parametrize("kind", ["int64", "float16", "bool"])
def test_what_is_averaged_must_be_a_float(kind: str) -> None:
    """The mean has the type of the first site, which may be a liar."""
    declarations = {"head": Extra((2,), "averaged", vote="mean")}
    check_extras("update", {"head": np.zeros(2, np.float32)}, declarations, {})
    with pytest.raises(UpdateError, match="its mean needs"):
        check_extras("update", {"head": np.zeros(2, kind)}, declarations, {})
