"""status.json in the run folder: which sites are there, who is awaited and since when, how far the run is.

For a person who looks from outside (`read_status`) while the coordinator runs somewhere in the background. It is a observer that writes
the file and passes everything on to another observer.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgsca.errors import RunFolderError
from fedgsca.experiment.run_folder import dumps
from fedgsca.support.files import write_atomic

if TYPE_CHECKING:
    from fedgsca.engine.local import Reply
    from fedgsca.engine.rounds import RunObserver
    from fedgsca.experiment.simulation import Experiment

NAME = "status.json"
_KEPT = 20  # messages


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Status:
    """One per run of the coordinator."""

    def __init__(self, folder: Path, inner: RunObserver) -> None:
        self.folder, self.inner = folder, inner
        self.known: dict[str, Any] = {
            "state": "starting",
            "round": 0,
            "rounds": 0,
            "f1": None,
            "sites": {},
            "messages": [],
        }

    def _write(self) -> None:
        if (self.folder / "config.toml").exists():  # the folder is ours only from then on
            write_atomic(self.folder / NAME, dumps({**self.known, "at": now()}))

    def _site(self, name: str, state: str) -> None:
        self.known["sites"][name] = {"state": state, "since": now()}

    def on_start(self, experiment: Experiment, first: int) -> None:
        self.known |= {"state": "running", "round": first, "rounds": experiment.config.train.rounds}
        for name in experiment.names:
            self._site(name, "not heard of")
        self._write()
        self.inner.on_start(experiment, first)

    def awaits(self, names: Iterable[str], what: str) -> None:
        """From now on these sites are awaited: for their connection, their update, or their test result."""
        for name in names:
            self._site(name, f"awaited: {what}")
        self._write()

    def on_site_done(self, round: int, reply: Reply) -> None:
        self._site(
            reply.site, "answered" if reply.update is not None else f"left out: {reply.error}"
        )
        self._write()
        self.inner.on_site_done(round, reply)

    def on_round_done(self, line: dict[str, Any], seconds: float) -> None:
        self.known |= {"round": line["round"] + 1, "f1": line.get("f1", self.known["f1"])}
        self._write()
        self.inner.on_round_done(line, seconds)

    def on_message(self, message: str) -> None:
        self.known["messages"] = [*self.known["messages"], f"{now()} {message}"][-_KEPT:]
        self._write()
        self.inner.on_message(message)

    def ended(self, error: BaseException | None) -> None:
        self.known["state"] = (
            "finished" if error is None else f"stopped: {str(error) or type(error).__name__}"
        )
        with contextlib.suppress(
            RunFolderError
        ):  # a full disk must not hide the error that it caused
            self._write()


def read_status(folder: Path) -> dict[str, Any] | None:
    """None: no coordinator has run here, or the file cannot be read."""
    try:
        return dict(json.loads((folder / NAME).read_bytes()))
    except (OSError, ValueError):
        return None
