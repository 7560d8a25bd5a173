"""Weights & Biases without its server: the only file that imports it. Files in RUN/wandb.

Always offline, whatever the user's environment says: nothing is sent. `wandb sync` uploads a
finished record if a person wants that. An offline record cannot be continued, so a session begins a
new one with all rounds of the log and deletes those of earlier sessions: no step is there twice.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedgsca.errors import MissingExtraError
from fedgsca.lab.tracking.base import RunLabel

if TYPE_CHECKING:
    import wandb

_SUBFOLDER = "wandb"
# for the process that wandb starts, too: no questions, no output, no reports of its errors
_ENVIRONMENT = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}


def require_wandb() -> None:
    """Raise an error if the package is not installed."""
    if find_spec("wandb") is None:
        raise MissingExtraError(
            "extra.wandb-missing",
            "--track wandb needs a package that is not installed: wandb",
            fix="pip install 'fedgsca[wandb]'",
        )


class WandbTracker:
    """The offline record of one run."""

    def __init__(self, folder: Path) -> None:
        """`folder` is that of the run."""
        self.folder = folder
        self._run: wandb.Run | None = None

    def open(self, label: RunLabel, settings: Mapping[str, str]) -> str | None:
        """A new record; those of earlier sessions are deleted once it has begun."""
        os.environ.update(_ENVIRONMENT)
        import wandb

        old_records = list((self.folder / _SUBFOLDER).glob("offline-run-*"))
        self._run = wandb.init(
            mode="offline",
            dir=str(self.folder),
            project=label.experiment.replace("/", "-")[:128],
            name=label.name,
            group=label.parent,
            config={**settings, **label.tags},
            reinit="create_new",  # a comparison and its runs are open together
            settings=wandb.Settings(silent=True, console="off", disable_git=True),
        )
        own_record = Path(self._run.dir).parent
        for path in old_records:
            if path != own_record:
                shutil.rmtree(path, ignore_errors=True)
        return self.folder.resolve().name

    @property
    def last_step(self) -> int:
        """0: every session writes all rounds."""
        return 0

    def log_round(self, step: int, values: Mapping[str, float]) -> None:
        """All numbers of a round."""
        assert self._run is not None
        self._run.log(dict(values), step=step)

    def log_text(self, name: str, text: str) -> None:
        """A text in the summary of the run."""
        assert self._run is not None
        self._run.summary[name] = text

    def log_files(self, paths: Sequence[Path]) -> None:
        """Copies among the files of the record."""
        assert self._run is not None
        for path in paths:
            self._run.save(str(path), base_path=str(path.parent), policy="now")

    def close(self, state: str) -> None:
        """End the record."""
        if self._run is not None:
            self._run.summary["state"] = state
            self._run.finish(exit_code=0 if state == "finished" else 1)
            self._run = None
