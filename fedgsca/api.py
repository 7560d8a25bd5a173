"""The front door for Python programs: train, compare, audit, correct, predict.

    import fedgsca

    config = fedgsca.Config.load(data="synthetic", noise="0-S40-P20-C20", frozen=True, rounds=20)
    run = fedgsca.run(config, out="runs/a")          # also continues an interrupted run
    audits = fedgsca.audit(run)                      # one per site
    fedgsca.record_decisions(audits[1], {"train/00017": "stroma"}, reviewer="M. Rossi")
    labels = fedgsca.apply_decisions(run).file

Everything here is also a command, and leaves the same files. All names are available as
`fedgsca.NAME`; heavy packages are imported when a function is called.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fedgsca.config import Config
from fedgsca.errors import DataError, RunFolderError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from fedgsca.federation.records import ClassResult, RoundRecord, RunResult
    from fedgsca.lab.comparison import ComparisonResult
    from fedgsca.lab.export.prediction import Predictions
    from fedgsca.lab.frames import FrameKind, SiteSelection
    from fedgsca.labels.apply_decisions import CorrectedLabels
    from fedgsca.labels.audit_table import Audit

PathLike: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class Run:
    """A run folder: its configuration, its scores and what can be done with it."""

    folder: Path

    @cached_property
    def config(self) -> Config:
        """The configuration with every default filled in."""
        from fedgsca.federation.run_folder import read_config

        return read_config(self.folder)

    @cached_property
    def result(self) -> RunResult:
        """The content of result.json. Raises RunFolderError if the run is not finished."""
        from fedgsca.federation.run_folder import read_result

        result = read_result(self.folder)
        if result is None:
            raise RunFolderError(
                "run.not-finished",
                f"the run in {self.folder} is not finished",
                fix=f'call fedgsca.resume("{self.folder}") first',
            )
        return result

    @property
    def is_finished(self) -> bool:
        """Whether all rounds were run."""
        return (self.folder / "result.json").exists()

    @property
    def f1(self) -> float:
        """Macro F1 on the test images in percent: mean of the last five rounds."""
        return self.result.f1

    @property
    def recall(self) -> float:
        """Macro recall in percent: mean of the last five rounds."""
        return self.result.recall

    @property
    def precision(self) -> float:
        """Macro precision in percent: mean of the last five rounds."""
        return self.result.precision

    @property
    def per_class(self) -> Mapping[str, ClassResult]:
        """Class name -> scores in the last round, in the order of `classes`."""
        scores = self.result.per_class
        return {name: scores[name] for name in self.classes if name in scores} or scores

    @property
    def rounds(self) -> list[RoundRecord]:
        """One record per finished round: scores, sizes, and the numbers of every site."""
        from fedgsca.federation.run_folder import read_rounds

        return read_rounds(self.folder)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names in the order of `confusion`."""
        from fedgsca.federation.run_folder import read_setup

        return read_setup(self.folder).data.classes

    @property
    def confusion(self) -> np.ndarray:
        """(C, C): test images of the last round; rows: label, columns: prediction."""
        import numpy as np

        return np.array(self.result.last.confusion)

    def to_frame(self, kind: FrameKind = "rounds") -> pd.DataFrame:
        """One row per round; with "sites", one per round and site. It needs pandas."""
        from fedgsca.lab.frames import make_frame, round_rows

        return make_frame(round_rows(self.rounds, kind))

    def selection(self, site: str) -> SiteSelection:
        """What the method said about every label of a site: files, flags, posteriors and more."""
        from fedgsca.lab.frames import read_selection

        return read_selection(self.folder, site)

    def report(self) -> Path:
        """Write report.html and figures/, and return the path of the page."""
        from fedgsca.lab.report.html_page import write_report

        return write_report(self.folder, with_figures=True)

    def audit(self, sites: Sequence[str] = (), *, quota: float = 0.1) -> list[Audit]:
        """Rank the labels of the sites by suspicion; see `fedgsca.audit`."""
        return audit(self, sites, quota=quota)

    def predict(self, images: PathLike | Iterable[PathLike]) -> Predictions:
        """Class probabilities of image files; see `fedgsca.predict`."""
        return predict(self, images)


