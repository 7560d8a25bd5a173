"""Sites in worker processes on this machine.

Results do not depend on the number of processes: every site draws from its own streams, the number
of torch threads is part of the experiment, and replies are returned in the order of site names.
Messages between processes are encoded like messages between hospitals.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedgsca.config import Config, build
from fedgsca.errors import FedgscaError
from fedgsca.federation.base import Reply
from fedgsca.federation.local import SiteRunner, open_runner
from fedgsca.wire import Payload, decode_payload, decode_update, encode_payload, encode_update

_PAYLOAD, _SITE = b"P", b"S"  # first byte of a message to a worker
_LOST_CONNECTION = (EOFError, BrokenPipeError, ConnectionResetError)


class ProcessEngine:
    """Trains several sites at the same time."""

    def __init__(self, config: Config, sites: list[str], folder: Path, jobs: int) -> None:
        """Start at most `jobs` workers; each builds the experiment itself at its first site."""
        context = multiprocessing.get_context("spawn")
        self.sites = sorted(sites)
        self.workers: list[tuple[Connection, BaseProcess]] = []
        tree = json.dumps(config.to_tree())
        for number in range(min(jobs, len(sites))):
            pipe, worker_pipe = context.Pipe()
            arguments = (worker_pipe, tree, str(folder), number)
            process = context.Process(target=_serve_sites, args=arguments, daemon=True)
            process.start()
            worker_pipe.close()
            self.workers.append((pipe, process))

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        """One reply per site, in the order of site names, whichever finishes first."""
        message = encode_payload(payload)
        names = self.sites if sites is None else sorted(sites)
        for pipe, _ in self.workers:
            _send(pipe, _PAYLOAD + message, self.sites[0])
        pending_sites = deque(names)
        replies: dict[str, Reply] = {}
        busy: dict[Connection, str] = {}
        idle = [pipe for pipe, _ in self.workers]
        for name in names:
            while name not in replies:
                # at most a few sites ahead of the round loop, so that updates do not pile up
                while idle and pending_sites and len(replies) < 2 * len(self.workers):
                    pipe = idle.pop()
                    busy[pipe] = pending_sites.popleft()
                    _send(pipe, _SITE + busy[pipe].encode(), busy[pipe])
                for answering in wait(list(busy)):
                    assert isinstance(answering, Connection)
                    site = busy.pop(answering)
                    replies[site] = _receive(answering, site)
                    idle.append(answering)
            yield replies.pop(name)

    def close(self) -> None:
        """Ask the workers to stop, and stop them."""
        for pipe, process in self.workers:
            pipe.close()
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()


def _send(pipe: Connection, message: bytes, site: str) -> None:
    try:
        pipe.send_bytes(message)
    except _LOST_CONNECTION:
        raise _worker_lost(site) from None


def _receive(pipe: Connection, site: str) -> Reply:
    try:
        head: dict[str, Any] = json.loads(pipe.recv_bytes())
        body = pipe.recv_bytes()
    except _LOST_CONNECTION:
        raise _worker_lost(site) from None
    if head.get("crash"):
        raise _worker_error(site, head)
    update = decode_update(body) if body else None
    return Reply(site, update, head["error"], head["simulation_metrics"], head["seconds"])


def _worker_error(site: str, head: dict[str, Any]) -> FedgscaError:
    """The error that a worker reports: one of ours as it was, a bug with its traceback."""
    error = FedgscaError(
        "site.crashed",
        f"{site} failed: {head['crash']}",
        fix="report this as a bug, with the text above",
    )
    error.code = head.get("code", error.code)
    error.fix = head.get("fix", error.fix)
    error.exit_code = head.get("exit_code", 70)
    return error


def _worker_lost(site: str) -> FedgscaError:
    return FedgscaError(
        "site.worker-lost",
        f"the worker process that trained {site} ended unexpectedly (out of memory, or killed)",
        fix="run `fedgsca resume` with fewer --jobs; no finished round is lost",
    )


# ---- in the worker ----


def _serve_sites(pipe: Connection, tree: str, folder: str, number: int) -> None:
    """The worker's loop: builds the same experiment and serves sites until the pipe closes.

    `number` counts the workers from 0; they take turns on the GPUs, if there are any.
    """
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    runner: SiteRunner | None = None
    payload = Payload(0, {})
    while True:
        try:
            message = pipe.recv_bytes()
            if message[:1] == _PAYLOAD:
                payload = decode_payload(message[1:])
                continue
            opener = partial(_open_on_gpu, tree, folder, number)
            runner, head, body = _answer(runner, message[1:].decode(), payload, opener)
            pipe.send_bytes(json.dumps(head).encode())
            pipe.send_bytes(body)
        except (*_LOST_CONNECTION, KeyboardInterrupt):
            return  # the parent has stopped: it is finished, lost another worker, or Ctrl-C


def _open_on_gpu(tree: str, folder: str, number: int) -> SiteRunner:
    """A runner of the experiment. `cuda` without a number is then this worker's GPU."""
    import torch

    from fedgsca.models.device import pick_gpu

    config = build(json.loads(tree))
    gpu = pick_gpu(config.train, number)
    if gpu is not None:
        torch.cuda.set_device(gpu)
    return open_runner(config, Path(folder))


def _answer(
    runner: SiteRunner | None, site: str, payload: Payload, opener: Callable[[], SiteRunner]
) -> tuple[SiteRunner | None, dict[str, Any], bytes]:
    """The runner for the next site, and the two parts of the answer for this one."""
    try:
        if runner is None:
            runner = opener()
        reply = runner.run_round(site, payload)
    except FedgscaError as error:
        return runner, {"crash": error.message, **error.to_json()}, b""
    except Exception:
        return runner, {"crash": traceback.format_exc(limit=-3)}, b""
    metrics = dict(reply.simulation_metrics)
    head = {"error": reply.error, "simulation_metrics": metrics, "seconds": reply.seconds}
    body = b"" if reply.update is None else encode_update(reply.update)
    return runner, head, body


def _exit_with_parent() -> None:
    """Exit when the parent is killed: an orphan would write beside a resumed run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
