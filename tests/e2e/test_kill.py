"""Killed with SIGKILL at any point, a run that is started again ends in the same bytes.

Two kinds of death: processes started as a user starts them, killed from outside at a random moment;
and processes that kill themselves at one precise line (between a log line and its checkpoint, in
the middle of a file), which chance would rarely hit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgsca.config import Config, to_toml
from fedgsca.federation import checkpoint
from fedgsca.federation.local import SiteRunner
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import RunFolder, read_rounds
from fedgsca.methods.site_store import Store
from fedgsca.support import files
from tests.toys import finished_run, outcome, toy_config

ROOT = Path(__file__).parents[2]
# a method with private memory at its sites has the most to lose; the contract tests stop all
# methods between rounds, and when sites have stored the memory of a round that does not count
METHOD = "fedgsca"


def wait_for(condition: Callable[[], object], purpose: str, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {purpose}"
        time.sleep(0.002)


# ---- killed from outside ----


@pytest.fixture(scope="module")
def long_run() -> tuple[Config, Path]:
    """The configuration and the folder of an uninterrupted run."""
    config = toy_config(METHOD, train__rounds=12)
    return config, finished_run(config)


def start_command(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """`fedgsca ARGUMENTS` as a process of its own; its errors go to the log."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(log, "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "fedgsca", *arguments, "--quiet"],
            cwd=ROOT,
            env=environment,
            stderr=errors,
        )


def wait_for_rounds(process: subprocess.Popen[bytes], folder: Path, rounds: int) -> None:
    """Until the run has finished so many rounds, or has ended."""

    log = folder / "metrics.jsonl"

    def is_over() -> bool:
        # counts lines: parsing them every few milliseconds would slow the run down
        num_lines = log.read_bytes().count(b"\n") if log.exists() else 0
        return num_lines >= rounds or process.poll() is not None

    wait_for(is_over, f"{rounds} rounds")


def stop_run(
    config: Config, tmp_path: Path, jobs: int, rounds: int
) -> tuple[subprocess.Popen[bytes], Path]:
    """A `fedgsca run` that is stopped (SIGSTOP) after so many rounds or a few more; its folder.

    On a busy machine a short run may end before this process gets to stop it: then once more.
    """
    file = tmp_path / "c.toml"
    file.write_text(to_toml(config))
    for attempt in range(5):
        folder = tmp_path / f"run-{attempt}"
        places = ("--config", str(file), "--out", str(folder))
        process = start_command(tmp_path / "log", "run", *places, "--jobs", str(jobs))
        wait_for_rounds(process, folder, rounds)
        process.send_signal(signal.SIGSTOP)
        if len(read_rounds(folder)) < config.train.rounds:
            return process, folder
        process.kill()
        assert process.wait() in (0, -signal.SIGKILL), (tmp_path / "log").read_text()
    raise AssertionError("every run ended before it was stopped")


def children(parent_id: int) -> list[int]:
    """Ids of the processes that this one started."""
    process_ids = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == parent_id:
            process_ids.append(int(entry.parent.name))
    return process_ids


def is_alive(process_id: int) -> bool:
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(("jobs", "rounds"), [(1, 3), (2, 3)])
def test_a_killed_command_is_resumed(
    long_run: tuple[Config, Path], jobs: int, rounds: int, tmp_path: Path, cheap_processes: None
) -> None:
    config, reference = long_run
    log = tmp_path / "log"
    process, folder = stop_run(config, tmp_path, jobs, rounds)
    workers = children(process.pid)
    process.kill()
    assert process.wait() == -signal.SIGKILL, log.read_text()
    assert not (folder / "result.json").exists()
    assert jobs == 1 or len(workers) >= jobs
    wait_for(lambda: not any(map(is_alive, workers)), "the workers to exit: no orphans")
    run(config, folder, jobs=jobs)
    assert outcome(folder) == outcome(reference)
    assert not list(folder.rglob("*.tmp")), "no temporary files are left"


def test_a_lost_worker_is_named_and_nothing_is_lost(
    long_run: tuple[Config, Path], tmp_path: Path
) -> None:
    """One of two workers is killed (out of memory, say): the run stops and can be resumed."""
    config, reference = long_run
    process, folder = stop_run(config, tmp_path, jobs=2, rounds=2)
    workers = []
    for process_id in children(process.pid):
        if "spawn_main" in Path(f"/proc/{process_id}/cmdline").read_text():
            workers.append(process_id)
    os.kill(workers[0], signal.SIGKILL)
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=240) == 1
    text = (tmp_path / "log").read_text()
    assert "site.worker-lost" in text
    assert "fewer --jobs" in text
    assert "Traceback" not in text
    run(config, folder)
    assert outcome(folder) == outcome(reference)


