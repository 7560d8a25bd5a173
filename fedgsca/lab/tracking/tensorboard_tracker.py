"""TensorBoard: the only file that imports it. Event files in RUN/tensorboard.

Event files can only grow, and a run that is resumed may repeat a round. So a session begins with
new files, to which the caller adds the rounds of the log again: no step is ever there twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedgsca.errors import MissingExtraError
from fedgsca.lab.tracking.base import RunLabel

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_PATTERN = "events.out.tfevents.*"


def require_tensorboard() -> None:
    """Raise an error if the package is not installed."""
    if find_spec("tensorboard") is None:
        raise MissingExtraError(
            "extra.tensorboard-missing",
            "--track tensorboard needs a package that is not installed: tensorboard",
            fix="pip install 'fedgsca[tensorboard]'",
        )


class TensorBoardTracker:
    """The event files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: SummaryWriter | None = None

    def open(self, label: RunLabel, settings: Mapping[str, str]) -> str | None:
        """New files: those of earlier sessions are deleted once the new ones can be written."""
        from torch.utils.tensorboard import SummaryWriter

        old_files = list(self.folder.glob(_PATTERN)) if self.folder.is_dir() else []
        self._writer = SummaryWriter(str(self.folder))  # type: ignore[no-untyped-call]
        new_files = set(self.folder.glob(_PATTERN)) - set(old_files)
        for path in old_files:
            if path not in new_files:
                with contextlib.suppress(OSError):
                    path.unlink()
        lines = [f"    {key} = {value}" for key, value in settings.items()]
        self.log_text("configuration", "\n".join(lines))
        tags = [f"- {key}: {value}" for key, value in label.tags.items()]
        self.log_text("run", "\n".join([f"**{label.name}**", "", *tags]))
        return None

    @property
    def last_step(self) -> int:
        """0: every session writes all rounds."""
        return 0

    def log_round(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars, visible at once."""
        assert self._writer is not None
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]
        self._writer.flush()  # type: ignore[no-untyped-call]

    def log_text(self, name: str, text: str) -> None:
        """A text of the tab "Text"."""
        assert self._writer is not None
        self._writer.add_text(name, text)  # type: ignore[no-untyped-call]

    def log_files(self, paths: Sequence[Path]) -> None:
        """TensorBoard has no files: their places are listed."""
        self.log_text("files", "\n".join(f"- {path}" for path in paths))

    def close(self, state: str) -> None:
        """Write what is left."""
        if self._writer is not None:
            self.log_text("state", state)
            self._writer.close()  # type: ignore[no-untyped-call]
            self._writer = None
