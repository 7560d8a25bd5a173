"""TensorBoard and MLflow: complete records without repeated steps, and runs that never notice."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedgsca.config import load_config, to_toml
from fedgsca.errors import ConfigError, MissingExtraError
from fedgsca.federation.base import ObserverGroup
from fedgsca.federation.records import RoundRecord, RunResult
from fedgsca.federation.rounds import run
from fedgsca.lab import trackers
from fedgsca.lab.plan import ComparisonPlan
from fedgsca.lab.runner import GridObserver
from fedgsca.lab.trackers import (
    RunLabel,
    Tracker,
    TrackTarget,
    connect_mlflow,
    parse_targets,
    safe_name,
)
from fedgsca.lab.tracking import (
    TrackingGridObserver,
    TrackingObserver,
    find_targets,
    round_values,
    track_run,
)
from tests.toys import RecordingObserver, outcome, toy_config

RESULT = RunResult.from_json({"f1": 71.0})


def make_record(round_index: int) -> RoundRecord:
    return RoundRecord.from_json(
        {
            "round": round_index,
            "lr": 0.1,
            "f1": 50.0 + round_index,
            "loss": None,
            "sites": {"St. Mary's": {"num_samples": 9, "delta": 0.2, "thresholds": [0.1, None]}},
            "refused": {"b": "late"},
        }
    )


def append(folder: Path, *rounds: int) -> None:
    """Lines of metrics.jsonl, as the run writes them before it tells its observer."""
    with (folder / "metrics.jsonl").open("ab") as handle:
        for round_index in rounds:
            handle.write(json.dumps(make_record(round_index).to_json()).encode() + b"\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "runs" / "a"
    path.mkdir(parents=True)
    (path / "config.toml").write_text("")
    return path


def start(folder: Path, track: str) -> TrackingObserver:
    config = load_config(train__rounds=9)
    observer = track_run(print, folder, config, parse_targets(track))
    assert observer is not None
    observer.begin("data")
    return observer


def steps_of_tensorboard(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    points = []
    for path in sorted((folder / "tensorboard").glob("events*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag == tag:
                    points.append((event.step, value.tensor.float_val[0]))
    return points


def client(folder: Path) -> Any:
    return connect_mlflow((folder / "mlruns").resolve().as_uri())


def record_id(folder: Path) -> str:
    return str(json.loads((folder / "mlflow.json").read_text())["run"])


def steps_of_mlflow(folder: Path, name: str) -> list[tuple[int, float]]:
    history = client(folder.parent).get_metric_history(record_id(folder), name)
    return sorted((metric.step, metric.value) for metric in history)


def steps_of_wandb(folder: Path, name: str) -> list[tuple[int, float]]:
    """From the file that `wandb sync` sends: a log in blocks of 32 KiB, as LevelDB writes it."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")  # sessions before it are gone
    content, place, data, points = path.read_bytes(), 7, b"", []
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # the rest of a block holds no header
            place += 32768 - place % 32768
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        data += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(data)
            data = b""
            for item in record.history.item:
                if name in (item.key, *item.nested_key):
                    points.append((record.history.step.num, float(item.value_json)))
    return points


def steps(folder: Path, kind: str) -> list[tuple[int, float]]:
    if kind != "wandb":
        reader = steps_of_tensorboard if kind == "tensorboard" else steps_of_mlflow
        return reader(folder, "test/f1")
    for _ in range(100):  # a process of its own writes the file
        points = steps_of_wandb(folder, "test/f1")
        if points:
            break
        time.sleep(0.1)
    return points


KINDS = ["tensorboard", "mlflow", "wandb"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_continues_its_record_without_repeated_steps(folder: Path, kind: str) -> None:
    pytest.importorskip(kind)
    observer = start(folder, kind)
    for round_index in (0, 1, 2):
        append(folder, round_index)
        observer.on_round_done(make_record(round_index), 0.1)
    # killed: no finish. The last line had no checkpoint, so it is cut and the round run again.
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:2]))
    config = load_config(train__rounds=9)
    assert find_targets(None, config, folder) == (TrackTarget(kind),), "without the option"
    observer = start(folder, kind)
    for round_index in (2, 3):
        append(folder, round_index)
        observer.on_round_done(make_record(round_index), 0.1)
    observer.finish(RESULT)
    assert steps(folder, kind) == [(1, 50.0), (2, 51.0), (3, 52.0), (4, 53.0)]


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_before_tracking_began_are_added(folder: Path, kind: str) -> None:
    pytest.importorskip(kind)
    append(folder, 0, 1)
    start(folder, kind).finish(RESULT)
    assert steps(folder, kind) == [(1, 50.0), (2, 51.0)]


