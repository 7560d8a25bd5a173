"""The resident worker of a site, and how a short-lived process reaches it.

    python -m fedgsca.engine.site_worker SITE.toml PROCESS

Importing torch and opening the images takes seconds. So they stay in a worker, and the process that
has a message of Flower only hands it over: it starts the worker if there is none, and imports
neither torch, MONAI nor numpy. The worker listens on a Unix socket in the site's private folder,
answers one message at a time with the same code as every engine (site_answers.py), and ends with
the process PROCESS, or after a while without messages. One worker serves one experiment: when the
terms, the settings or the data change, it asks to be replaced, so that every experiment starts in
a fresh process.

The worker may die at any moment. It is then started again and receives the same message: a site's
memory has one version per round, so the second answer has the same bytes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from fedgsca.errors import FedgscaError, UpdateError
from fedgsca.support.import_path import restrict_imports
from fedgsca.support.local_socket import (
    LocalConnection,
    MessageTooLongError,
    WrongSecretError,
    accept_client,
    connect,
    listen,
    make_private_folder,
    renew_secret,
    stop_listening,
)
from fedgsca.support.locks import file_lock, process_exists

log = logging.getLogger(__name__)
# first byte of an answer: the answer follows; start a new worker and ask it; the problem follows
ANSWER, ASK_AGAIN, PROBLEM = b"A", b"N", b"P"
_MAX_DEATHS = 3  # of workers over one message
_START_SECONDS = 120.0  # until a new worker must listen; it does so before it imports torch
_START_POLL = 0.05  # seconds
IDLE_SECONDS = 1800.0  # without a message, after which the worker ends and frees its memory
_SEND_SECONDS = 5.0  # for the last answer of a worker that ends
_WATCH_SECONDS = 1.0  # between two looks at the guardian, where the system cannot report its end


# ---- in the process of a message ----


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
    from fedgsca.engine.site_settings import read_settings  # slow to import; it reports the problem

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


# ---- in the worker ----

Handler = Callable[[bytes], bytes]  # an encoded message -> the encoded answer


class OutdatedWorkerError(Exception):
    """The message belongs to another experiment, or the settings or data have changed."""


@dataclass
class _Job:
    """A request of a client, and its answer as soon as there is one."""

    request: bytes
    answer: Future[bytes] = field(default_factory=Future)
    is_sent: threading.Event = field(default_factory=threading.Event)


class WorkerServer:
    """Accepts clients in threads; the site answers in the main thread, one request at a time.

    torch counts its threads per thread that calls it, so all training is in one thread.
    """

    def __init__(
        self,
        folder: Path,
        open_site: Callable[[], Handler],
        *,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self.folder = folder
        self.open_site = open_site
        self.idle_seconds = idle_seconds
        self.jobs: queue.Queue[_Job] = queue.Queue()

    def serve(self) -> None:
        """Serve until no message has come for a while, or until the worker is outdated."""
        with file_lock(self.folder / "worker.lock"):  # waits for a worker that is ending
            server = listen(self.folder)
            try:
                threading.Thread(target=self._accept_clients, args=(server,), daemon=True).start()
                handle = self.open_site()
                while self._serve_next(server, handle):
                    pass
            finally:
                stop_listening(server, self.folder)

    def _serve_next(self, server: socket.socket, handle: Handler) -> bool:
        """Answer the next request; False if the worker should end."""
        try:
            job = self.jobs.get(timeout=self.idle_seconds)
        except queue.Empty:
            log.info("no message for %.0f s: the site worker ends", self.idle_seconds)
            return False
        try:
            job.answer.set_result(ANSWER + handle(job.request))
        except OutdatedWorkerError:
            stop_listening(server, self.folder)  # first, so that the client starts a new one
            job.answer.set_result(ASK_AGAIN)
            job.is_sent.wait(_SEND_SECONDS)
            return False
        except Exception as error:
            log.error("a request cannot be answered", exc_info=error)
            job.answer.set_result(PROBLEM + type(error).__name__.encode())
        return True

    def _accept_clients(self, server: socket.socket) -> None:
        while True:
            try:
                channel, _ = server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve_client, args=(channel,), daemon=True).start()

    def _serve_client(self, channel: socket.socket) -> None:
        try:
            with channel, accept_client(channel, self.folder) as connection:
                self._answer_requests(connection)
        except WrongSecretError as error:
            log.warning("a program was refused: %s", error)
        except MessageTooLongError as error:
            log.warning("a message was refused: %s", error)
        except OSError as error:
            log.debug("a client is gone: %s", error)

    def _answer_requests(self, connection: LocalConnection) -> None:
        while True:
            job = _Job(connection.receive())
            self.jobs.put(job)
            connection.send(job.answer.result())
            job.is_sent.set()


# ---- the process ----


def end_with(process_id: int) -> None:
    """End this process when the other one has ended: the worker belongs to a running site."""

    def watch() -> None:
        try:
            handle = os.pidfd_open(process_id)
        except (AttributeError, OSError):
            while process_exists(process_id):
                time.sleep(_WATCH_SECONDS)
        else:
            import select

            select.select([handle], [], [])  # readable when the process has ended
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _restrict_imports(settings_path: Path) -> None:
    """Whatever a message says, this process imports only the networks of its own settings."""
    from fedgsca.engine.site_settings import read_settings

    networks: tuple[str, ...] = ()
    with contextlib.suppress(FedgscaError):  # reported with the first message
        networks = read_settings(settings_path).networks
    restrict_imports(networks)


def main() -> None:
    """The command line of the worker."""
    settings_path, guardian = Path(sys.argv[1]), int(sys.argv[2])
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s site worker: %(message)s", stream=sys.stderr
    )

    def end(*_: object) -> NoReturn:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    end_with(guardian)
    _restrict_imports(settings_path)
    WorkerServer(worker_folder(state_of(settings_path)), lambda: _open_site(settings_path)).serve()


def _open_site(settings_path: Path) -> Handler:
    """What answers messages; its imports take long, and begin before the first message comes."""
    from fedgsca.engine.site_answers import ResidentSite
    from fedgsca.models import initial

    log.info("ready to train: %s", initial.__name__)
    return ResidentSite(settings_path).answer


if __name__ == "__main__":
    from fedgsca.engine import site_worker  # its errors are those that site_answers.py raises

    site_worker.main()
