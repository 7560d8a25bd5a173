"""Killed with SIGKILL at any point, a run that is started again ends in the same bytes as one that was never interrupted.

Two kinds of death. Processes started as a user starts them, killed from outside at a moment nobody chose. And processes that kill
themselves at one precise line (between a log line and its checkpoint, in the middle of a file), which luck would rarely hit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from toys import outcome, toy_config

from fedgsca.config import Config, to_toml
from fedgsca.engine import checkpoint
from fedgsca.engine import rounds as federation
from fedgsca.engine.local import SiteRunner
from fedgsca.experiment.run_folder import RunFolder, read_lines
from fedgsca.methods.base import load_methods
from fedgsca.site_store import Store
from fedgsca.support import files

ROOT = Path(__file__).parents[2]
# a method with private memory at its sites has the most to lose; the contract tests stop all methods between rounds
METHOD = "fedgsca"


def wait_for(condition: Callable[[], object], what: str, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.002)


def lines(folder: Path) -> int:
    return len(read_lines(folder / "metrics.jsonl"))


# ---- killed from outside ----


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    """An uninterrupted run, and its configuration."""
    config = toy_config(METHOD, train__rounds=12)
    folder = tmp_path_factory.mktemp("long") / "run"
    federation.run(config, folder)
    return config, folder


def command(log: Path, *args: str) -> subprocess.Popen[bytes]:
    """`fedgsca ARGS` as a process of its own; what it complains about goes to the log."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(log, "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "fedgsca", *args, "--quiet"],
            cwd=ROOT,
            env=environment,
            stderr=errors,
        )


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        if int(fields[1]) == pid:
            found.append(int(entry.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("jobs", "after"), [(1, 1), (1, 6), (2, 3)])
def test_a_killed_command_is_resumed(
    long: tuple[Config, Path], jobs: int, after: int, tmp_path: Path
) -> None:
    config, reference = long
    file, folder, log = tmp_path / "c.toml", tmp_path / "run", tmp_path / "log"
    file.write_text(to_toml(config))
    process = command(log, "run", "--config", str(file), "--out", str(folder), "--jobs", str(jobs))
    wait_for(lambda: lines(folder) >= after or process.poll() is not None, f"{after} rounds")
    workers = children(process.pid)
    process.kill()
    assert process.wait() == -signal.SIGKILL, log.read_text()
    assert not (folder / "result.json").exists()
    assert jobs == 1 or len(workers) >= jobs
    wait_for(
        lambda: not any(map(alive, workers)),
        "the workers to leave: they must not become orphans",
        10,
    )
    if jobs == 1:
        federation.run(config, folder)
    else:
        assert command(log, "resume", str(folder), "--jobs", str(jobs)).wait(timeout=300) == 0, (
            log.read_text()
        )
    assert outcome(folder) == outcome(reference)
    assert not list(folder.rglob("*.tmp")), "no litter"


def test_a_lost_worker_is_named_and_nothing_is_lost(
    long: tuple[Config, Path], tmp_path: Path
) -> None:
    """One of two worker processes is killed (out of memory, say): the run stops with advice, and goes on with one."""
    config, reference = long
    file, folder, log = tmp_path / "c.toml", tmp_path / "run", tmp_path / "log"
    file.write_text(to_toml(config))
    process = command(log, "run", "--config", str(file), "--out", str(folder), "--jobs", "2")
    wait_for(lambda: lines(folder) >= 2 or process.poll() is not None, "two rounds")
    trainers = [
        pid
        for pid in children(process.pid)
        if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(trainers[0], signal.SIGKILL)
    assert process.wait(timeout=120) == 1
    said = log.read_text()
    assert "worker process" in said and "fewer --jobs" in said and "Traceback" not in said
    federation.run(config, folder)
    assert outcome(folder) == outcome(reference)


# ---- killed from inside, at a precise line ----


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    config = toy_config(METHOD, frozen=True)
    folder = tmp_path_factory.mktemp("short") / "run"
    federation.run(config, folder)
    return config, folder


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def on_call(owner: object, name: str, which: int, *, before: bool) -> Callable[[], None]:
    """Arrange for this process to die at the `which`-th call of a function, before or after it did its work."""

    def arrange() -> None:
        genuine, count = getattr(owner, name), iter(range(1, 10**6))

        def deadly(*args: object, **kwargs: object) -> object:
            last = next(count) == which
            if last and before:
                die()
            result = genuine(*args, **kwargs)
            if last:
                die()
            return result

        setattr(owner, name, deadly)

    return arrange


def half_a_file(ending: str, which: int) -> Callable[[], None]:
    """Die while a file of this kind is being written: half of it is on the disk, under its temporary name."""

    def arrange() -> None:
        genuine, count = os.fsync, iter(range(1, 10**6))

        def deadly(handle: int) -> None:
            name = str(Path(f"/proc/self/fd/{handle}").readlink())
            if ending in name and name.endswith(".tmp") and next(count) == which:
                os.truncate(name, Path(name).stat().st_size // 2)
                die()
            genuine(handle)

        files.os.fsync = deadly  # type: ignore[attr-defined]

    return arrange


POINTS: dict[str, Callable[[], None]] = {
    "before anything was trained": on_call(SiteRunner, "run_round", 1, before=True),
    "after config.toml, before setup.json": half_a_file("setup.json", 1),
    "between two sites": on_call(SiteRunner, "run_round", 10, before=True),
    "after the last site of a round": on_call(SiteRunner, "run_round", 12, before=False),
    "after a site remembered, before it answered": on_call(Store, "write", 11, before=False),
    "in the middle of a site's memory": half_a_file("/store/", 6),
    "before a log line": on_call(RunFolder, "append_metrics", 3, before=True),
    "between a log line and its checkpoint": on_call(checkpoint, "save", 4, before=True),
    "in the middle of a checkpoint": half_a_file("/checkpoint/", 3),
    "right after a checkpoint": on_call(checkpoint, "save", 4, before=False),
    "after the first checkpoint": on_call(checkpoint, "save", 1, before=False),
    "after the last checkpoint, before the model": on_call(RunFolder, "finish", 1, before=True),
    "in the middle of the model": half_a_file("model.safetensors", 1),
    "between model and result": half_a_file("result.json", 1),
    "when all was done": on_call(RunFolder, "finish", 1, before=False),
}


def fork(config: Config, folder: Path, arrange: Callable[[], None]) -> int:
    """Run in a child process; the status with which it ended."""
    pid = os.fork()
    if pid == 0:
        try:
            arrange()
            federation.run(config, folder)
        finally:
            os._exit(0)  # reached only if nothing killed it
    return os.waitpid(pid, 0)[1]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(point: str, short: tuple[Config, Path], tmp_path: Path) -> None:
    config, reference = short
    assert os.WTERMSIG(fork(config, tmp_path / "run", POINTS[point])) == signal.SIGKILL
    assert (tmp_path / "run" / "result.json").exists() == (point == "when all was done")
    federation.run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(reference)
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_killed_again_and_again(short: tuple[Config, Path], tmp_path: Path) -> None:
    """Every attempt dies a little later in its second round: at each site's memory, at the log, at the checkpoint."""
    config, reference = short
    deaths = [on_call(Store, "write", n, before=n % 2 == 0) for n in (5, 6, 7, 8)] + [
        on_call(checkpoint, "save", 2, before=True)
    ]
    for arrange in deaths:
        assert os.WTERMSIG(fork(config, tmp_path / "run", arrange)) == signal.SIGKILL
    federation.run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(reference)


@pytest.fixture(params=sorted(set(load_methods()) - {METHOD}))
def other(request: pytest.FixtureRequest) -> Iterator[str]:
    yield str(request.param)


def test_every_method_survives_a_kill_between_sites(other: str, tmp_path: Path) -> None:
    """Half of the sites have finished the round and written their memory, the others have not."""
    config = toy_config(other, frozen=True)
    assert (
        os.WTERMSIG(
            fork(config, tmp_path / "killed", on_call(SiteRunner, "run_round", 15, before=True))
        )
        == signal.SIGKILL
    )
    for name in ("killed", "whole"):
        federation.run(config, tmp_path / name)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