def run(
    config: Config,
    out: PathLike,
    *,
    jobs: int = 1,
    engine: str = "local",
    progress: bool = False,
    track: str | None = None,
) -> Run:
    """Train, or continue the run in this folder; a finished run is returned as it is.

    Parameters
    ----------
    config
        The experiment, from `Config.load`. What nobody has set and the data decides (the network,
        who has which images) is chosen here, as on the command line.
    out
        The run folder. It must be new, or hold the same experiment.
    jobs
        How many sites train at the same time. The result does not depend on it.
    engine
        A registered engine: "local", or one of your own.
    progress
        Show progress on stderr.
    track
        "tensorboard", "mlflow" or both with a comma; default: the configuration, or what an
        earlier session of this run used. A finished run is not recorded again.
    """
    from fedgsca.federation.base import ObserverGroup, find_engine
    from fedgsca.federation.choose_settings import complete
    from fedgsca.federation.data_source import load_once
    from fedgsca.federation.progress import display
    from fedgsca.lab.tracking import find_targets, track_run

    folder = Path(out)
    targets = find_targets(track, config, folder)
    with load_once(), display(quiet=not progress) as screen:
        config = complete(config).config
        observer = screen.observe(config.method)
        tracking = track_run(observer.on_message, folder, config, targets)
        result = None
        try:
            result = find_engine(engine).run(
                config, folder, jobs=jobs, observer=ObserverGroup(observer, tracking)
            )
        finally:
            if tracking is not None:
                tracking.finish(result)
    return Run(folder)


def resume(folder: PathLike, *, jobs: int = 1, progress: bool = False) -> Run:
    """Continue an interrupted run. The result is bit-identical to that of an uninterrupted one."""
    return run(load_run(folder).config, folder, jobs=jobs, progress=progress)


def load_run(folder: PathLike) -> Run:
    """An existing run folder, finished or not."""
    path = Path(folder)
    if not (path / "config.toml").is_file():
        raise RunFolderError(
            "run.not-a-run-folder",
            f"{path} is not a run folder: it has no config.toml",
            fix="give the folder that was passed to fedgsca.run or `fedgsca run --out`",
        )
    return Run(path)


def compare(
    methods: Sequence[str],
    config: Config,
    *,
    out: PathLike,
    noises: Sequence[str] | None = None,
    models: Sequence[str] = (),
    vary: Mapping[str, Sequence[object]] | None = None,
    seeds: int | Sequence[int] = 3,
    ceiling: bool = True,
    jobs: int = 1,
) -> ComparisonResult:
    """Train every method under every noise with every seed.

    Parameters
    ----------
    methods
        Names such as ["fedavg", "fedgsca"].
    config
        The settings of all runs; method, noise and seed are replaced.
    out
        A folder for the runs and the tables. The same call resumes an interrupted comparison.
    noises
        Such as ["S40", "0-S40-P20-C20"]; default: the noise of `config`.
    models
        Networks to compare, such as ["cnn", "efficientnet-lite0+frozen"]; default: that of
        `config`.
    vary
        Settings with several values each, such as {"data.sites": [4, 10]}: every combination is a
        condition of its own.
    seeds
        A number of seeds (3 means 0, 1, 2), or the seeds themselves.
    ceiling
        Also train FedAvg without the wrong labels, which `recovery` needs.

    Returns a result whose `rows` hold mean and standard deviation per method and noise.
    """
    from fedgsca.federation.choose_settings import complete
    from fedgsca.federation.data_source import load_once
    from fedgsca.lab import comparison
    from fedgsca.lab.report.html_page import write_report

    with load_once():
        result = comparison.compare(
            methods,
            complete(config, noises or ()).config,
            noises=noises,
            models=models,
            vary=vary,
            seeds=seeds,
            out=Path(out),
            ceiling=ceiling,
            jobs=jobs,
        )
    write_report(Path(out), with_figures=True)
    return result


