"""The default engine: all sites on this machine, one model in memory, optionally several worker processes.

Results do not depend on the number of processes: every site draws from its own streams, the number of torch threads is part of the
experiment, and replies are handed over in the order of site names whoever finishes first. Messages between processes use the same
encoding as messages between hospitals.
"""

from __future__ import annotations

import io
import json
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from fedgsca.config import Config, build
from fedgsca.engine import label_evidence as evidence
from fedgsca.engine.simulation_metrics import observe
from fedgsca.errors import FedgscaError, UpdateError
from fedgsca.experiment.simulation import Experiment, prepare
from fedgsca.methods.base import Method, make_method
from fedgsca.privacy.mechanism import protect, secret_normals
from fedgsca.site import Site
from fedgsca.site_store import Store
from fedgsca.support.files import write_atomic
from fedgsca.wire import (
    Payload,
    Update,
    decode_payload,
    decode_update,
    encode_payload,
    encode_update,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reply:
    """What came back from one site: an update, or the reason why there is none."""

    site: str
    update: Update | None
    error: str | None = None
    observed: Mapping[str, float | None] = field(
        default_factory=dict
    )  # simulations only, beside the update
    seconds: float = 0.0


class SiteRunner:
    """One model and the sites that take turns on it."""

    def __init__(
        self, experiment: Experiment, method: Method, folder: Path, *, alone: bool = False
    ) -> None:
        """`alone`: this is a hospital's own machine, and the folder is its own."""
        from fedgsca.models.device import prepare_device
        from fedgsca.models.initial import build_model

        self.experiment, self.method, self.folder, self.alone = experiment, method, folder, alone
        self.device = prepare_device(experiment.config.train)
        self.model = build_model(experiment, method.head).to(self.device)

    def site(self, name: str) -> Site:
        experiment = self.experiment
        store = Store(self.folder / "store" / name)
        return Site(
            name,
            experiment.sites[name],
            experiment.config.train,
            experiment.config.seed,
            self.model,
            self.device,
            store,
        )

    def run_round(self, name: str, payload: Payload) -> Reply:
        """One site's round. An error that is the site's own is named and reported; a bug is not hidden."""
        site = self.site(name)
        started = time.perf_counter()
        seen = evidence.look(site, payload, self.experiment.config)
        try:
            update = self.update(payload, site)
        except UpdateError as error:
            return Reply(name, None, error.message, seconds=time.perf_counter() - started)
        seconds = time.perf_counter() - started
        truth = self.experiment.truth.get(name)
        self._keep_losses(site, payload.round, truth)
        evidence.keep(seen, site, payload.round, self.experiment, self.folder)
        return Reply(name, update, None, observe(site.notes, truth, site.labels), seconds)

    def update(self, payload: Payload, site: Site) -> Update:
        """What leaves the site: as the method made it, or under `privacy` clipped and noised."""
        privacy = self.experiment.config.privacy
        if privacy is None:
            return self.method.local_update(payload, site)
        try:
            update = self.method.local_update(payload, site)
        except (
            UpdateError
        ) as error:  # a refusal would be a number about the data that nobody noised
            log.error(
                "%s in round %d sends no change, only noise: %s",
                site.name,
                payload.round + 1,
                error.message,
            )
            update = Update(site.name, site.num_samples, payload.weights)

        def public(
            name: str, shape: tuple[int, ...]
        ) -> np.ndarray:  # simulations: reproducible, and no secret to anybody
            return site.rng(payload.round, "privacy", name).standard_normal(shape)

        draw = secret_normals() if self.alone else public
        return protect(update, payload, self.method.uploads, privacy, draw, site.num_samples)

    def _keep_losses(self, site: Site, round: int, truth: np.ndarray | None) -> None:
        """Per-sample losses of the newest selection, for the report's histograms; they stay in the run folder of this machine."""
        config = self.experiment.config
        due = round % 5 == 4 or round >= config.train.rounds - 1
        if config.federation.keep_losses and due and "losses" in site.notes:
            kept: dict[str, Any] = {
                key: value
                for key, value in site.notes.items()
                if key in ("losses", "clean", "clean_probability", "selector", "cut")
            }
            if truth is not None:
                kept["wrong"] = site.labels != truth
            packed = io.BytesIO()
            np.savez(packed, round=np.array(round), **kept)
            write_atomic(self.folder / "losses" / f"{site.name}.npz", packed.getvalue())


class LocalEngine:
    """Runs sites one after the other in this process."""

    def __init__(self, runner: SiteRunner) -> None:
        self.runner = runner

    def exchange(self, payload: Payload) -> Iterator[Reply]:
        for name in sorted(self.runner.experiment.sites):
            yield self.runner.run_round(name, payload)

    def close(self) -> None:
        pass


class ProcessEngine:
    """Runs sites in worker processes; replies come in the order of site names."""

    def __init__(self, config: Config, sites: list[str], folder: Path, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.sites = sorted(sites)
        self.workers: list[tuple[Connection, BaseProcess]] = []
        for _ in range(min(jobs, len(sites))):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, json.dumps(config.to_tree()), str(folder)), daemon=True
            )
            process.start()
            theirs.close()
            self.workers.append((ours, process))

    def exchange(self, payload: Payload) -> Iterator[Reply]:
        message = encode_payload(payload)
        for pipe, _ in self.workers:
            _tell(pipe, b"P" + message, self.sites[0])
        waiting, ready = list(self.sites), dict[str, Reply]()
        busy: dict[Connection, str] = {}
        idle = [pipe for pipe, _ in self.workers]
        for name in self.sites:
            while name not in ready:
                # run ahead of the hand-over by a few sites at most, so that finished updates do not pile up
                while idle and waiting and len(ready) < 2 * len(self.workers):
                    pipe = idle.pop()
                    busy[pipe] = waiting.pop(0)
                    _tell(pipe, b"S" + busy[pipe].encode(), busy[pipe])
                for done in wait(list(busy)):
                    assert isinstance(done, Connection)
                    ready[busy[done]] = self._receive(done, busy[done])
                    del busy[done]
                    idle.append(done)
            yield ready.pop(name)

    def _receive(self, pipe: Connection, name: str) -> Reply:
        try:
            head, body = json.loads(pipe.recv_bytes()), pipe.recv_bytes()
        except (EOFError, ConnectionResetError):
            raise _worker_lost(name) from None
        if head.get("crash"):
            failure = FedgscaError(
                "todo.local-1",
                f"{name} failed: {head['crash']}",
                fix=head.get("fix", "this is a bug: report it with the text above"),
            )
            failure.exit_code = head.get("exit_code", 70)
            raise failure
        update = decode_update(body) if body else None
        return Reply(name, update, head["error"], head["observed"], head["seconds"])

    def close(self) -> None:
        for pipe, process in self.workers:
            pipe.close()
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()


