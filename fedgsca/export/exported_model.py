"""A model to predict with: a run's folder or an exported one, behind one face."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedgsca.data.file_facts import sha256_file
from fedgsca.errors import RunFolderError
from fedgsca.export.formats import FORMATS
from fedgsca.export.model_json import read_description
from fedgsca.export.trained_model import Probabilities, as_evaluated, read_trained


@dataclass(frozen=True)
class Model:
    """Takes images of one size and answers with the probability of every class."""

    path: Path
    format: str  # "run" or the format of the exported file
    classes: tuple[str, ...]
    image_size: tuple[int, int]  # height, width
    white: int | None  # what 16-bit grey is divided by; None: decide image by image
    fingerprint: str  # of the training configuration
    probabilities: Probabilities


def open_model(path: Path) -> Model:
    if (path / "model.json").is_file():
        return _exported(path)
    if not path.is_dir():
        raise RunFolderError(
            "todo.exported-model-1",
            f"{path} is not a folder",
            fix="give the folder of a run, or one that `fedgsca export` made",
        )
    if not (path / "config.toml").is_file() and not (path / "plan.json").is_file():
        raise RunFolderError(
            "todo.exported-model-2",
            f"{path} holds no model: it has neither a config.toml (a run) nor a model.json (an export)",
            fix="give the folder that `fedgsca run` or `fedgsca export` made",
        )
    run = read_trained(path)
    return Model(
        path,
        "run",
        run.classes,
        run.image_size,
        run.white,
        run.config.fingerprint(),
        as_evaluated(run),
    )


def _exported(path: Path) -> Model:
    about = read_description(path)
    if about.format not in FORMATS:
        raise RunFolderError(
            "todo.exported-model-3",
            f"{path}: unknown format {about.format!r}",
            fix="export the model again with this version of fedgsca",
        )
    file = path / about.file
    if not file.is_file():
        raise RunFolderError(
            "todo.exported-model-4",
            f"{file} is missing",
            fix="copy the whole exported folder, or export the model again",
        )
    if sha256_file(file) != about.sha256:
        raise RunFolderError(
            "todo.exported-model-5",
            f"{file} is damaged or was replaced: its sha256 is not the one in model.json",
            fix="export it again",
        )
    answer = FORMATS[about.format].open(file, about)
    fingerprint = str(about.training.get("fingerprint", ""))
    return Model(
        path, about.format, about.classes, about.image_size, about.white_level, fingerprint, answer
    )
