"""What a tracker is, how `--track` names one, and the numbers of a round that it gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedgsca.errors import ConfigError
from fedgsca.federation.records import RoundRecord, SiteRecord, finite
from fedgsca.support.text import did_you_mean

TENSORBOARD = "tensorboard"
MLFLOW = "mlflow"
WANDB = "wandb"
KINDS = (TENSORBOARD, MLFLOW, WANDB)
# the folder of TensorBoard's files within a run
TENSORBOARD_FOLDER = "tensorboard"
# the folder of MLflow's files beside the runs
MLFLOW_FOLDER = "mlruns"


@dataclass(frozen=True)
class TrackTarget:
    """One part of `--track`: a kind, and where its records go; None: local files."""

    kind: str
    place: str | None = None

    def __str__(self) -> str:
        return self.kind if self.place is None else f"{self.kind}:{self.place}"


@dataclass(frozen=True)
class RunLabel:
    """What a tracker calls a run."""

    name: str
    # shared by runs that belong together: the data set
    experiment: str
    # small facts to search by
    tags: Mapping[str, str]
    # the comparison to which the run belongs, as the tracker of the comparison named it
    parent: str | None = None


class Tracker(Protocol):
    """The record of one run, or of a comparison. Every method may fail; callers survive that."""

    def open(self, label: RunLabel, settings: Mapping[str, str]) -> str | None:
        """Begin the record, or continue the one that the run had before.

        Returns a name under which children of this record refer to it; None: no name is needed.
        """
        ...

    @property
    def last_step(self) -> int:
        """The last round, from 1, that the record has; 0 if it has none."""
        ...

    def log_round(self, step: int, values: Mapping[str, float]) -> None:
        """Add the numbers of one round, counted from 1."""
        ...

    def log_text(self, name: str, text: str) -> None:
        """Add a text in Markdown."""
        ...

    def log_files(self, paths: Sequence[Path]) -> None:
        """Add files that exist, such as the report and the model."""
        ...

    def close(self, state: str) -> None:
        """End the session: "finished", "failed" or "stopped"."""
        ...


def parse_targets(text: str | None) -> tuple[TrackTarget, ...]:
    """ "tensorboard", "mlflow:http://server:5000", or several with commas; None is nothing."""
    targets: dict[str, TrackTarget] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        kind, _, place = part.strip().partition(":")
        kind = kind.strip().lower()
        if kind not in KINDS:
            raise ConfigError(
                "track.unknown-tracker",
                f"unknown tracker {kind!r}",
                fix=f"{did_you_mean(kind, KINDS)}use one of: {', '.join(KINDS)}",
            )
        if kind != MLFLOW and place:
            raise ConfigError(
                "track.no-place",
                f"the files of {kind} are always in the folder of the run",
                fix=f"use --track {kind}",
            )
        targets[kind] = TrackTarget(kind, place.strip() or None)
    return tuple(targets.values())


def require_packages(targets: Sequence[TrackTarget]) -> None:
    """Raise MissingExtraError before anything runs if a tracker is not installed."""
    for target in targets:
        if target.kind == TENSORBOARD:
            from fedgsca.lab.tracking.tensorboard_tracker import require_tensorboard

            require_tensorboard()
        elif target.kind == WANDB:
            from fedgsca.lab.tracking.wandb_tracker import require_wandb

            require_wandb()
        else:
            from fedgsca.lab.tracking.mlflow_tracker import require_mlflow

            require_mlflow()


def make_tracker(target: TrackTarget, folder: Path, store: Path) -> Tracker:
    """The tracker of the run in `folder`; `store` is where runs that belong together are."""
    if target.kind == TENSORBOARD:
        from fedgsca.lab.tracking.tensorboard_tracker import TensorBoardTracker

        return TensorBoardTracker(folder / TENSORBOARD_FOLDER)
    if target.kind == WANDB:
        from fedgsca.lab.tracking.wandb_tracker import WandbTracker

        return WandbTracker(folder)
    from fedgsca.lab.tracking.mlflow_tracker import MlflowTracker, file_uri

    return MlflowTracker(target.place or file_uri(store / MLFLOW_FOLDER), folder)


def safe_name(text: str) -> str:
    """A name of a metric that every tracker accepts."""
    return re.sub(r"[^\w./ -]", "_", text, flags=re.ASCII)[:250]


# fields of RoundRecord -> names; a slash makes a group in both tools
_SCORES = {
    "f1": "test/f1",
    "recall": "test/recall",
    "precision": "test/precision",
    "loss": "test/loss",
    "val_f1": "val/f1",
    "expected_f1": "holdout/expected_f1",
    "lr": "train/lr",
    "stability": "train/stability",
    "bytes_up": "traffic/bytes_up",
    "bytes_down": "traffic/bytes_down",
}
_MAX_ITEMS = 16  # of a list that a site sends, such as one threshold per class


def round_values(record: RoundRecord) -> dict[str, float]:
    """All finite numbers of a round: scores, traffic, and what every site reported."""
    values: dict[str, float] = {}
    for field_name, name in _SCORES.items():
        value = finite(getattr(record, field_name))
        if value is not None:
            values[name] = value
    values["sites/answered"] = float(len(record.sites))
    values["sites/refused"] = float(len(record.refusals))
    if record.privacy is not None:
        values["privacy/epsilon"] = record.privacy.epsilon
    for site, site_record in record.sites.items():
        values |= _site_values(site, site_record)
    for site in record.refusals:
        values[safe_name(f"site/{site}/refused")] = 1.0
    return values


def _site_values(site: str, record: SiteRecord) -> Mapping[str, float]:
    values: dict[str, float] = {}
    for name in record.values:
        key = safe_name(f"site/{site}/{name}")
        number = record.number(name)
        if number is not None:
            values[key] = number
            continue
        items = record.numbers(name)
        if len(items) <= _MAX_ITEMS:
            for i, item in enumerate(items):
                if item is not None:
                    values[f"{key}/{i}"] = item
    return values
