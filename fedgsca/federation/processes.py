"""Sites in worker processes on this machine.

Results do not depend on the number of processes: every site draws from its own streams, the number
of torch threads is part of the experiment, and replies are returned in the order of site names.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, wait
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from fedgsca.config import Config, build
from fedgsca.errors import FedgscaError
from fedgsca.federation.base import Reply
from fedgsca.federation.local import SiteRunner, open_runner
from fedgsca.wire import Payload, decode_payload, encode_payload


class ProcessEngine:
    """Trains several sites at the same time."""

    def __init__(self, config: Config, sites: list[str], folder: Path, jobs: int) -> None:
        """Use at most `jobs` workers; each builds the experiment itself at its first site."""
        context = multiprocessing.get_context("spawn")
        self.sites = sorted(sites)
        self.num_workers = min(jobs, len(sites))
        # its other end is closed by `close`, or by the death of this process: then workers end
        parent, self._stop = context.Pipe(duplex=False)
        numbers: SimpleQueue[int] = context.SimpleQueue()
        for number in range(self.num_workers):
            numbers.put(number)
        arguments = (json.dumps(config.to_tree()), str(folder), numbers, parent)
        self._pool = ProcessPoolExecutor(self.num_workers, context, _start_worker, arguments)

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        """One reply per site, in the order of site names, whichever finishes first."""
        message = encode_payload(payload)
        names = self.sites if sites is None else sorted(sites)
        pending_sites = deque(names)
        replies: deque[Future[Reply]] = deque()
        for name in names:
            try:
                # at most a few sites ahead of the round loop, so that updates do not pile up
                while pending_sites and len(replies) < 2 * self.num_workers:
                    site = pending_sites.popleft()
                    replies.append(self._pool.submit(_train_site, site, message))
                reply = replies.popleft().result()
            except BrokenProcessPool:
                raise FedgscaError(
                    "site.worker-lost",
                    f"the worker process that trained {name} ended unexpectedly (out of memory, or"
                    " killed)",
                    fix="run `fedgsca resume` with fewer --jobs; no finished round is lost",
                ) from None
            yield reply

    def close(self) -> None:
        """End the workers, also in the middle of a round."""
        self._stop.close()
        self._pool.shutdown(cancel_futures=True)


# ---- in the worker ----


class _Worker:
    """What a worker process was started with, and its experiment once a site needs it."""

    arguments: tuple[str, str, int]
    runner: SiteRunner | None = None


def _start_worker(tree: str, folder: str, numbers: SimpleQueue[int], parent: Connection) -> None:
    """`numbers` counts the workers from 0; they take turns on the GPUs, if there are any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C, the parent ends its workers
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    _Worker.arguments = (tree, folder, numbers.get())


def _exit_with_parent(parent: Connection) -> None:
    """Exit when the parent is killed: an orphan would write beside a resumed run."""
    wait([parent])
    os._exit(1)


def _train_site(name: str, message: bytes) -> Reply:
    """The reply of a site. Raises only errors of ours, a bug with its traceback."""
    try:
        if _Worker.runner is None:
            _Worker.runner = _open_on_gpu(*_Worker.arguments)
        return _Worker.runner.run_round(name, decode_payload(message))
    except FedgscaError:
        raise
    except Exception:
        error = FedgscaError(
            "site.crashed",
            f"{name} failed: {traceback.format_exc(limit=-3)}",
            fix="report this as a bug, with the text above",
        )
        error.exit_code = 70
        raise error from None


def _open_on_gpu(tree: str, folder: str, number: int) -> SiteRunner:
    """A runner of the experiment. `cuda` without a number is then this worker's GPU."""
    import torch

    from fedgsca.models.device import pick_gpu

    config = build(json.loads(tree))
    gpu = pick_gpu(config.train, number)
    if gpu is not None:
        torch.cuda.set_device(gpu)
    return open_runner(config, Path(folder))
