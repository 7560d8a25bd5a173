"""The example that a consortium copies, from its first line to its last, in real processes. Slow: minutes."""

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

from fedgsca.experiment.run_folder import read_lines

pytest.importorskip("flwr")
pytest.importorskip("efficientnet_lite_pytorch")

ROOT = Path(__file__).parents[2]
NAMES = ("berlin", "lyon", "turin")
LONG = 1500.0  # seconds on a busy machine


@contextlib.contextmanager
def example(folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """The running example. Whatever the test does, its processes are gone afterwards."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with open(folder.with_suffix(".txt"), "w") as said:
        command = [
            sys.executable,
            str(ROOT / "examples/three_hospitals/run.py"),
            str(folder),
            *more,
        ]
        child = subprocess.Popen(
            command, stdout=said, stderr=said, text=True, env=env, start_new_session=True
        )
    try:
        yield child
    finally:
        child.kill()  # a no-op if it has ended
        child.wait()
        end = time.monotonic() + 30
        while left(folder) and time.monotonic() < end:
            time.sleep(0.5)
        for number in left(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def left(folder: Path) -> list[int]:
    """Processes with this folder in their environment: all that the kits' scripts start."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"FLWR_HOME={folder}/".encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


def until(
    condition: Callable[[], bool], child: subprocess.Popen[str], seconds: float = LONG
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
        code = child.wait(LONG)
        said = folder.with_suffix(".txt").read_text()
        assert code == 0, said
        assert left(folder) == []
    lines = read_lines(run / "metrics.jsonl")
    assert len(lines) == 10 and (run / "report.html").exists() and (run / "result.json").exists()
    without = [line["round"] for line in lines if "lyon" not in line["sites"]]
    assert without and any("lyon" in line["sites"] for line in lines if line["round"] > without[-1])
    assert all({"berlin", "turin"} <= set(line["sites"]) for line in lines)
    assert "lyon is killed" in said and "lyon is back" in said and "none has evidence" in said
    lists = {
        name: list((folder / "hospitals" / name / "state").glob(f"*/audit/{name}/audit.csv"))
        for name in NAMES
    }
    assert all(len(found) == 1 for found in lists.values())
    assert not list((folder / "kits/coordinator").rglob("audit*"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_behind_when_it_is_interrupted(kind: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "three"
    with example(folder) as child:
        until(lambda: len(left(folder)) >= 5, child)  # SuperLink with its SuperExec, and hospitals
        child.send_signal(kind)
        assert child.wait(60) == (130 if kind is signal.SIGINT else -signal.SIGKILL)
        end = time.monotonic() + 60
        while left(folder) and time.monotonic() < end:
            time.sleep(0.5)
        assert left(folder) == []


def test_what_is_in_the_way_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with example(tmp_path / "taken") as child:
        assert child.wait(60) == 1 and "taken exists" in (tmp_path / "taken.txt").read_text()
    with (
        socket.create_server(("127.0.0.1", 0)) as busy,
        example(tmp_path / "new", "--port", str(busy.getsockname()[1])) as child,
    ):
        assert child.wait(60) == 1 and "is taken" in (tmp_path / "new.txt").read_text()
    assert not (tmp_path / "new").exists()