def test_mlflow_has_settings_files_and_state(folder: Path) -> None:
    pytest.importorskip("mlflow")
    append(folder, 0)
    for name in ("report.html", "model.safetensors", "result.json"):
        (folder / name).write_text(name)
    start(folder, "mlflow").finish(RESULT)
    record = client(folder.parent).get_run(record_id(folder))
    assert record.info.status == "FINISHED" and record.info.run_name == "a"
    assert record.data.params["train.rounds"] == "9" and record.data.params["method"] == "fedgsca-e"
    assert record.data.metrics["site/St. Mary_s/delta"] == 0.2
    files = {item.path for item in client(folder.parent).list_artifacts(record_id(folder))}
    assert {"report.html", "model.safetensors", "result.json", "metrics.jsonl"} <= files
    observer = start(folder, "mlflow")
    assert client(folder.parent).get_run(record_id(folder)).info.status == "RUNNING"
    observer.finish(None)
    record = client(folder.parent).get_run(record_id(folder))
    assert record.info.status == "KILLED" and len(steps(folder, "mlflow")) == 1


def test_a_record_that_was_deleted_is_begun_again(folder: Path) -> None:
    pytest.importorskip("mlflow")
    append(folder, 0)
    start(folder, "mlflow").finish(RESULT)
    old = record_id(folder)
    client(folder.parent).delete_run(old)
    start(folder, "mlflow").finish(RESULT)
    assert record_id(folder) != old and steps(folder, "mlflow") == [(1, 50.0)]
    (folder / "mlflow.json").write_text("{")
    start(folder, "mlflow").finish(RESULT)
    assert steps(folder, "mlflow") == [(1, 50.0)]


