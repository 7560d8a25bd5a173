"""MLflow: the only file that imports it. By default a file store, `mlruns` beside the runs.

The environment of the user is not asked for an address: MLFLOW_TRACKING_URI is ignored, so that no
run is sent anywhere because of a forgotten variable. MLflow's own telemetry is switched off.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgsca.errors import MissingExtraError
from fedgsca.lab.tracking.base import RunLabel, safe_name
from fedgsca.support.files import write_atomic

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

# in the run folder: which record belongs to this run
RECORD_FILE = "mlflow.json"
_STEP = "round"
_STATES = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_MAX_VALUE = 500  # characters of a parameter
_MAX_BATCH = 100  # parameters in one request
_MAX_METRICS = 500
# A server that does not answer delays a round by this, once; then tracking is given up.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}


def require_mlflow() -> None:
    """Raise an error if the package is not installed."""
    if find_spec("mlflow") is None:
        raise MissingExtraError(
            "extra.mlflow-missing",
            "--track mlflow needs a package that is not installed: mlflow-skinny",
            fix="pip install 'fedgsca[mlflow]'",
        )


def file_uri(folder: Path) -> str:
    """The address of a store of local files."""
    return folder.resolve().as_uri()


class MlflowTracker:
    """The record of one run in an MLflow store."""

    def __init__(self, uri: str, folder: Path) -> None:
        """`folder` is that of the run; it remembers its record."""
        self.uri = uri
        self.folder = folder
        self.last_step = 0
        self._run_id = ""
        self._client: MlflowClient | None = None

    def open(self, label: RunLabel, settings: Mapping[str, str]) -> str | None:
        """Continue the record of the folder if the store still has it, else begin a new one."""
        with _quiet_mlflow():
            self._client = _connect(self.uri)
            self._run_id = self._find_record() or self._create_record(label, settings)
            metrics = self._client.get_run(self._run_id).data.metrics
            self.last_step = int(metrics.get(_STEP, 0))
            self._client.update_run(self._run_id, status="RUNNING")
        return self._run_id

    def _find_record(self) -> str | None:
        """The record that an earlier session of this run wrote to the same store."""
        assert self._client is not None
        with contextlib.suppress(Exception):
            tree = json.loads((self.folder / RECORD_FILE).read_bytes())
            if tree["uri"] == self.uri:
                run = self._client.get_run(str(tree["run"]))
                return str(run.info.run_id) if run.info.lifecycle_stage == "active" else None
        return None

    def _create_record(self, label: RunLabel, settings: Mapping[str, str]) -> str:
        from mlflow.entities import Param

        assert self._client is not None
        experiment = self._client.get_experiment_by_name(label.experiment)
        if experiment is None:
            experiment_id = self._client.create_experiment(label.experiment)
        else:
            experiment_id = experiment.experiment_id
        tags = {"mlflow.runName": label.name, **label.tags}
        if label.parent is not None:
            tags["mlflow.parentRunId"] = label.parent
        run_id = str(self._client.create_run(experiment_id, tags=tags).info.run_id)
        params = [Param(safe_name(key), value[:_MAX_VALUE]) for key, value in settings.items()]
        for start in range(0, len(params), _MAX_BATCH):
            self._client.log_batch(run_id, params=params[start : start + _MAX_BATCH])
        tree = {"uri": self.uri, "run": run_id}
        write_atomic(self.folder / RECORD_FILE, json.dumps(tree).encode() + b"\n")
        return run_id

    def log_round(self, step: int, values: Mapping[str, float]) -> None:
        """All numbers of a round. The number of the round is the last one: it completes them."""
        from mlflow.entities import Metric

        assert self._client is not None
        moment = _now_in_milliseconds()
        items = [*values.items(), (_STEP, float(step))]
        metrics = [Metric(safe_name(name), value, moment, step) for name, value in items]
        with _quiet_mlflow():
            for start in range(0, len(metrics), _MAX_METRICS):
                self._client.log_batch(self._run_id, metrics=metrics[start : start + _MAX_METRICS])
        self.last_step = step

    def log_text(self, name: str, text: str) -> None:
        """A Markdown file among the artifacts."""
        assert self._client is not None
        with _quiet_mlflow():
            self._client.log_text(self._run_id, text, f"{safe_name(name)}.md")

    def log_files(self, paths: Sequence[Path]) -> None:
        """Copies among the artifacts."""
        assert self._client is not None
        with _quiet_mlflow():
            for path in paths:
                self._client.log_artifact(self._run_id, str(path))

    def close(self, state: str) -> None:
        """Mark how the session ended."""
        if self._client is not None:
            with _quiet_mlflow():
                self._client.set_terminated(self._run_id, _STATES.get(state, "FAILED"))
            self._client = None


def _connect(uri: str) -> MlflowClient:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # these two are not the user's to choose
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["DO_NOT_TRACK"] = "true"
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _now_in_milliseconds() -> int:
    import time

    return int(1000 * time.time())


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
