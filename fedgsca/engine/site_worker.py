"""The resident worker of a site: keeps torch, the images and the model between messages.

    python -m fedgsca.engine.site_worker SITE.toml PROCESS

It is started by worker_client.py, listens on a Unix socket in the site's private folder, answers
one message at a time with the same code as every engine (site_node.py), and ends with the process
PROCESS, or after a while without messages. One worker serves one experiment: when the terms, the
settings or the data change, it asks to be replaced, so that every experiment starts in a fresh
process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fedgsca.engine.worker_client import ANSWER, ASK_AGAIN, PROBLEM, state_of, worker_folder
from fedgsca.errors import FedgscaError
from fedgsca.support.files import file_lock, process_exists
from fedgsca.support.local_socket import (
    LocalConnection,
    MessageTooLongError,
    WrongSecretError,
    accept_client,
    listen,
    stop_listening,
)
from fedgsca.support.registry import restrict_imports

if TYPE_CHECKING:
    from fedgsca.engine.base import Reply
    from fedgsca.engine.site_node import MessageKind, SiteSettings, Terms
    from fedgsca.wire import Payload

log = logging.getLogger(__name__)
IDLE_SECONDS = 1800.0  # without a message, after which the worker ends and frees its memory
_SEND_SECONDS = 5.0  # for the last answer of a worker that ends
_WATCH_SECONDS = 1.0  # between two looks at the guardian, where the system cannot report its end


class OutdatedWorkerError(Exception):
    """The message belongs to another experiment, or the settings or data have changed."""


@dataclass
class _Job:
    """A request of a client, and its answer as soon as there is one."""

    request: bytes
    answer: Future[bytes] = field(default_factory=Future)
    is_sent: threading.Event = field(default_factory=threading.Event)


class WorkerServer:
    """Accepts clients in threads; `handle` is called in the main thread, one request at a time.

    torch counts its threads per thread that calls it, so all training is in one thread.
    """

    def __init__(
        self,
        folder: Path,
        handle: Callable[[bytes], bytes],
        *,
        prepare: Callable[[], object] | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self.folder = folder
        self.handle = handle
        self.prepare = prepare
        self.idle_seconds = idle_seconds
        self.jobs: queue.Queue[_Job] = queue.Queue()

    def serve(self) -> None:
        """Serve until no message has come for a while, or until the worker is outdated."""
        with file_lock(self.folder / "worker.lock"):  # waits for a worker that is ending
            server = listen(self.folder)
            try:
                threading.Thread(target=self._accept_clients, args=(server,), daemon=True).start()
                if self.prepare is not None:
                    self.prepare()
                while self._serve_next(server):
                    pass
            finally:
                stop_listening(server, self.folder)

    def _serve_next(self, server: socket.socket) -> bool:
        """Answer the next request; False if the worker should end."""
        try:
            job = self.jobs.get(timeout=self.idle_seconds)
        except queue.Empty:
            log.info("no message for %.0f s: the site worker ends", self.idle_seconds)
            return False
        try:
            job.answer.set_result(ANSWER + self.handle(job.request))
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


# ---- the site's answers ----


class ResidentSite:
    """Answers the messages of one experiment for the site of a site.toml."""

    def __init__(self, settings_path: Path) -> None:
        self.settings_path = settings_path
        self.identity: str | None = None  # of the experiment, once a message has come

    def prepare(self) -> None:
        """Import what takes long before the first message comes."""
        from fedgsca.engine import site_node
        from fedgsca.models import build

        log.info("ready: %s, %s", site_node.__name__, build.__name__)

    def answer(self, request: bytes) -> bytes:
        """The reply to an encoded message, encoded. Errors of the site are reasons in the reply."""
        from fedgsca.engine.site_node import reply_header
        from fedgsca.wire import Payload, Update, pack, unpack

        header, (weights, extras) = unpack(request, ("weights", "extras"))
        kind: Any = header["kind"]
        payload = Payload(int(str(header["round"])), weights, extras)
        start = time.perf_counter()
        reply = self._reply(kind, header["terms"], payload)
        seconds = time.perf_counter() - start
        log.info("%s of round %d took %.2f s", kind, payload.round + 1, seconds)
        update = reply.update or Update(reply.site, 0, {})
        reply_tree = reply_header(kind, payload.round, reply)
        return pack(reply_tree, weights=update.weights, extras=update.extras)

    def _reply(self, kind: MessageKind, terms_tree: Any, payload: Payload) -> Reply:
        from fedgsca.engine.base import Reply
        from fedgsca.engine.site_node import (
            SitePlace,
            Terms,
            answer,
            public_reason,
            read_settings,
            state_folder,
        )

        terms = Terms.from_json(terms_tree)
        try:
            settings = read_settings(self.settings_path)
            self._check_identity(terms, settings)
            place = SitePlace(settings, state_folder(settings, terms.fingerprint))
        except OutdatedWorkerError:
            raise
        except Exception as error:
            log.error("this site's settings cannot be used: %s", error)
            return Reply("", None, public_reason(error))
        return answer(kind, terms, payload, place)

    def _check_identity(self, terms: Terms, settings: SiteSettings) -> None:
        sources = [settings.data, settings.labels, settings.weights]
        if settings.data is None:  # a rehearsal: the source of the configuration is shared
            data = terms.config.get("data")
            sources.append(str(data.get("source")) if isinstance(data, dict) else None)
        stamps = [source_stamp(source) for source in sources]
        identity = json.dumps([terms.to_json(), settings.model_dump(), stamps], sort_keys=True)
        if self.identity not in (None, identity):
            raise OutdatedWorkerError
        self.identity = identity


def source_stamp(source: str | None) -> str:
    """A digest of the names, sizes and times of all files of a data source; no file is read."""
    if source is None:
        return ""
    sha = hashlib.sha256()
    for text in (source, source.partition(":")[2]):
        root = Path(text).expanduser()
        if text and root.exists():
            for path in _files_below(root):
                status = path.stat(follow_symlinks=True)
                sha.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return sha.hexdigest()


def _files_below(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.exists():
                yield path


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
    from fedgsca.engine.site_node import read_settings

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
    site = ResidentSite(settings_path)
    _restrict_imports(settings_path)
    folder = worker_folder(state_of(settings_path))
    WorkerServer(folder, site.answer, prepare=site.prepare).serve()


if __name__ == "__main__":
    main()
