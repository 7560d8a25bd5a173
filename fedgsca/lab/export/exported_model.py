"""A model to predict with: a run folder or an exported one, behind one interface."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedgsca.errors import RunFolderError
from fedgsca.lab.export.formats import FORMATS
from fedgsca.lab.export.model_json import read_description
from fedgsca.lab.export.temperature import TemperatureFit
from fedgsca.lab.export.trained_model import Probabilities, as_evaluated, read_trained
from fedgsca.support.files import sha256_file


@dataclass(frozen=True)
class LoadedModel:
    """Takes images of one size and returns the probability of every class."""

    path: Path
    # "run", or the format of the exported file
    format: str
    classes: tuple[str, ...]
    # height, width
    image_size: tuple[int, int]
    # what 16-bit grey values are divided by; None: decide image by image
    white: int | None
    # of the training configuration
    fingerprint: str
    # (n, H, W, 3) uint8, or (n, D) float32 features -> (n, C)
    probabilities: Probabilities
    # what was done to them; None: they are those of the run's model
    calibration: TemperatureFit | None = None
    # D, if it takes features instead of images
    feature_width: int | None = None


def open_model(path: Path) -> LoadedModel:
    """The model in the folder of a finished run or of an export."""
    if (path / "model.json").is_file():
        return _open_export(path)
    if not path.is_dir():
        raise RunFolderError(
            "run.folder-not-found",
            f"the folder {path} does not exist",
            fix="give the folder of a run, or one that `fedgsca export` has written",
        )
    if not (path / "config.toml").is_file() and not (path / "plan.json").is_file():
        raise RunFolderError(
            "predict.no-model",
            f"{path} contains no model: it has neither a config.toml (a run) nor a model.json "
            "(an export)",
            fix="give a folder that `fedgsca run` or `fedgsca export` has written",
        )
    trained_model = read_trained(path)
    return LoadedModel(
        path=path,
        format="run",
        classes=trained_model.classes,
        image_size=trained_model.image_size,
        white=trained_model.white,
        fingerprint=trained_model.config.fingerprint(),
        probabilities=as_evaluated(trained_model),
        feature_width=trained_model.feature_width,
    )


def _open_export(path: Path) -> LoadedModel:
    description = read_description(path)
    if description.format not in FORMATS:
        raise RunFolderError(
            "export.unknown-format",
            f"{path} has the unknown format {description.format!r}",
            fix="export the model again with this version of fedgsca",
        )
    file = path / description.file
    if not file.is_file():
        raise RunFolderError(
            "export.missing-file",
            f"{file} is missing",
            fix="copy the complete exported folder, or export the model again",
        )
    if sha256_file(file) != description.sha256:
        raise RunFolderError(
            "export.damaged-file",
            f"{file} is damaged or was replaced: its sha256 differs from the one in model.json",
            fix="export the model again",
        )
    return LoadedModel(
        path=path,
        format=description.format,
        classes=description.classes,
        image_size=description.image_size,
        white=description.white_level,
        fingerprint=description.training.fingerprint,
        probabilities=FORMATS[description.format].open(file, description),
        calibration=description.calibration,
        feature_width=description.feature_width,
    )
