"""The data of the audit study: the outputs of the received model in every round, at every site.

The true labels are stored beside them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgsca.config import Config, Tree, build, merge
from fedgsca.engine.base import Reply
from fedgsca.engine.local import SiteRunner, open_runner
from fedgsca.engine.rounds import run
from fedgsca.grid.demo_plan import RECIPE
from fedgsca.support.files import write_atomic
from fedgsca.train import evaluate_site
from fedgsca.wire import Payload

ROUNDS = 60


@dataclass(frozen=True)
class StudyRun:
    """One run of the study."""

    # "synthetic" or the path of a MedMNIST-style file
    data: str
    noise: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{Path(self.data).stem}_{self.noise}_{self.method}_{self.seed}"

    def config(self) -> Config:
        frozen: Tree = {
            "model": {"frozen": True},
            "train": {"rounds": ROUNDS, "threads": 1},
            "data": {"source": self.data},
        }
        recipe = merge({}, RECIPE) if self.data == "synthetic" else {}
        settings: Tree = {
            "method": self.method,
            "seed": self.seed,
            "noise": {"spec": self.noise},
            "federation": {"eval_every": ROUNDS},
        }
        return build(merge(merge(recipe, frozen), settings))


@dataclass(frozen=True)
class SiteOutputs:
    """One site of one run."""

    # (R, n, C) float32: round t's model before any site trained in round t
    probs: np.ndarray
    # (R, n) of "clean", NaN where the method has none
    posterior: np.ndarray
    # (n, D)
    features: np.ndarray
    # (n,)
    given: np.ndarray
    truth: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        return np.asarray(self.given != self.truth)


PARTS = ("probs", "posterior", "features", "given", "truth")


class Recorder:
    """A local engine that evaluates the received model before the method trains it."""

    def __init__(self, runner: SiteRunner) -> None:
        self.runner = runner
        self.probs: dict[str, list[np.ndarray]] = {name: [] for name in runner.experiment.sites}
        self.posterior: dict[str, list[np.ndarray]] = {name: [] for name in runner.experiment.sites}

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        for name in sorted(self.probs if sites is None else sites):
            site = self.runner.site(name)
            site.load(payload.weights)
            self.probs[name].append(evaluate_site(site).probs.astype(np.float32))
            update = self.runner.method.local_update(payload, site)
            missing = np.full(site.num_samples, np.nan)
            posterior = site.notes.get("clean_probability", missing)
            self.posterior[name].append(np.asarray(posterior, np.float32))
            yield Reply(name, update)

    def close(self) -> None:
        pass


def read_outputs(study_run: StudyRun, out: Path) -> dict[str, SiteOutputs]:
    """The outputs at every site: of a new run, or those that an earlier call stored."""
    path = out / f"{study_run.name}.npz"
    if not path.exists():
        write_atomic(path, _record(study_run, out / "runs" / study_run.name))
    outputs = {}
    with np.load(path) as archive:
        for name in sorted({key.split("/")[0] for key in archive.files}):
            outputs[name] = SiteOutputs(*[archive[f"{name}/{part}"] for part in PARTS])
    return outputs


def _record(study_run: StudyRun, folder: Path) -> bytes:
    recorder = Recorder(open_runner(study_run.config(), folder))
    experiment = recorder.runner.experiment
    run(study_run.config(), folder, engine=recorder)
    arrays: dict[str, np.ndarray] = {}
    for name, samples in experiment.sites.items():
        arrays[f"{name}/probs"] = np.stack(recorder.probs[name])
        arrays[f"{name}/posterior"] = np.stack(recorder.posterior[name])
        arrays[f"{name}/features"] = np.asarray(samples.inputs)
        arrays[f"{name}/given"] = samples.labels
        arrays[f"{name}/truth"] = experiment.truth[name]
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