def audit(run: Run | PathLike, sites: Sequence[str] = (), *, quota: float = 0.1) -> list[Audit]:
    """Rank the labels of a run's sites by how suspicious they are.

    Parameters
    ----------
    run
        A run or its folder, finished or not.
    sites
        Names of sites; default: all.
    quota
        Share of the labels on the review list, 0 to 1.

    Returns one audit per site. `audit.suspects()` yields the labels to check, the most suspicious
    first; `audit.summary` estimates how many labels are wrong.
    """
    from fedgsca.labels.audits import audit_run

    return audit_run(_folder(run), sites=sites, quota=quota)


def audit_folder(
    data: PathLike,
    out: PathLike,
    *,
    labels: PathLike | None = None,
    quota: float = 0.1,
    settings: Sequence[str] = (),
) -> Audit:
    """Rank the labels of one folder of images, without a run and without other hospitals.

    Parameters
    ----------
    data
        A folder, an .npz file, or kind:PATH.
    out
        A folder for the evidence and the audit; the same call continues after an interruption.
    labels
        A csv of corrected labels, from `apply_decisions`.
    quota
        Share of the labels on the review list, 0 to 1.
    settings
        Further settings as "section.key=value", such as "model.feature_size=224".

    Returns one audit; `record_decisions` and `apply_decisions` take it.
    """
    from fedgsca.labels import audits

    return audits.audit_folder(
        os.fspath(data),
        Path(out),
        labels=None if labels is None else Path(labels),
        quota=quota,
        settings=settings,
    )


def record_decisions(
    audit: Audit, labels: Mapping[str, str | None], *, reviewer: str, reason: str = ""
) -> None:
    """Record what the labels of some images should be, as the review page does.

    Parameters
    ----------
    audit
        The audit of a site, from `fedgsca.audit`.
    labels
        Image (`suspect.id`) -> the correct class, or None if it cannot be decided. The given class
        confirms a label.
    reviewer
        The name of the person who decided; it is part of the log.
    reason
        A remark for the log.
    """
    suspects = {suspect.id: suspect for suspect in audit.ranked_labels()}
    unknown_ids = sorted(set(labels) - set(suspects))
    if unknown_ids:
        raise DataError(
            "audit.unknown-image",
            f"the audit of {audit.site} has no image {unknown_ids[0]!r}",
            fix="use the id of a suspect of this audit",
        )
    decisions = audit.open_decisions()
    for image, label in labels.items():
        decisions.record(suspects[image], label, reviewer=reviewer, reason=reason)


def apply_decisions(source: Run | Audit | PathLike) -> CorrectedLabels:
    """Write the corrected labels beside the old ones, with a log of the changes.

    `source` is a run, which applies the decisions of all its sites, or the audit of one site.
    `result.file` is a csv for `Config.load(..., labels=...)`, None if no label changed and none was
    confirmed. It marks the labels that were checked. Nothing is overwritten.
    """
    from fedgsca.labels import apply_decisions as decisions
    from fedgsca.labels.audit_table import Audit

    if isinstance(source, Audit):
        return decisions.apply_decisions(source.path)
    return decisions.apply_decisions(_folder(source))


def predict(model: Run | PathLike, images: PathLike | Iterable[PathLike]) -> Predictions:
    """Class probabilities of image files.

    Parameters
    ----------
    model
        A finished run, its folder, or the folder of an export.
    images
        An image file, a folder that is searched to any depth, or several of these.
    """
    from fedgsca.lab.export import prediction

    return prediction.predict(_folder(model), images)


def _folder(run: Run | PathLike) -> Path:
    return run.folder if isinstance(run, Run) else Path(run)
