"""How a short-lived process reaches the resident site worker, and starts it if necessary.

Flower starts a Python process for each message. Importing torch and opening the images there would
cost seconds per message; so they stay in a worker (site_worker.py), and the process only hands the
message over. Nothing here imports torch, MONAI or numpy.

The worker may die at any moment. It is then started again and receives the same message: a site's
memory has one version per round, so the second answer has the same bytes.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from fedgsca.errors import UpdateError
from fedgsca.support.files import file_lock
from fedgsca.support.local_socket import (
    LocalConnection,
    MessageTooLongError,
    WrongSecretError,
    connect,
    make_private_folder,
    renew_secret,
)

log = logging.getLogger(__name__)
# first byte of an answer: the answer follows; start a new worker and ask it; the problem follows
ANSWER, ASK_AGAIN, PROBLEM = b"A", b"N", b"P"
_MAX_DEATHS = 3  # of workers over one message
_START_SECONDS = 120.0  # until a new worker must listen; it does so before it imports torch
_START_POLL = 0.05  # seconds


def worker_folder(state: Path) -> Path:
    """Where the worker of a site has its socket and its secret."""
    return state / "worker"


def state_of(settings: Path) -> Path:
    """The folder `state` of a site.toml; the worker checks the rest of the file."""
    try:
        state = tomllib.loads(settings.read_text("utf-8"))["state"]
        if isinstance(state, str):
            return Path(state).expanduser()
    except (OSError, ValueError, KeyError):
        pass
    from fedgsca.engine.site_node import read_settings  # slow to import; it reports the problem

    return Path(read_settings(settings).state).expanduser()


def client_of(settings: Path, guardian: int) -> WorkerClient:
    """The client for the worker of this site.toml, which ends when the process `guardian` ends."""
    settings = settings.resolve()
    command = [sys.executable, "-P", "-m", "fedgsca.engine.site_worker", str(settings)]
    return WorkerClient(worker_folder(state_of(settings)), [*command, str(guardian)])


class WorkerClient:
    """Asks the worker that listens in `folder`; starts it with `command`."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self.folder = folder
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None  # if this client has started it

    def ask(self, request: bytes) -> bytes:
        """The worker's answer to a request. A worker that dies is replaced and asked again."""
        deaths = 0
        while deaths < _MAX_DEATHS:
            try:
                with self._connect_or_start() as connection:
                    connection.send(request)
                    answer = connection.receive()
            except MessageTooLongError as error:
                raise UpdateError(
                    "site.message-too-long",
                    f"a message is too long for its worker process: {error}",
                    fix="use a smaller model",
                ) from None
            except (ConnectionError, TimeoutError) as error:
                deaths += 1
                log.warning("the site worker ended during a message (%s)", error)
                continue
            if answer[:1] == ANSWER:
                return answer[1:]
            if answer[:1] == PROBLEM:
                problem = answer[1:].decode(errors="replace")
                raise UpdateError(
                    "site.worker-refused",
                    f"its worker process cannot answer the message: {problem}",
                    fix="install the same version of fedgsca everywhere, then restart the site",
                )
            log.info("the experiment, the settings or the data have changed: new site worker")
        raise UpdateError(
            "site.worker-died",
            f"its worker process ended {_MAX_DEATHS} times over one message"
            " (out of memory, or killed)",
            fix="look for the reason in the log of the SuperNode and of the system;"
            " a smaller train.batch_size needs less memory",
        )

    def start(self) -> None:
        """Start the worker if none is running, so that the first message need not wait for it."""
        self._connect_or_start().close()

    def stop(self) -> None:
        """End the worker if this client has started it."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _connect_or_start(self) -> LocalConnection:
        connection = self._try_connect()
        if connection is not None:
            return connection
        make_private_folder(self.folder)
        with file_lock(self.folder / "start.lock"):
            connection = self._try_connect()  # another process may have started one meanwhile
            return connection or self._start()

    def _try_connect(self) -> LocalConnection | None:
        try:
            return connect(self.folder)
        except WrongSecretError as error:
            raise UpdateError(
                "site.wrong-secret",
                f"its worker process has another secret ({error})",
                fix=f"stop the site, delete {self.folder} and start the site again",
            ) from None
        except (FileNotFoundError, ConnectionError):
            return None

    def _start(self) -> LocalConnection:
        if self.process is not None:
            self.process.poll()  # leave no zombie
        renew_secret(self.folder)
        # in a session of its own: it survives the process of the message that started it
        process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, start_new_session=True)
        self.process = process
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            connection = self._try_connect()
            if connection is not None:
                log.info("site worker started, process %d", process.pid)
                return connection
            time.sleep(_START_POLL)
        ending = "does not answer" if process.poll() is None else f"ended ({process.returncode})"
        process.kill()
        process.wait()
        raise UpdateError(
            "site.worker-not-started",
            f"its worker process {ending} at its start",
            fix="read the log of the SuperNode; if another worker of this site is running, stop it",
        )


def parent_process() -> int:
    """For an app of Flower: the process that starts one process per message, and outlives it."""
    return os.getppid()
