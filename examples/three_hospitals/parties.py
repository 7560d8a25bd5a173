"""The programs of all parties on one machine.

On machines of their own, systemd does this with the units of the kits.
"""

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
from functools import partial
from pathlib import Path

from fedgsca.federation.records import RoundRecord
from fedgsca.federation.run_folder import read_rounds

RESTART_PAUSE = 10.0  # seconds before a hospital that ended is started again
_PR_SET_PDEATHSIG = 1  # of prctl


class ExampleError(Exception):
    """One message for the person at the terminal."""


class Parties:
    """Starts, watches and ends processes.

    The processes of this folder are recognised by FLWR_HOME, which the kits' scripts set.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.end = time.monotonic() + seconds
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        # hospital -> start it once more
        self.starters: dict[str, Callable[[], None]] = {}
        # hospitals that are not restarted for now
        self.stopped_hospitals: set[str] = set()
        self.last_restart = 0.0

    def run_script(self, path: Path, *options: str) -> list[str]:
        """Run one of the kits' scripts to its end; returns its output, line by line."""
        process = subprocess.run(
            [path, *options],
            env=self._environment({}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            preexec_fn=_end_with_parent,
        )
        if process.returncode:
            raise ExampleError(f"{path} has failed:\n{process.stdout}")
        return process.stdout.splitlines()

    def start(self, name: str, path: Path, **environment: str) -> None:
        """Start one of the kits' scripts in the background, with a log."""
        with open(self._log(name), "ab") as log:
            self.processes[name] = subprocess.Popen(
                [path],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(environment),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def start_hospital(self, name: str, path: Path, **environment: str) -> None:
        """Start a SuperNode that is started again whenever it ends."""
        self.starters[name] = lambda: self.start(name, path, **environment)
        self.starters[name]()

    def kill_hospital(self, name: str) -> None:
        """Like a power cut: the SuperNode and its children are gone until restart_hospital()."""
        self.stopped_hospitals.add(name)
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def restart_hospital(self, name: str) -> None:
        """Start a hospital that was killed."""
        self.stopped_hospitals.discard(name)
        self.starters[name]()

    def wait_until(self, event: str, condition: Callable[[], bool]) -> None:
        """Wait, restart hospitals that ended, and fail if another program ends."""
        while not condition():
            if time.monotonic() > self.end:
                raise ExampleError(f"gave up waiting for {event}; the logs are in {self.folder}")
            for name, process in self.processes.items():
                if name not in self.starters and process.poll() is not None and not condition():
                    raise ExampleError(
                        f"{name} has ended while waiting for {event}; its last output:\n"
                        f"{self._last_output(name)}"
                    )
            if time.monotonic() > self.last_restart + RESTART_PAUSE:
                self._restart_ended_hospitals()
            time.sleep(0.5)

    def _restart_ended_hospitals(self) -> None:
        for name, starter in self.starters.items():
            has_ended = self.processes[name].poll() is not None
            if has_ended and name not in self.stopped_hospitals:
                self.last_restart = time.monotonic()
                starter()

    def rounds(self, run: Path, count: int) -> Iterator[RoundRecord]:
        """Each round of the log as soon as it is complete."""
        for index in range(count):
            self.wait_until(f"round {index + 1}", partial(_has_round, run, index))
            yield read_rounds(run)[index]

    def close(self) -> None:
        """End all processes, first politely, then by force. Ctrl-C does not stop this."""
        handlers = {}
        for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handlers[kind] = signal.signal(kind, signal.SIG_IGN)
        for process in reversed(self.processes.values()):
            process.terminate()
        end = time.monotonic() + 20
        while self.remaining_processes() and time.monotonic() < end:
            time.sleep(0.2)
        for number in self.remaining_processes():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        for kind, handler in handlers.items():  # what comes after can be stopped again
            signal.signal(kind, handler)

    def remaining_processes(self) -> list[int]:
        """Process ids of this folder, including those that Flower put into their own sessions."""
        for process in self.processes.values():
            process.poll()
        return find_processes(self.folder)

    def _environment(self, environment: dict[str, str]) -> dict[str, str]:
        common = {"FEDGSCA_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
        return {**os.environ, **common, **environment}

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _last_output(self, name: str) -> str:
        return "\n".join(self._log(name).read_text(errors="replace").splitlines()[-15:])


def _has_round(run: Path, index: int) -> bool:
    return (run / "metrics.jsonl").exists() and len(read_rounds(run)) > index


def find_processes(folder: Path) -> list[int]:
    """Ids of the processes whose FLWR_HOME is below this folder."""
    process_ids = []
    prefix = f"FLWR_HOME={folder}/".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if any(word.startswith(prefix) for word in entry.read_bytes().split(b"\0")):
                process_ids.append(int(entry.parent.name))
    return process_ids


def _end_with_parent() -> None:
    """In the new process, before it becomes the program: Linux ends it when the parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    """Whether a program on this machine listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
