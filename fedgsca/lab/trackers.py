"""Writers of `--track tensorboard`, `mlflow` and `wandb`: the only file that imports these.

A tracker is the record of one run or comparison. Nothing is sent over a network unless the user
names an address; the environment is not asked for one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgsca.errors import ConfigError, MissingExtraError
from fedgsca.support.files import write_atomic
from fedgsca.support.text import did_you_mean

if TYPE_CHECKING:
    import wandb
    from mlflow.tracking import MlflowClient
    from torch.utils.tensorboard import SummaryWriter


@dataclass(frozen=True)
class RunLabel:
    """What a tracker calls a run."""

    name: str
    # shared by runs that belong together: the data set
    experiment: str
    # small facts to search by
    tags: Mapping[str, str]
    # the record of the comparison to which the run belongs
    parent: str | None = None


class Tracker(ABC):
    """The record of one run, or of a comparison. Every method may fail; callers survive that."""

    # its name after --track, and that of the package
    kind: str
    # the last round, from 1, that the record has; 0: a session writes all rounds again
    last_step = 0

    def __init__(self, folder: Path, address: str = "") -> None:
        """`folder` is that of the run; `address` that of a store, if there is one."""
        self.folder = folder
        self.address = address

    @abstractmethod
    def open(self, label: RunLabel, settings: Mapping[str, str]) -> str | None:
        """Begin the record, or continue the one that the run had before.

        Returns a name under which children of this record refer to it; None: no name is needed.
        """

    @abstractmethod
    def log_round(self, step: int, values: Mapping[str, float]) -> None:
        """Add the numbers of one round, counted from 1."""

    @abstractmethod
    def log_files(self, paths: Sequence[Path]) -> None:
        """Add files that exist, such as the report and the model."""

    @abstractmethod
    def close(self, state: str) -> None:
        """End the session: "finished" or "stopped"."""


class TensorBoardTracker(Tracker):
    """Event files in RUN/tensorboard.

    They can only grow, and a run that is resumed may repeat a round. So a session begins with new
    files, to which the caller adds the rounds of the log again: no step is ever there twice.
    """

    kind = "tensorboard"
    _writer: SummaryWriter

    def open(self, label: RunLabel, settings: Mapping[str, str]) -> str | None:
        """New files: those of earlier sessions are deleted once the new ones can be written."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self.folder / "tensorboard"
        old_files = list(folder.glob("events.out.tfevents.*"))
        self._writer = SummaryWriter(str(folder))  # type: ignore[no-untyped-call]
        for path in old_files:
            path.unlink(missing_ok=True)
        lines = [f"    {key} = {value}" for key, value in settings.items()]
        self._log_text("configuration", lines)
        tags = [f"- {key}: {value}" for key, value in label.tags.items()]
        self._log_text("run", [f"**{label.name}**", "", *tags])
        return None

    def log_round(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars, visible at once."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]
        self._writer.flush()  # type: ignore[no-untyped-call]

    def log_files(self, paths: Sequence[Path]) -> None:
        """TensorBoard has no files: their places are listed, and Markdown is shown."""
        self._log_text("files", [f"- {path}" for path in paths])
        for path in paths:
            if path.suffix == ".md":
                self._log_text(path.stem, [path.read_text("utf-8")])

    def close(self, state: str) -> None:
        """Write what is left."""
        self._log_text("state", [state])
        self._writer.close()  # type: ignore[no-untyped-call]

    def _log_text(self, name: str, lines: Sequence[str]) -> None:
        self._writer.add_text(name, "\n".join(lines))  # type: ignore[no-untyped-call]


class WandbTracker(Tracker):
    """An offline record in RUN/wandb, whatever the user's environment says: nothing is sent.

    It cannot be continued, so a session begins a new one with all rounds of the log and deletes
    those of earlier sessions: no step is there twice.
    """

    kind = "wandb"
    _run: wandb.Run

    def open(self, label: RunLabel, settings: Mapping[str, str]) -> str | None:
        """A new record; those of earlier sessions are deleted once it has begun."""
        # for the process that wandb starts, too: no questions, no output, no reports of its errors
        silence = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
        os.environ.update({**silence, "WANDB_ERROR_REPORTING": "false"})
        import wandb

        old_records = list((self.folder / "wandb").glob("offline-run-*"))
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

    def log_round(self, step: int, values: Mapping[str, float]) -> None:
        """All numbers of a round."""
        self._run.log(dict(values), step=step)

    def log_files(self, paths: Sequence[Path]) -> None:
        """Copies among the files of the record."""
        for path in paths:
            self._run.save(str(path), base_path=str(path.parent), policy="now")

    def close(self, state: str) -> None:
        """End the record."""
        self._run.summary["state"] = state
        self._run.finish(exit_code=0 if state == "finished" else 1)


# A server that does not answer delays a round by this, once; then tracking is given up.
_MLFLOW_ENVIRONMENT = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}
_MAX_PARAM = 500  # characters
_MAX_BATCH = 100  # parameters or metrics in one request
_STEP = "round"


