"""Image files to class probabilities, through the decoder of the training data.

    predictions = predict("runs/a", "new_images")
    predictions.labels[0], predictions.probabilities[0]

A model is a run folder or an exported one, behind one interface. `predict` returns everything at
once. `write_predictions` streams to a csv file, so that only one batch is in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from fedgsca.data.file_list import WORKERS, list_files
from fedgsca.data.image_files import UnreadableImageError, decode, is_image
from fedgsca.data.readers.features_npz import read_features
from fedgsca.data.readers.folder import list_folder
from fedgsca.errors import DataError, RunFolderError
from fedgsca.lab.export.formats import FORMATS
from fedgsca.lab.export.model_json import read_description
from fedgsca.lab.export.temperature import TemperatureFit
from fedgsca.lab.export.trained_model import Probabilities, as_evaluated, read_trained
from fedgsca.metrics import confusion
from fedgsca.support.csv_table import write_cells
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


BATCH_SIZE = 64
_MAX_NAMES = 5  # that an error lists


@dataclass(frozen=True)
class ImageFile:
    """One file to predict, under the name that it gets in the table."""

    name: str
    path: Path
    label: str = ""
    split: str = ""


@dataclass(frozen=True)
class UnreadableFile:
    """A file without a prediction."""

    name: str
    reason: str


@dataclass(frozen=True)
class Predictions:
    """The result of `predict`. Files that cannot be read have no row and are listed apart."""

    # n names
    files: tuple[str, ...]
    # C names, in the order of the columns
    classes: tuple[str, ...]
    # (n, C) float32, rows sum to 1
    probabilities: np.ndarray
    unreadable: tuple[UnreadableFile, ...] = ()

    def __len__(self) -> int:
        """The number of images with a prediction."""
        return len(self.files)

    @property
    def indices(self) -> np.ndarray:
        """(n,) int: the most probable class of every image, as an index of `classes`."""
        return np.asarray(self.probabilities.argmax(axis=1))

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of the most probable class of every image."""
        return tuple(self.classes[index] for index in self.indices)

    @property
    def confidences(self) -> np.ndarray:
        """(n,): the probability of the most probable class of every image."""
        return np.asarray(self.probabilities.max(axis=1))


@dataclass
class PredictionSummary:
    """Counts of a prediction; it grows only with classes and unreadable files."""

    # (C,) images by predicted class
    class_counts: np.ndarray
    # (C, C) rows: given label; zeros without labels
    matrix: np.ndarray
    unreadable: list[UnreadableFile] = field(default_factory=list)

    @property
    def num_images(self) -> int:
        """Images with a prediction."""
        return int(self.class_counts.sum())


def predict(
    model: LoadedModel | str | os.PathLike[str],
    images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    batch_size: int = BATCH_SIZE,
) -> Predictions:
    """Class probabilities of image files.

    `model` is the folder of a finished run or of an export, or an opened model; `images` a folder,
    which is searched to any depth, an image file, or several of these. Without any image that can
    be read, this is an error.
    """
    if not isinstance(model, LoadedModel):
        model = open_model(Path(model))
    if isinstance(images, str | os.PathLike):
        images = [images]
    files = find_images([Path(image) for image in images])
    names: list[str] = []
    batches: list[np.ndarray] = []
    unreadable: list[UnreadableFile] = []
    for batch_files, probs in _predict_batches(model, files, batch_size, unreadable):
        names += [file.name for file in batch_files]
        batches.append(probs)
    if not batches:
        example = f", first {unreadable[0].name} ({unreadable[0].reason})" if unreadable else ""
        raise DataError(
            "predict.unreadable-images",
            f"none of {len(files)} images can be read{example}",
            fix="give JPEG, PNG, TIFF, BMP or DICOM files",
        )
    probabilities = np.concatenate(batches).astype(np.float32)
    return Predictions(tuple(names), model.classes, probabilities, tuple(unreadable))


def find_images(places: Sequence[Path]) -> list[ImageFile]:
    """All images of folders, sorted by name, and the given files.

    The images of a single folder are named by their path below it.
    """
    files: list[ImageFile] = []
    for place in places:
        if place.is_dir():
            files += _find_in_folder(place, short_names=len(places) == 1)
        elif place.is_file():
            files.append(ImageFile(str(place), place))
        else:
            raise DataError(
                "predict.file-not-found",
                f"{place} does not exist",
                fix="give image files or folders that exist",
            )
    return files


def _find_in_folder(folder: Path, *, short_names: bool) -> list[ImageFile]:
    files = []
    for name in list_files(folder):
        path = folder / name
        if is_image(path):
            files.append(ImageFile(name if short_names else path.as_posix(), path))
    if not files:
        raise DataError(
            "predict.no-images",
            f"there are no images in {folder}",
            fix="give a folder with JPEG, PNG, TIFF, BMP or DICOM files",
        )
    return files


