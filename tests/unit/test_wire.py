"""What may cross between a site and the coordinator, and what is refused."""

from __future__ import annotations

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
    save_tensors,
)

DIMS = {"C": 3, "D": 8, "K": 4}
DECLARED = {"means": Extra(("C", "D"), "class means"), "rate": Extra((), "a share", optional=True)}
WEIGHTS = {"layer.weight": np.ones((2, 3), np.float32), "layer.count": np.array(7, np.int64)}
MEANS = np.zeros((3, 8))


def update(**changes: object) -> Update:
    return Update(
        **{
            "site": "north",
            "num_samples": 10,
            "weights": WEIGHTS,
            "extras": {"means": MEANS},
            **changes,
        }
    )  # type: ignore[arg-type]


def test_a_good_update_passes() -> None:
    check_update(update(), WEIGHTS, DECLARED, DIMS)
    check_update(update(extras={"means": MEANS, "rate": np.array(0.5)}), WEIGHTS, DECLARED, DIMS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"weights": {"layer.weight": WEIGHTS["layer.weight"]}},
            "1 weights are missing, first: layer.count",
        ),
        ({"weights": {**WEIGHTS, "other": np.zeros(1)}}, "1 weights are unknown, first: other"),
        (
            {"weights": {**WEIGHTS, "layer.weight": np.ones((3, 2), np.float32)}},
            r"layer.weight has shape \(3, 2\) instead of \(2, 3\)",
        ),
        (
            {"weights": {**WEIGHTS, "layer.weight": np.ones((2, 3))}},
            "layer.weight has type float64 instead of float32",
        ),
        (
            {"weights": {**WEIGHTS, "layer.count": np.array(7.0)}},
            "layer.count has type float64 instead of int64",
        ),
        (
            {"weights": {**WEIGHTS, "layer.weight": np.full((2, 3), np.nan, np.float32)}},
            "6 values that are not finite",
        ),
        (
            {
                "weights": {
                    **WEIGHTS,
                    "layer.weight": np.array([[1, np.inf, 1], [1, 1, 1]], np.float32),
                }
            },
            "1 values that are not finite",
        ),
        ({"num_samples": -1}, "num_samples is -1"),
        ({"num_samples": 2.5}, "num_samples is 2.5"),
        ({"num_samples": 10**400}, "num_samples is 1000"),
        ({"extras": {}}, "means is missing"),
        ({"extras": {"means": MEANS, "images": np.zeros((10, 8, 8, 3))}}, "images is not declared"),
        (
            {"extras": {"means": np.zeros((10, 8))}},
            r"means has shape \(10, 8\), declared \('C', 'D'\) = \(3, 8\)",
        ),
        ({"extras": {"means": MEANS, "rate": np.zeros(1)}}, r"rate has shape \(1,\)"),
        ({"extras": {"means": np.full((3, 8), "patient")}}, "not a number"),
    ],
)
def test_a_bad_update_is_refused_with_the_reason(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(UpdateError, match=reason) as caught:
        check_update(update(**changes), WEIGHTS, DECLARED, DIMS)
    assert "north" in caught.value.message and caught.value.fix


def test_many_problems_are_counted_not_poured_out() -> None:
    reference = {f"w{i}": np.zeros(2, np.float32) for i in range(20)}
    broken = {name: np.zeros(3, np.float32) for name in reference}
    with pytest.raises(UpdateError, match="and 17 more"):
        check_update(update(weights=broken), reference, DECLARED, DIMS)


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
    for before, after in ((sent.weights, got.weights), (sent.extras, got.extras)):
        assert sorted(before) == sorted(after)
        for name in before:
            assert (
                before[name].dtype == after[name].dtype and before[name].shape == after[name].shape
            )
            assert np.array_equal(before[name], after[name])
    payload = decode_payload(encode_payload(Payload(12, WEIGHTS, extras)))
    assert payload.round == 12 and set(payload.extras) == set(extras)


def test_encoding_is_deterministic() -> None:
    assert encode_update(update()) == encode_update(update())


def test_metadata_are_sorted_and_still_readable() -> None:
    """The library itself writes them in the order of a salted hash."""
    from safetensors import safe_open
    from safetensors.numpy import load

    notes = {name: f"{name} ä" for name in "qwertyuiopasdfgh"}
    data = save_tensors(WEIGHTS, notes)
    assert data == save_tensors(WEIGHTS, dict(reversed(notes.items())))
    back = load(data)
    assert all(
        np.array_equal(back[name], WEIGHTS[name]) and back[name].shape == WEIGHTS[name].shape
        for name in WEIGHTS
    )
    assert (int.from_bytes(data[:8], "little") + 8) % 8 == 0
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".safetensors") as handle:
        handle.write(data)
        handle.flush()
        with safe_open(handle.name, "np") as opened:
            assert opened.metadata() == notes


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
    for name, value, word in (
        ("share", np.array(1.5), "believable"),
        ("share", np.array(np.nan), "not finite"),
        ("fit", np.array([np.inf, 1.0]), "not finite"),
        ("fit", np.array([1e30, 1.0]), "believable"),
    ):
        sent = {"share": np.array(0.5), "fit": np.zeros(2), name: value}
        with pytest.raises(UpdateError, match=f"{name} has values.*{word}"):
            check_extras("site", sent, declared, {})