# ---- killed from inside, at a precise line ----


@pytest.fixture(scope="module")
def short_run() -> tuple[Config, Path]:
    """The configuration and the folder of an uninterrupted run."""
    config = toy_config(METHOD, frozen=True)
    return config, finished_run(config)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(owner: object, name: str, number: int, *, before: bool) -> Callable[[], None]:
    """Let this process die at the `number`-th call of a function, before or after its work."""

    def arrange() -> None:
        genuine, calls = getattr(owner, name), iter(range(1, 10**6))

        def deadly(*args: object, **kwargs: object) -> object:
            is_last = next(calls) == number
            if is_last and before:
                die()
            result = genuine(*args, **kwargs)
            if is_last:
                die()
            return result

        setattr(owner, name, deadly)

    return arrange


def in_file(part: str, number: int) -> Callable[[], None]:
    """Die while the `number`-th file of this kind is written: half of it is on the disk."""

    def arrange() -> None:
        genuine, calls = os.fsync, iter(range(1, 10**6))

        def deadly(handle: int) -> None:
            name = str(Path(f"/proc/self/fd/{handle}").readlink())
            if part in name and name.endswith(".tmp") and next(calls) == number:
                os.truncate(name, Path(name).stat().st_size // 2)
                die()
            genuine(handle)

        files.os.fsync = deadly  # type: ignore[attr-defined]

    return arrange


POINTS: dict[str, Callable[[], None]] = {
    "before any training": at_call(SiteRunner, "run_round", 1, before=True),
    "after config.toml, before setup.json": in_file("setup.json", 1),
    "between two sites": at_call(SiteRunner, "run_round", 10, before=True),
    "after the last site of a round": at_call(SiteRunner, "run_round", 12, before=False),
    "after a site stored its memory, before it answered": at_call(Store, "write", 11, before=False),
    "in the middle of a site's memory": in_file("/store/", 6),
    "when a part of a round's memory has appeared": at_call(files, "_rename", 14, before=True),
    "before surplus memory is deleted": at_call(files, "_remove_all", 5, before=True),
    "before a log line": at_call(RunFolder, "append", 5, before=True),
    "between a log line and its checkpoint": at_call(checkpoint, "save", 4, before=True),
    "in the middle of a checkpoint": in_file("/checkpoint/", 3),
    "right after a checkpoint": at_call(checkpoint, "save", 4, before=False),
    "after the first checkpoint": at_call(checkpoint, "save", 1, before=False),
    "after the last checkpoint, before the model": at_call(RunFolder, "finish", 1, before=True),
    "in the middle of the model": in_file("model.safetensors", 1),
    "between model and result": in_file("result.json", 1),
    "at the end": at_call(RunFolder, "finish", 1, before=False),
}


def run_in_fork(config: Config, folder: Path, arrange: Callable[[], None]) -> int:
    """Run in a child process; returns the signal that ended it, or 0."""
    process_id = os.fork()
    if process_id == 0:
        try:
            arrange()
            run(config, folder)
        finally:
            os._exit(0)  # reached only if nothing killed it
    return os.WTERMSIG(os.waitpid(process_id, 0)[1])


@pytest.mark.parametrize("point", POINTS)
def test_killed(point: str, short_run: tuple[Config, Path], tmp_path: Path) -> None:
    config, reference = short_run
    folder = tmp_path / "run"
    assert run_in_fork(config, folder, POINTS[point]) == signal.SIGKILL
    assert (folder / "result.json").exists() == (point == "at the end")
    run(config, folder)
    assert outcome(folder) == outcome(reference)
    assert not list(folder.rglob("*.tmp"))


def test_killed_repeatedly(short_run: tuple[Config, Path], tmp_path: Path) -> None:
    """Every attempt dies a little later in its second round: memory, log, checkpoint."""
    config, reference = short_run
    deaths = [at_call(Store, "write", number, before=number % 2 == 0) for number in (5, 6, 7, 8)]
    deaths.append(at_call(checkpoint, "save", 2, before=True))
    for arrange in deaths:
        assert run_in_fork(config, tmp_path / "run", arrange) == signal.SIGKILL
    run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(reference)