def find_labelled_images(root: Path, classes: Sequence[str], split: str | None) -> list[ImageFile]:
    """The images of a folder's own list with their labels; `split` selects a part of it."""
    file_list = list_folder(root)
    file_list.raise_problems()
    if split is not None and "split" not in file_list.columns:
        raise DataError(
            "predict.no-split-column",
            f"the list of {root} has no split column to select {split!r} from",
            fix="add a split column to labels.csv",
        )
    rows = [row for row in file_list.rows if split in (None, row.split)]
    if not rows:
        raise DataError(
            "predict.empty-split",
            f"{root} has no image of split {split!r}",
            fix="choose another split",
        )
    unknown_labels = sorted({row.label for row in rows} - set(classes))
    if unknown_labels:
        names = ", ".join(unknown_labels[:_MAX_NAMES])
        raise DataError(
            "predict.unknown-label",
            f"{root} has {len(unknown_labels)} labels that are not classes of the model: {names}",
            fix=f"rename them to one of the {len(classes)} classes ({', '.join(classes)}), or "
            "leave out --score to predict without comparing",
        )
    return [ImageFile(row.file, root / row.file, row.label, row.split) for row in rows]


def write_predictions(
    model: LoadedModel, files: Sequence[ImageFile], sink: IO[bytes], *, batch_size: int = BATCH_SIZE
) -> PredictionSummary:
    """Write a csv with one row per image, in order, and count the predictions.

    Files that cannot be read have no row and are listed in the summary.
    """
    num_classes = len(model.classes)
    index_of = {name: i for i, name in enumerate(model.classes)}
    summary = PredictionSummary(
        np.zeros(num_classes, np.int64), np.zeros((num_classes, num_classes), np.int64)
    )
    _write_rows(sink, [["file", "predicted", "probability", *model.classes]])
    for batch_files, probs in _predict_batches(model, files, batch_size, summary.unreadable):
        best = probs.argmax(axis=1)
        rows = []
        for file, index, row in zip(batch_files, best, probs, strict=True):
            numbers = [f"{value:.6f}" for value in (row[index], *row)]
            rows.append([file.name, model.classes[index], *numbers])
        _write_rows(sink, rows)
        summary.class_counts += np.bincount(best, minlength=num_classes)
        if batch_files[0].label:
            labels = np.array([index_of[file.label] for file in batch_files])
            summary.matrix += confusion(labels, best, num_classes)
    return summary


def _predict_batches(
    model: LoadedModel,
    files: Sequence[ImageFile],
    batch_size: int,
    unreadable: list[UnreadableFile],
) -> Iterator[tuple[list[ImageFile], np.ndarray]]:
    """The readable files of every batch with their probabilities; adds to `unreadable`."""
    if model.feature_width is not None:
        yield from _predict_features(model, model.feature_width, files, batch_size)
        return
    size, width = model.image_size
    if size != width:
        raise DataError(
            "predict.not-square",
            f"the model was trained on images of {width}x{size} pixels, but files can only be "
            "resized to squares",
            fix="call the exported model from your own program, with images of that size",
        )

    read = partial(_read_image, size=size, white=model.white)
    with ThreadPoolExecutor(WORKERS) as pool:
        for start in range(0, len(files), batch_size):
            batch_files = files[start : start + batch_size]
            readable_files: list[ImageFile] = []
            images: list[np.ndarray] = []
            for file, image in zip(batch_files, pool.map(read, batch_files), strict=True):
                if isinstance(image, UnreadableFile):
                    unreadable.append(image)
                else:
                    readable_files.append(file)
                    images.append(image)
            if images:
                yield readable_files, model.probabilities(np.stack(images))


def _predict_features(
    model: LoadedModel, width: int, files: Sequence[ImageFile], batch_size: int
) -> Iterator[tuple[list[ImageFile], np.ndarray]]:
    """The same for a model that takes features: each file is an .npz, and each row has a name."""
    for file in files:
        if file.path.suffix.lower() != ".npz":
            raise DataError(
                "predict.needs-features",
                f"the model takes features of your own network, and {file.name} is not an .npz"
                " file",
                fix=f"give an .npz file with an array features of shape (n, {width})",
            )
        content = read_features(file.path)
        features = content.features
        if features.shape[1] != width:
            raise DataError(
                "data.feature-width",
                f"{file.name} has {features.shape[1]} features per image, and the model takes"
                f" {width}",
                fix="compute the features with the network of the training features",
            )
        names = content.columns.get("files")
        for start in range(0, len(features), batch_size):
            rows = range(start, min(start + batch_size, len(features)))
            batch_files = []
            for row in rows:
                name = f"row/{row}" if names is None else str(names[row])
                batch_files.append(ImageFile(name, file.path))
            yield batch_files, model.probabilities(features[rows.start : rows.stop])


def _read_image(file: ImageFile, size: int, white: int | None) -> np.ndarray | UnreadableFile:
    """(size, size, 3) uint8."""
    if not is_image(file.path):
        return UnreadableFile(file.name, "not an image")
    try:
        return decode(file.path, size, white)
    except UnreadableImageError as error:
        return UnreadableFile(file.name, str(error))


def _write_rows(sink: IO[bytes], rows: Sequence[Sequence[str]]) -> None:
    for row in rows:
        write_cells(sink, row)
