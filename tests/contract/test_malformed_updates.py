"""Answers that have not the form of an update, floods of answers, and strange names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from fedgsca.errors import UpdateError
from fedgsca.federation.base import Reply
from fedgsca.federation.rounds import run
from fedgsca.hospital.messages import SiteMessage, read_message
from fedgsca.selector import Selector
from fedgsca.wire import (
    Payload,
    Update,
    check_update,
    decode_update,
    encode_update,
    pack,
    read_count,
)
from tests.contract.test_filters import LIAR, study_config
from tests.toys import FaultyEngine, RecordingObserver


def test_a_site_that_comes_back_takes_part_again(tmp_path: Path) -> None:
    config, folder = study_config(), tmp_path / "run"
    observer = RecordingObserver()

    def lose(round_index: int, reply: Reply) -> Reply:
        if reply.site == LIAR and round_index < 8:
            return Reply(LIAR, None, "no reply")
        return reply

    run(config, folder, engine=FaultyEngine(config, folder, lose), observer=observer, stop_after=9)
    assert [bool(record.refusals) for record in observer.rounds] == [True] * 8 + [False]


def test_what_cannot_be_read_is_malformed_and_what_did_not_come_is_not() -> None:
    header = {"kind": "train", "round": 0, "site": "a", "error": None, "seconds": 0.0}
    header |= {"observed": {}, "num_samples": "1_0"}
    assert read_message(SiteMessage("1", header), "a", "train", 0).is_malformed
    assert read_message(
        SiteMessage("1", error="x", is_malformed=True), "a", "train", 0
    ).is_malformed
    assert not read_message(SiteMessage("1", error="time-out"), "a", "train", 0).is_malformed


# ---- floods and names ----


class FloodEngine(FaultyEngine):
    """An engine that delivers one update very often, and answers of very many strangers."""

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        for reply in super().exchange(payload, sites):
            yield reply
            if reply.site == LIAR and reply.update is not None:
                for number in range(2000):
                    yield reply
                    yield Reply(f"stranger-{number}", reply.update)
                yield Reply(f"{LIAR}\x1b[2J\n", reply.update)
                yield Reply("\x1b]0;" + "x" * 100_000, reply.update)


def test_a_flood_of_answers_is_a_few_lines(tmp_path: Path) -> None:
    config, folder = study_config(), tmp_path / "run"
    observer = RecordingObserver()
    engine = FloodEngine(config, folder)
    run(config, folder, engine=engine, observer=observer, stop_after=1)
    messages = [text for text in observer.messages if text.startswith("round 1")]
    assert len(messages) < 20
    assert any(f"{LIAR} sent 2,000 such answers" in text for text in messages)
    assert any("other unknown names sent" in text for text in messages)
    for text in (*messages, *observer.rounds[0].refusals):
        assert text.isprintable() and len(text) < 700
    assert observer.rounds[0].refusals[LIAR].startswith("it answered twice"), (
        "not blamed for others"
    )
    assert LIAR in observer.rounds[0].sites


def test_a_name_that_looks_like_a_site_does_not_speak_for_it(tmp_path: Path) -> None:
    config, folder = study_config(), tmp_path / "run"
    observer = RecordingObserver()

    class Imitator(FaultyEngine):
        def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
            for reply in super().exchange(payload, sites):
                yield reply
            yield Reply(f"{LIAR}\x00", reply.update)

    run(config, folder, engine=Imitator(config, folder), observer=observer, stop_after=1)
    assert list(observer.rounds[0].refusals) == [f"{LIAR} (another name)"]


# ---- numbers ----


@pytest.mark.parametrize(
    "text", ["1_0", "\u0661\u0660", " 10", "+10", "1e1", "-1", "10.0", "9" * 30]
)
def test_a_count_has_plain_digits(text: str) -> None:
    arrays = {"w": np.zeros(2, np.float32)}
    data = pack({"site": "a", "num_samples": text}, weights=arrays, extras={})
    with pytest.raises(UpdateError) as error:
        decode_update(data)
    assert error.value.code == "update.unreadable"


@pytest.mark.parametrize(
    "value", [10**18, 10**4300, -(10**4300), -1], ids=["large", "huge", "negative", "minus-one"]
)
def test_a_count_of_thousands_of_digits_is_not_printed(value: int) -> None:
    """Python raises an error when it prints one, which ended the coordinator's run."""
    with pytest.raises(ValueError, match=r"memory_since is .{1,40}, which is not a count"):
        read_count(value, "memory_since")


def test_counts_that_this_software_writes_are_read() -> None:
    arrays = {"w": np.zeros(2, np.float32)}
    assert decode_update(encode_update(Update("a", 10, arrays))).num_samples == 10
    data = pack({"site": "a", "num_samples": "10"}, weights=arrays, extras={})
    assert decode_update(data).num_samples == 10


@pytest.mark.parametrize("num_samples", [True, 2.0, np.int64(3)])
def test_a_count_is_an_integer(num_samples: int) -> None:
    arrays = {"w": np.zeros(2, np.float32)}
    with pytest.raises(UpdateError, match="num_samples"):
        check_update(Update("a", num_samples, arrays), arrays, {}, {})


@pytest.mark.parametrize("variance", [1e-300, 1e-19, 0.0, -1.0])
def test_a_selector_has_variances_that_can_be_divided_by(variance: float) -> None:
    for position in (2, 3):
        numbers = np.array([0.1, 2.0, 0.3, 0.4, 0.5, 0.5])
        assert Selector.from_array(numbers) is not None
        numbers[position] = variance
        with pytest.raises(UpdateError) as error:
            Selector.from_array(numbers)
        assert error.value.code == "update.invalid-selector"
