"""The resident worker of a site: keeps torch, the images and the model between messages.

    python -m fedgsca.hospital.worker SITE.toml

The node (node.py) starts it as a child process, and hands it one message after the other
through a pipe; the node itself imports neither torch, MONAI nor numpy for it. The worker answers
with the same code as every engine (answers.py), and ends with the node, or after a while
without messages. One worker serves one experiment: when the terms, the settings or the data change,
it asks to be replaced, so that every experiment starts in a fresh process.

The worker may die at any moment. It is then started again and receives the same message: a site's
memory has one version per round, so the second answer has the same bytes.

    both directions   eight bytes with the length, and the bytes
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NoReturn

from fedgsca.errors import FedgscaError, UpdateError
from fedgsca.support.console import listen
from fedgsca.support.files import file_lock
from fedgsca.support.registry import restrict_imports

log = logging.getLogger(__name__)
IDLE_SECONDS = 1800.0  # without a message, after which the worker ends and frees its memory
# first byte of an answer: the answer follows; start a new worker and ask it; the problem follows
_ANSWER, _ASK_AGAIN, _PROBLEM = b"A", b"N", b"P"
_FIRST_LINE = 5.0  # seconds after which the log tells the progress of an activity
_MAX_DEATHS = 3  # of workers over one message
Handler = Callable[[bytes], bytes]  # an encoded message -> the encoded answer


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write one message."""
    pipe.write(len(message).to_bytes(8, "big"))
    pipe.write(message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """The next message. Raises EOFError if the other side is gone."""
    length = int.from_bytes(_read_exactly(pipe, 8), "big")
    return _read_exactly(pipe, length)


def _read_exactly(pipe: IO[bytes], length: int) -> bytes:
    pieces = []
    while length:
        piece = pipe.read(length)
        if not piece:
            raise EOFError("the other side has closed the pipe")
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


# ---- in the node ----


def client_of(settings: Path) -> WorkerClient:
    """The client for the worker of this site.toml."""
    command = [sys.executable, "-P", "-m", "fedgsca.hospital.worker", str(settings.resolve())]
    return WorkerClient(command)


class WorkerClient:
    """Starts a worker with `command`, and asks it."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, request: bytes) -> bytes:
        """The worker's answer to a request. A worker that dies is replaced and asked again."""
        deaths = 0
        while deaths < _MAX_DEATHS:
            process = self.start()
            assert process.stdin is not None and process.stdout is not None
            try:
                send(process.stdin, request)
                answer = receive(process.stdout)
            except (OSError, EOFError) as error:
                self.stop()
                deaths += 1
                log.warning("the site worker ended during a message: %s", error)
                continue
            if answer[:1] == _ANSWER:
                return answer[1:]
            if answer[:1] == _PROBLEM:
                problem = answer[1:].decode(errors="replace")
                raise UpdateError(
                    "site.worker-refused",
                    f"its worker process cannot answer the message: {problem}",
                    fix="install the same version of fedgsca everywhere, then restart the site",
                )
            log.info("the experiment, the settings or the data have changed: new site worker")
            self.stop()
        raise UpdateError(
            "site.worker-died",
            f"its worker process ended {_MAX_DEATHS} times over one message"
            " (out of memory, or killed)",
            fix="look for the reason in the log of the node and of the system;"
            " a smaller train.batch_size needs less memory",
        )

    def start(self) -> subprocess.Popen[bytes]:
        """The running worker; a new one if there is none, also before the first message."""
        if self.process is None or self.process.poll() is not None:
            self.stop()
            # in a session of its own: Ctrl-C is for the node, which then stops it
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            log.info("site worker started, process %d", self.process.pid)
        return self.process

    def stop(self) -> None:
        """End the worker if there is one."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # a message that was not sent
                    pipe.close()


# ---- in the worker ----


class OutdatedWorkerError(Exception):
    """The message belongs to another experiment, or the settings or data have changed."""


def serve(open_site: Callable[[], Handler], *, idle_seconds: float = IDLE_SECONDS) -> None:
    """Answer requests until none has come for a while, or until the worker is outdated.

    A thread reads the pipe, and ends the process with the node, also in the middle of a message.
    All training is in the main thread, because torch counts its threads per thread that calls it.
    `open_site` makes what answers; its imports take long, and begin before the first message.
    """
    # what libraries print goes to the log
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        requests: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
        handle = open_site()
        while True:
            try:
                request = requests.get(timeout=idle_seconds)
            except queue.Empty:
                log.info("no message for %.0f s: the site worker ends", idle_seconds)
                return
            try:
                answer = _ANSWER + handle(request)
            except OutdatedWorkerError:
                send(answers, _ASK_AGAIN)
                return
            except Exception as error:
                log.error("a request cannot be answered", exc_info=error)
                answer = _PROBLEM + type(error).__name__.encode()
            send(answers, answer)


def _read_requests(requests: queue.Queue[bytes]) -> None:
    # not sys.stdin: Python cannot close it at its end while this thread reads
    with contextlib.suppress(OSError, EOFError), os.fdopen(os.dup(0), "rb", 0) as pipe:
        while True:
            requests.put(receive(pipe))
    os._exit(0)


class ActivityLog:
    """Decoding and features take minutes at the first message: a line in the log now and then."""

    def __init__(self) -> None:
        self.next_line = _FIRST_LINE

    def on_activity(self, phase: str, position: int, total: int, seconds: float) -> None:
        """Called for every batch; lines come after 5 s, 10 s, 20 s and so on."""
        if position == 0:
            self.next_line = _FIRST_LINE
        elif seconds >= self.next_line or (position >= total and seconds >= _FIRST_LINE):
            self.next_line = 2 * seconds
            log.info("%s: %d of %d after %.0f s", phase, position, total, seconds)


def main() -> None:
    """The command line of the worker."""
    settings_path = Path(sys.argv[1])
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s site worker: %(message)s", stream=sys.stderr
    )

    def end(*_: object) -> NoReturn:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    with _own_state(settings_path), listen(ActivityLog()):
        serve(lambda: _open_site(settings_path))


@contextlib.contextmanager
def _own_state(settings_path: Path) -> Iterator[None]:
    """Whatever a message says, this process imports only the networks of its own settings.

    No other worker writes to the site's folder meanwhile: one that is ending is waited for.
    """
    from fedgsca.hospital.settings import read_settings

    restrict_imports(())
    try:
        settings = read_settings(settings_path)
    except FedgscaError:  # reported with the first message
        yield
        return
    restrict_imports(settings.networks)
    state = Path(settings.state).expanduser()
    with file_lock(state / "worker.lock"):
        yield


def _open_site(settings_path: Path) -> Handler:
    from fedgsca.hospital.answers import ResidentSite
    from fedgsca.hospital.settings import read_settings
    from fedgsca.models import build

    log.info("ready to train: %s", build.__name__)
    return ResidentSite(lambda: read_settings(settings_path)).answer


if __name__ == "__main__":
    from fedgsca.hospital import worker  # its errors are those that answers.py raises

    worker.main()