class MlflowTracker(Tracker):
    """A record in a store: by default the folder `mlruns` beside the runs.

    The user's environment is not asked for an address: MLFLOW_TRACKING_URI is ignored, so that no
    run is sent anywhere because of a forgotten variable. MLflow's own telemetry is switched off.
    """

    kind = "mlflow"
    _run_id: str
    _client: MlflowClient

    def open(self, label: RunLabel, settings: Mapping[str, str]) -> str | None:
        """Continue the record of the folder if the store still has it, else begin a new one."""
        with _quiet_mlflow():
            self._client = connect_mlflow(self.address)
            self._run_id = self._find_record() or self._create_record(label, settings)
            metrics = self._client.get_run(self._run_id).data.metrics
            self.last_step = int(metrics.get(_STEP, 0))
            self._client.update_run(self._run_id, status="RUNNING")
        return self._run_id

    def _find_record(self) -> str | None:
        """The record that an earlier session of this run wrote to the same store."""
        with contextlib.suppress(Exception):
            tree = json.loads((self.folder / "mlflow.json").read_bytes())
            run = self._client.get_run(str(tree["run"]))
            if tree["uri"] == self.address and run.info.lifecycle_stage == "active":
                return str(run.info.run_id)
        return None

    def _create_record(self, label: RunLabel, settings: Mapping[str, str]) -> str:
        from mlflow.entities import Param

        experiment = self._client.get_experiment_by_name(label.experiment)
        if experiment is None:
            experiment_id = self._client.create_experiment(label.experiment)
        else:
            experiment_id = experiment.experiment_id
        tags = {"mlflow.runName": label.name, **label.tags}
        if label.parent is not None:
            tags["mlflow.parentRunId"] = label.parent
        run_id = str(self._client.create_run(experiment_id, tags=tags).info.run_id)
        params = [Param(safe_name(key), value[:_MAX_PARAM]) for key, value in settings.items()]
        for start in range(0, len(params), _MAX_BATCH):
            self._client.log_batch(run_id, params=params[start : start + _MAX_BATCH])
        tree = {"uri": self.address, "run": run_id}
        write_atomic(self.folder / "mlflow.json", json.dumps(tree).encode() + b"\n")
        return run_id

    def log_round(self, step: int, values: Mapping[str, float]) -> None:
        """All numbers of a round. The number of the round is the last one: it completes them."""
        from mlflow.entities import Metric

        moment = int(1000 * time.time())
        items = [*values.items(), (_STEP, float(step))]
        metrics = [Metric(safe_name(name), value, moment, step) for name, value in items]
        with _quiet_mlflow():
            for start in range(0, len(metrics), _MAX_BATCH):
                self._client.log_batch(self._run_id, metrics=metrics[start : start + _MAX_BATCH])
        self.last_step = step

    def log_files(self, paths: Sequence[Path]) -> None:
        """Copies among the artifacts."""
        with _quiet_mlflow():
            for path in paths:
                self._client.log_artifact(self._run_id, str(path))

    def close(self, state: str) -> None:
        """Mark how the session ended."""
        with _quiet_mlflow():
            status = "FINISHED" if state == "finished" else "KILLED"
            self._client.set_terminated(self._run_id, status)


def connect_mlflow(uri: str) -> MlflowClient:
    """A client of a store, without MLflow's telemetry."""
    for name, value in _MLFLOW_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # these two are not the user's to choose
    os.environ.update({"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"})
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@contextlib.contextmanager
def _quiet_mlflow() -> Iterator[None]:
    """MLflow's advice about its file store is no message for the person at this terminal."""
    logger: Any = logging.getLogger("mlflow")
    old_level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(old_level)


def safe_name(text: str) -> str:
    """A name of a metric that every tracker accepts."""
    return re.sub(r"[^\w./ -]", "_", text, flags=re.ASCII)[:250]


# ---- how `--track` names them ----

TRACKERS = {kind.kind: kind for kind in (TensorBoardTracker, MlflowTracker, WandbTracker)}


@dataclass(frozen=True)
class TrackTarget:
    """One part of `--track`: a kind, and where its records go; None: local files."""

    kind: str
    place: str | None = None

    def __str__(self) -> str:
        return self.kind if self.place is None else f"{self.kind}:{self.place}"

    def make_tracker(self, folder: Path, store: Path) -> Tracker:
        """The tracker of a run; `store` is the folder whose runs share one MLflow store."""
        address = self.place or (store / "mlruns").resolve().as_uri()
        return TRACKERS[self.kind](folder, address)


def parse_targets(text: str | None) -> tuple[TrackTarget, ...]:
    """ "tensorboard", "mlflow:http://server:5000", or several with commas; None is nothing.

    A tracker that is not installed is an error here, before anything runs.
    """
    targets: dict[str, TrackTarget] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        kind, _, place = part.strip().partition(":")
        kind = kind.strip().lower()
        if kind not in TRACKERS:
            raise ConfigError(
                "track.unknown-tracker",
                f"unknown tracker {kind!r}",
                fix=f"{did_you_mean(kind, TRACKERS)}use one of: {', '.join(TRACKERS)}",
            )
        if kind != MlflowTracker.kind and place:
            raise ConfigError(
                "track.no-place",
                f"the files of {kind} are always in the folder of the run",
                fix=f"use --track {kind}",
            )
        _require(TRACKERS[kind])
        targets[kind] = TrackTarget(kind, place.strip() or None)
    return tuple(targets.values())


def _require(tracker: type[Tracker]) -> None:
    if find_spec(tracker.kind) is None:
        raise {
            "tensorboard": MissingExtraError(
                "extra.tensorboard-missing",
                "--track tensorboard needs a package that is not installed: tensorboard",
                fix="pip install 'fedgsca[tensorboard]'",
            ),
            "mlflow": MissingExtraError(
                "extra.mlflow-missing",
                "--track mlflow needs a package that is not installed: mlflow-skinny",
                fix="pip install 'fedgsca[mlflow]'",
            ),
            "wandb": MissingExtraError(
                "extra.wandb-missing",
                "--track wandb needs a package that is not installed: wandb",
                fix="pip install 'fedgsca[wandb]'",
            ),
        }[tracker.kind]