def _tell(pipe: Connection, message: bytes, name: str) -> None:
    try:
        pipe.send_bytes(message)
    except (BrokenPipeError, ConnectionResetError):
        raise _worker_lost(name) from None


def _worker_lost(name: str) -> FedgscaError:
    return FedgscaError(
        "todo.local-2",
        f"the worker process that trained {name} ended unexpectedly (out of memory, or killed)",
        fix="run `fedgsca resume` with fewer --jobs; no finished round is lost",
    )


def _leave_with_parent() -> None:
    """End at once when the parent is killed: an orphan that goes on would write into the site's memory beside a resumed run."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _work(pipe: Connection, tree: str, folder: str) -> None:
    """A worker process: builds the same experiment from the same configuration and serves sites until the pipe closes."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    runner: SiteRunner | None = None
    payload = Payload(0, {})
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, ConnectionResetError, KeyboardInterrupt):
            return
        if message[:1] == b"P":
            payload = decode_payload(message[1:])
            continue
        try:
            runner = runner or open_runner(build(json.loads(tree)), Path(folder))
            reply = runner.run_round(message[1:].decode(), payload)
            head = {
                "error": reply.error,
                "observed": dict(reply.observed),
                "seconds": reply.seconds,
            }
            body = encode_update(reply.update) if reply.update is not None else b""
        except FedgscaError as error:
            head, body = (
                {"crash": error.message, "fix": error.fix, "exit_code": error.exit_code},
                b"",
            )
        except KeyboardInterrupt:
            return
        except Exception:
            import traceback

            head, body = {"crash": traceback.format_exc(limit=-3)}, b""
        try:
            pipe.send_bytes(json.dumps(head).encode())
            pipe.send_bytes(body)
        except (
            BrokenPipeError,
            ConnectionResetError,
        ):  # the parent stopped listening: another worker was lost, or Ctrl-C
            return


def open_runner(config: Config, folder: Path) -> SiteRunner:
    method = make_method(config.method, config.options, config.train.rounds)
    return SiteRunner(prepare(config), method, folder)
