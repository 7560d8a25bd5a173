"""Worker processes compute the same features, and none of them is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.config import ModelConfig
from fedgsca.errors import ConfigError
from fedgsca.models import features as feature_module
from fedgsca.models.build import build_backbone
from fedgsca.models.features import (
    VARIABLE,
    FeatureWorkers,
    choose_workers,
    decode_array,
    encode_array,
    extract,
    read_setting,
    receive_message,
    send_message,
)
from fedgsca.rng import stream
from fedgsca.support.console import listen

MODEL = ModelConfig(name="cnn", frozen=True, feature_size=16)
IMAGES = stream(5, "images").integers(0, 256, (40, 20, 20, 3), dtype=np.uint8)


def features() -> np.ndarray:
    out = np.full((len(IMAGES), 128), np.nan, np.float32)
    backbone = build_backbone("cnn", seed=3)
    extract(backbone, MODEL, IMAGES, out, batch=8)
    return out


def children() -> set[str]:
    """Processes that this one has started and that have not ended."""
    numbers = set()
    for folder in Path(f"/proc/{os.getpid()}/task").iterdir():
        numbers |= set((folder / "children").read_text().split())
    return numbers


@pytest.fixture(scope="module")
def expectation() -> np.ndarray:
    return features()


def test_workers_compute_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, expectation: np.ndarray
) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    earlier = children()
    assert features().tobytes() == expectation.tobytes()
    assert children() == earlier


def test_lost_workers_are_replaced_by_this_process(
    monkeypatch: pytest.MonkeyPatch, expectation: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    start_worker = feature_module._start_worker

    def start_and_kill() -> subprocess.Popen[bytes]:
        process = start_worker()
        assert process is not None
        process.kill()
        return process

    monkeypatch.setattr(feature_module, "_start_worker", start_and_kill)
    assert features().tobytes() == expectation.tobytes()
    assert "a worker for features was lost" in caplog.text


@pytest.mark.parametrize("num_processes", [0, 1])
def test_a_limit_on_processes_costs_time_only(
    monkeypatch: pytest.MonkeyPatch,
    expectation: np.ndarray,
    caplog: pytest.LogCaptureFixture,
    num_processes: int,
) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    earlier = children()
    start_process = subprocess.Popen
    processes: list[subprocess.Popen[bytes]] = []

    def start_or_refuse(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        if len(processes) == num_processes:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        processes.append(start_process(*args, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start_or_refuse)
    assert features().tobytes() == expectation.tobytes()
    assert "a worker for features cannot be started" in caplog.text
    assert children() == earlier


def test_an_interrupt_leaves_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    earlier = children()

    class Interrupt:
        def on_activity(self, phase: str, position: int, total: int, seconds: float) -> None:
            if position:
                raise KeyboardInterrupt

    with listen(Interrupt()), pytest.raises(KeyboardInterrupt):
        features()
    assert children() == earlier


SCRIPT = """
import sys
import numpy as np
from tests.unit.test_feature_workers import features
print("started")
print(features().sum())
"""


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, VARIABLE: "2", "PYTHONPATH": root}
    process = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert process.stdout.split()[0] == "started"
    assert process.stdout.count("started") == 1


def test_a_worker_survives_an_interrupt_and_ends_with_the_process_that_started_it(
    expectation: np.ndarray,
) -> None:
    process = feature_module._start_worker()
    assert process is not None
    assert process.stdin is not None and process.stdout is not None
    for message in FeatureWorkers(MODEL, build_backbone("cnn", seed=3), 1).opening:
        send_message(process.stdin, message)
    for _ in range(2):
        send_message(process.stdin, encode_array(IMAGES[:8]))
        answer = decode_array(receive_message(process.stdout))
        assert answer.tobytes() == expectation[:8].tobytes()
        process.send_signal(signal.SIGINT)  # Ctrl-C is left to the process that started it
    process.stdin.close()  # what happens when that process is killed
    assert process.wait(60) == 0
    process.stdout.close()


@pytest.mark.parametrize("text", ["0", "-1", "two", "65", "1.5"])
def test_an_invalid_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ConfigError) as failure:
        read_setting()
    assert failure.value.code == "model.invalid-feature-workers"


def test_workers_start_only_where_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(feature_module, "count_cores", lambda: 8)
    assert choose_workers("cnn", 100, 0.0) == 1  # not known yet what a batch takes
    assert choose_workers("cnn", 100, 1.0) == 4
    assert choose_workers("cnn", 3, 60.0) == 3
    assert choose_workers("cnn", 10, 1.0) == 1  # sooner done than started
    assert choose_workers("package.module:function", 100, 1.0) == 1
    monkeypatch.setattr(feature_module, "count_cores", lambda: 3)
    assert choose_workers("cnn", 100, 1.0) == 1
    monkeypatch.setenv(VARIABLE, "auto")
    assert choose_workers("cnn", 100, 1.0) == 1
    monkeypatch.setenv(VARIABLE, "3")
    assert choose_workers("cnn", 100, 0.0) == 3
    assert choose_workers("cnn", 2, 0.0) == 2
