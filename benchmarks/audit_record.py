"""What the audit study looks at: every round's outputs of the model as received, of every site, with the truth beside them."""

from __future__ import annotations

import io
from collections.abc import Iterator
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
class Cell:
    """One run of the study."""

    data: str  # "synthetic" or the path of a MedMNIST-style file
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
        own: Tree = {
            "method": self.method,
            "seed": self.seed,
            "noise": {"spec": self.noise},
            "federation": {"eval_every": ROUNDS},
        }
        return build(merge(merge(recipe, frozen), own))


@dataclass(frozen=True)
class Record:
    """One site of one run."""

    probs: np.ndarray  # (R, n, C) float32: round t's model before any site trained in round t
    posterior: np.ndarray  # (R, n) of "clean", NaN where the method did not say
    features: np.ndarray  # (n, D)
    given: np.ndarray  # (n,)
    truth: np.ndarray  # (n,)

    @property
    def wrong(self) -> np.ndarray:
        return np.asarray(self.given != self.truth)


class Recorder:
    """A local engine that looks before the method trains."""

    def __init__(self, runner: SiteRunner) -> None:
        self.runner = runner
        self.probs: dict[str, list[np.ndarray]] = {name: [] for name in runner.experiment.sites}
        self.posterior: dict[str, list[np.ndarray]] = {name: [] for name in runner.experiment.sites}

    def exchange(self, payload: Payload) -> Iterator[Reply]:
        for name in sorted(self.probs):
            site = self.runner.site(name)
            site.load(payload.weights)
            self.probs[name].append(evaluate_site(site).probs.astype(np.float32))
            update = self.runner.method.local_update(payload, site)
            unsaid = np.full(site.num_samples, np.nan)
            self.posterior[name].append(
                np.asarray(site.notes.get("clean_probability", unsaid), np.float32)
            )
            yield Reply(name, update)

    def close(self) -> None:
        pass


def records(cell: Cell, out: Path) -> dict[str, Record]:
    """Run the cell, or read what an earlier call kept."""
    path = out / f"{cell.name}.npz"
    if not path.exists():
        folder = out / "runs" / cell.name
        recorder = Recorder(open_runner(cell.config(), folder))
        experiment = recorder.runner.experiment
        run(cell.config(), folder, engine=recorder)
        kept: dict[str, np.ndarray] = {}
        for name, samples in experiment.sites.items():
            kept[f"{name}/probs"] = np.stack(recorder.probs[name])
            kept[f"{name}/posterior"] = np.stack(recorder.posterior[name])
            kept[f"{name}/features"], kept[f"{name}/given"] = (
                np.asarray(samples.inputs),
                samples.labels,
            )
            kept[f"{name}/truth"] = experiment.truth[name]
        packed = io.BytesIO()
        np.savez(packed, **kept)  # type: ignore[arg-type]
        write_atomic(path, packed.getvalue())
    with np.load(path) as found:
        names = sorted({key.split("/")[0] for key in found.files})
        return {
            name: Record(
                *(
                    found[f"{name}/{part}"]
                    for part in ("probs", "posterior", "features", "given", "truth")
                )
            )
            for name in names
        }