def test_tensorboard_shows_the_configuration(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    start(folder, "tensorboard").finish(RESULT)
    events = b"".join(path.read_bytes() for path in (folder / "tensorboard").iterdir())
    assert b"train.rounds = 9" in events and b"finished" in events


def test_the_environment_never_sends_a_run_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://192.0.2.1:5000")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a network call")

    monkeypatch.setattr("socket.socket.connect", refuse)
    observer = RecordingObserver()
    tracking = track_run(observer.on_message, folder, load_config(), parse_targets("mlflow"))
    assert tracking is not None
    append(folder, 0)
    tracking.begin("data")
    tracking.finish(RESULT)
    assert observer.messages == [] and steps(folder, "mlflow") == [(1, 50.0)]
    import os

    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


class BrokenTracker(Tracker):
    """Fails from the given call on."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def _count(self) -> None:
        self.calls -= 1
        if self.calls < 0:
            raise OSError("the disk\nis full")

    def open(self, label: RunLabel, settings: Mapping[str, str]) -> str | None:
        self._count()
        return None

    def log_round(self, step: int, values: Mapping[str, float]) -> None:
        self._count()

    def log_files(self, paths: Sequence[Path]) -> None:
        self._count()

    def close(self, state: str) -> None:
        self._count()


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4])
def test_a_failure_is_one_warning_and_the_run_is_the_same(
    calls: int, tmp_path: Path, plain_run: Path
) -> None:
    config = toy_config("fedavg", train__rounds=2)
    observer = RecordingObserver()
    tracking = track_run(
        observer.on_message, tmp_path / "run", config, (TrackTarget("tensorboard"),)
    )
    assert tracking is not None
    tracking.trackers.trackers = {"tensorboard": BrokenTracker(calls)}
    result = run(config, tmp_path / "run", observer=ObserverGroup(observer, tracking))
    tracking.finish(result)
    expected = "tracking with tensorboard has stopped, the run continues: the disk is full"
    assert observer.messages == [expected]
    assert len(observer.rounds) == 2, "the person still sees every round"
    assert outcome(tmp_path / "run") == outcome(plain_run)


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody tracks."""
    path = tmp_path_factory.mktemp("plain") / "run"
    run(toy_config("fedavg", train__rounds=2), path)
    return path


def test_tracking_does_not_change_a_byte(tmp_path: Path, plain_run: Path) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("tensorboard")
    config = toy_config("fedavg", train__rounds=2, track="tensorboard,mlflow")
    targets = find_targets(None, config, tmp_path / "run")
    tracking = track_run(print, tmp_path / "run", config, targets)
    assert tracking is not None
    tracking.finish(run(config, tmp_path / "run", observer=tracking))
    assert outcome(tmp_path / "run") == outcome(plain_run)
    assert len(steps(tmp_path / "run", "mlflow")) == 2
    assert len(steps(tmp_path / "run", "tensorboard")) == 2


def test_a_server_that_is_not_there_is_a_warning(folder: Path) -> None:
    pytest.importorskip("mlflow")
    observer = RecordingObserver()
    targets = parse_targets("mlflow:http://127.0.0.1:9")
    tracking = track_run(observer.on_message, folder, load_config(), targets)
    assert tracking is not None
    tracking.begin("data")
    tracking.on_round_done(make_record(0), 0.1)
    tracking.finish(RESULT)
    assert len(observer.messages) == 1 and "mlflow has stopped" in observer.messages[0]


def test_tracking_is_not_part_of_the_experiment() -> None:
    plain, other = load_config(), load_config(track="tensorboard")
    assert other.track == "tensorboard"
    assert plain.fingerprint() == other.fingerprint() and to_toml(plain) == to_toml(other)


def test_a_comparison_is_one_parent_with_children(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    plan = ComparisonPlan(("fedavg", "fedprox"), ("S40",), (0,), ceiling=False)
    out = tmp_path / "runs" / "cmp"
    targets = parse_targets("mlflow,tensorboard")
    warnings: list[str] = []
    tracking = TrackingGridObserver(GridObserver(), out, plan, targets, warnings.append)
    assert not out.exists(), "nothing is written before the folder belongs to the comparison"
    for cell in plan.cells():
        path = out / "cells" / cell.name
        path.mkdir(parents=True)
        tracking.observe(cell)
        assert tracking.current is not None
        append(path, 0)
        tracking.current.begin("data")
        tracking.on_run_done(cell, RESULT)
    from fedgsca.lab.records import Comparison

    comparison = Comparison.from_json(
        {"cells": [{"method": "fedavg", "noise": "S40", "seed": 0, "f1": 70.0}]}
    )
    tracking.finish(comparison)
    assert warnings == []
    store = client(out.parent)
    parent = store.get_run(record_id(out))
    assert parent.data.metrics["f1/S40/fedavg"] == 70.0 and parent.info.status == "FINISHED"
    for cell in plan.cells():
        child = store.get_run(record_id(out / "cells" / cell.name))
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert child.info.experiment_id == parent.info.experiment_id
        assert child.info.status == "FINISHED"
        assert steps_of_tensorboard(out / "cells" / cell.name, "test/f1") == [(1, 50.0)]
    # the same comparison again: the same parent, no second step
    tracking = TrackingGridObserver(GridObserver(), out, plan, targets, warnings.append)
    tracking.finish(comparison)
    assert record_id(out) == parent.info.run_id
    history = store.get_metric_history(parent.info.run_id, "f1/S40/fedavg")
    assert [metric.step for metric in history] == [1] and warnings == []


def test_values_are_numbers_with_legal_names() -> None:
    values = round_values(make_record(4))
    assert values["test/f1"] == 54.0 and "test/loss" not in values
    assert values["site/St. Mary_s/delta"] == 0.2
    assert values["site/St. Mary_s/thresholds/0"] == 0.1
    assert "site/St. Mary_s/thresholds/1" not in values
    assert values["sites/refused"] == 1.0 and values["site/b/refused"] == 1.0
    assert safe_name("a:b$c/d") == "a_b_c/d"


@pytest.mark.parametrize(
    ("text", "code"),
    [("neptune", "track.unknown-tracker"), ("tensorboard:/tmp/x", "track.no-place")],
)
def test_a_wrong_option_is_reported(text: str, code: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_targets(text)
    assert error.value.code == code


def test_several_trackers_with_and_without_a_place() -> None:
    targets = parse_targets(" MLflow:http://h:5000 , tensorboard,,")
    assert targets == (TrackTarget("mlflow", "http://h:5000"), TrackTarget("tensorboard"))
    assert ",".join(map(str, targets)) == "mlflow:http://h:5000,tensorboard"
    assert parse_targets(None) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_package_is_named_before_anything_runs(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as error:
        find_targets(None, load_config(track=kind), tmp_path)
    assert error.value.fix == f"pip install 'fedgsca[{kind}]'"


def test_a_damaged_memory_of_the_session_tracks_nothing(folder: Path) -> None:
    for content in ("", "[]", '{"track": 3}', "\0"):
        (folder / "track.json").write_text(content)
        assert find_targets(None, load_config(), folder) == ()


def test_the_modules_of_trackers_are_not_imported_without_need() -> None:
    import subprocess

    code = (
        "import sys, fedgsca.lab.tracking;"
        "print([name for name in ('mlflow', 'tensorboard') if name in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == "[]"
