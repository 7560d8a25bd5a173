"""Records keep the files of a run byte by byte, and read whatever a folder contains."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedgsca.federation import records as all_records
from fedgsca.federation.records import (
    BestRound,
    LabelsInUse,
    PrivacyBudget,
    RoundRecord,
    RunResult,
    Setup,
    SiteRecord,
    SiteSetup,
    TimingRecord,
)
from fedgsca.federation.run_folder import dumps
from fedgsca.support.json_record import Record
from tests.toys import finished_run, toy_config


@pytest.fixture(scope="module")
def folder() -> Path:
    return finished_run(toy_config("fedgsca", frozen=True, train__rounds=3))


def test_files_of_a_run_are_written_again_as_they_were(folder: Path) -> None:
    files: dict[str, type[Record]] = {"setup.json": Setup, "result.json": RunResult}
    for name, record_class in files.items():
        text = (folder / name).read_bytes()
        assert dumps(record_class.from_json(json.loads(text)).to_json()) == text, name
    lines: dict[str, type[Record]] = {"metrics.jsonl": RoundRecord, "timing.jsonl": TimingRecord}
    for name, record_class in lines.items():
        for line in (folder / name).read_text().splitlines():
            record = record_class.from_json(json.loads(line))
            assert json.dumps(record.to_json(), sort_keys=True) == line, name


def test_site_values_are_what_the_method_sent() -> None:
    site = SiteRecord.from_json({"num_samples": 20, "tau": 0.518, "selector": [None, 1, 2.5]})
    assert site.num_samples == 20
    assert site.number("tau") == 0.518
    assert site.numbers("selector") == (None, 1.0, 2.5)
    assert site.number("absent") is None
    assert site.numbers("tau") == ()


def test_unfinished_and_damaged_files_can_be_read() -> None:
    result = RunResult.from_json({"f1": 80.0, "best": None, "seed": "seven", "per_class": [1]})
    assert result.f1 == 80.0
    assert math.isnan(result.recall)
    assert (result.seed, result.per_class, result.best.round) == (0, {}, 0)
    assert Setup.from_json(["not", "an", "object"]).sites == {}
    assert RoundRecord.from_json({"round": 4}).f1 is None


def test_writing_is_strict() -> None:
    with pytest.raises(TypeError, match=r"BestRound\.f1"):
        BestRound(1, "80").to_json()  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        BestRound(round=1)  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        BestRound(1, 80.0).f1 = 81.0  # type: ignore[misc]


def test_keys_without_a_value_are_left_out_or_null_as_declared() -> None:
    record = RoundRecord(
        round=0,
        lr=0.1,
        stability=None,
        bytes_up=1,
        bytes_down=2,
        sites={"a": SiteRecord(3, {"delta": 0.5, "selector": [None, 1.0]})},
        refusals={"b": "no reply"},
        privacy=PrivacyBudget(epsilon=2.0, delta=1e-5),
    )
    tree = record.to_json()
    assert tree["stability"] is None
    assert "f1" not in tree
    assert tree["sites"]["a"] == {"num_samples": 3, "delta": 0.5, "selector": [None, 1.0]}
    assert tree["refused"] == {"b": "no reply"}
    assert RoundRecord.from_json(json.loads(json.dumps(tree))) == record
    assert SiteSetup().to_json() == {}


def test_corrected_labels_keep_the_keys_on_disk() -> None:
    before = {"run": "a", "f1": 70.0, "recall": 1.0, "precision": 2.0, "per_class": {}}
    before |= {"wrong": None, "config": {"train.rounds": 3}}
    pairs = [{"from": "x", "to": "y", "count": 2}]
    review = {"counts": {"changed": 2}, "reviewers": ["r"], "pairs": pairs, "before": before}
    tree = {"file": "labels.csv", "of": 9, "differ": pairs, "review": review}
    labels = LabelsInUse.from_json(tree)
    assert labels.to_json() == tree
    assert labels.review is not None and labels.review.previous_run is not None
    assert labels.review.previous_run.f1 == 70.0


def test_a_remaining_key_cannot_replace_a_field() -> None:
    assert SiteRecord(3, {"delta": 0.5}).to_json() == {"num_samples": 3, "delta": 0.5}
    with pytest.raises(TypeError, match="num_samples"):
        SiteRecord(3, {"num_samples": 9}).to_json()


@dataclasses.dataclass(frozen=True)
class TwoTypes(Record):
    value: int | str = 0


@dataclasses.dataclass(frozen=True)
class Pair(Record):
    value: tuple[int, str] = (0, "")


@dataclasses.dataclass(frozen=True)
class Listing(Record):
    value: Mapping[str, tuple[list[int], ...]] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize("record_class", [TwoTypes, Pair, Listing])
def test_a_type_that_json_would_change_is_refused(record_class: type[Record]) -> None:
    with pytest.raises(TypeError, match=f"{record_class.__name__}.value"):
        record_class().to_json()
    with pytest.raises(TypeError, match="do not support"):
        record_class.from_json({})


def test_all_records_of_the_package_have_supported_types() -> None:
    records = [value for value in vars(all_records).values() if isinstance(value, type)]
    for record_class in records:
        if issubclass(record_class, Record):
            record_class.from_json({})
