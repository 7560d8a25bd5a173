"""The programs of all parties on one machine. On machines of their own systemd does this, with the units of the kits."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgsca.experiment.run_folder import read_lines

PAUSE = 10.0  # seconds before a hospital that ended is started again
_PARENT_DIED = 1  # prctl's PR_SET_PDEATHSIG


class Failed(Exception):
    """One message for the person at the terminal."""


class Parties:
    """Starts, watches and ends. All processes are of this folder: FLWR_HOME, which the kits' scripts set, says so."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.end = folder, time.monotonic() + seconds
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.nodes: dict[str, Callable[[], None]] = {}  # hospital -> start it once more
        self.asleep: set[str] = set()  # hospitals that nobody starts again for now
        self.tried = 0.0

    def script(self, path: Path) -> list[str]:
        """What one of the kits' scripts says, line by line."""
        made = subprocess.run(
            [path],
            env=self._env({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_end_with_me,
        )
        if made.returncode:
            raise Failed(f"{path} has failed:\n{made.stdout}")
        return made.stdout.splitlines()

    def start(self, name: str, path: Path, **env: str) -> None:
        with open(self._log(name), "ab") as log:
            self.running[name] = subprocess.Popen(
                [path], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env(env),
                start_new_session=True, preexec_fn=_end_with_me,
            )  # fmt: skip

    def hospital(self, name: str, path: Path, **env: str) -> None:
        """A SuperNode that is started again whenever it ends."""
        self.nodes[name] = lambda: self.start(name, path, **env)
        self.nodes[name]()

    def kill(self, name: str) -> None:
        """As a power cut does it: the SuperNode and all that it has started are gone at once, and stay away until wake()."""
        self.asleep.add(name)
        os.killpg(self.running[name].pid, signal.SIGKILL)
        self.running[name].wait()

    def wake(self, name: str) -> None:
        self.asleep.discard(name)
        self.nodes[name]()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        while not condition():
            if time.monotonic() > self.end:
                raise Failed(f"gave up waiting: {what}; the logs are in {self.folder}")
            for name, process in self.running.items():
                if name not in self.nodes and process.poll() is not None and not condition():
                    raise Failed(
                        f"{name} has ended while waiting: {what}; its last words:\n{self._last_words(name)}"
                    )
            if time.monotonic() > self.tried + PAUSE:
                for name, again in self.nodes.items():
                    if self.running[name].poll() is not None and name not in self.asleep:
                        self.tried = time.monotonic()
                        again()
            time.sleep(0.5)

    def rounds(self, run: Path, count: int) -> Iterator[dict[str, Any]]:
        """Each round of the log as soon as it is there."""
        log = run / "metrics.jsonl"
        told = 0

        def more() -> bool:
            return log.exists() and len(read_lines(log)) > told

        while told < count:
            self.until(f"round {told + 1}", more)
            yield read_lines(log)[told]
            told += 1

    def close(self) -> None:
        """Whatever happened: politely first, then by force. Ctrl-C does not stop the tidying up."""
        before = {
            kind: signal.signal(kind, signal.SIG_IGN)
            for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        for process in reversed(self.running.values()):
            process.terminate()
        end = time.monotonic() + 20
        while self.left() and time.monotonic() < end:
            time.sleep(0.2)
        for number in self.left():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        for process in self.running.values():
            process.wait()
        for kind, handler in before.items():  # what comes after can be stopped again
            signal.signal(kind, handler)

    def left(self) -> list[int]:
        """Processes of this folder that still run, those that Flower put into sessions of their own among them."""
        for process in self.running.values():
            process.poll()
        return processes_of(self.folder)

    def _env(self, env: dict[str, str]) -> dict[str, str]:
        return {**os.environ, "FEDGSCA_PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **env}

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        return "\n".join(self._log(name).read_text(errors="replace").splitlines()[-15:])


def processes_of(folder: Path) -> list[int]:
    found, mark = [], f"FLWR_HOME={folder}/".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if any(word.startswith(mark) for word in entry.read_bytes().split(b"\0")):
                found.append(int(entry.parent.name))
    return found


def _end_with_me() -> None:
    """In the new process, before it becomes the program: Linux ends it when this one dies, even of kill -9."""
    ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGTERM)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
