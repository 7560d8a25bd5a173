"""The example that a consortium copies, completely, in real processes. Slow: minutes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedgsca.federation.run_folder import read_lines

pytest.importorskip("flwr")
pytest.importorskip("efficientnet_lite_pytorch")

ROOT = Path(__file__).parents[2]
NAMES = ("berlin", "lyon", "turin")
TIME_LIMIT = 1500.0  # seconds on a busy machine


@contextlib.contextmanager
def example(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The running example. Whatever the test does, its processes are gone afterwards."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with open(folder.with_suffix(".txt"), "w") as output:
        command = [
            sys.executable,
            str(ROOT / "examples/three_hospitals/run.py"),
            str(folder),
            *arguments,
        ]
        child = subprocess.Popen(
            command, stdout=output, stderr=output, text=True, env=env, start_new_session=True
        )
    try:
        yield child
    finally:
        child.kill()  # a no-op if it has ended
        child.wait()
        end = time.monotonic() + 30
        while example_processes(folder) and time.monotonic() < end:
            time.sleep(0.5)
        for number in example_processes(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def example_processes(folder: Path) -> list[int]:
    """Processes with this folder in their environment: all that the kits' scripts start."""
    process_ids = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"FLWR_HOME={folder}/".encode() in entry.read_bytes():
                process_ids.append(int(entry.parent.name))
    return process_ids


def wait_until(
    condition: Callable[[], bool], child: subprocess.Popen[str], seconds: float = TIME_LIMIT
) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end and child.poll() is None, (
            "the example has ended, or takes too long"
        )
        time.sleep(0.2)


@pytest.mark.slow
def test_it_trains_loses_a_hospital_gets_it_back_and_audits(tmp_path: Path) -> None:
    folder = tmp_path / "three"
    run = folder / "kits/coordinator/run"
    with example(folder) as child:
        code = child.wait(TIME_LIMIT)
        output = folder.with_suffix(".txt").read_text()
        assert code == 0, output
        assert example_processes(folder) == []
    lines = read_lines(run / "metrics.jsonl")
    assert len(lines) == 40 and (run / "report.html").exists() and (run / "result.json").exists()
    absences = [line["round"] for line in lines if "lyon" not in line["sites"]]
    assert absences
    assert any("lyon" in line["sites"] for line in lines if line["round"] > absences[-1])
    assert all({"berlin", "turin"} <= set(line["sites"]) for line in lines)
    for text in ("lyon is killed", "lyon is back", "none has evidence"):
        assert text in output
    for name in NAMES:
        state = folder / "hospitals" / name / "state"
        assert len(list(state.glob(f"*/audit/{name}/audit.csv"))) == 1
    assert not list((folder / "kits/coordinator").rglob("audit*"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_behind_when_it_is_interrupted(kind: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "three"
    with example(folder) as child:
        wait_until(
            lambda: len(example_processes(folder)) >= 5, child
        )  # SuperLink with its SuperExec, and hospitals
        child.send_signal(kind)
        assert child.wait(60) == (130 if kind is signal.SIGINT else -signal.SIGKILL)
        end = time.monotonic() + 60
        while example_processes(folder) and time.monotonic() < end:
            time.sleep(0.5)
        assert example_processes(folder) == []


def test_obstacles_are_reported_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with example(tmp_path / "taken") as child:
        assert (
            child.wait(60) == 1 and "taken exists already" in (tmp_path / "taken.txt").read_text()
        )
    with (
        socket.create_server(("127.0.0.1", 0)) as busy,
        example(tmp_path / "new", "--port", str(busy.getsockname()[1])) as child,
    ):
        assert child.wait(60) == 1 and "is in use" in (tmp_path / "new.txt").read_text()
    assert not (tmp_path / "new").exists()
