"""Images to probabilities: files in batches through the decoder of the training data, so that nothing but a batch is in memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from fedgsca.data.decode.image_files import Unreadable, decode, is_image
from fedgsca.data.file_facts import WORKERS
from fedgsca.data.file_list import list_files, list_folder
from fedgsca.errors import DataError
from fedgsca.export.exported_model import Model
from fedgsca.metrics import confusion


@dataclass(frozen=True)
class Picture:
    """One file to predict, under the name that it gets in the table."""

    name: str
    path: Path
    label: str = ""
    split: str = ""


@dataclass
class Outcome:
    """What a prediction amounts to; grows with the number of classes and of unreadable files only."""

    predicted: np.ndarray  # (C,) images by predicted class
    matrix: np.ndarray  # (C, C) rows: given label; zeros without labels
    bad: list[tuple[str, str]] = field(default_factory=list)

    @property
    def images(self) -> int:
        return int(self.predicted.sum())


def find_pictures(places: Sequence[Path]) -> list[Picture]:
    """All images of folders, by name, and the files given; a single folder's images are named by their path below it."""
    found: list[Picture] = []
    for place in places:
        if place.is_dir():
            names = [name for name in list_files(place) if is_image(place / name)]
            found += [
                Picture(name if len(places) == 1 else (place / name).as_posix(), place / name)
                for name in names
            ]
            if not names:
                raise DataError(
                    "todo.prediction-1",
                    f"no images in {place}",
                    fix="give a folder with JPEG, PNG, TIFF, BMP or DICOM files",
                )
        elif place.is_file():
            found.append(Picture(str(place), place))
        else:
            raise DataError(
                "todo.prediction-2", f"{place} does not exist", fix="give image files or folders"
            )
    return found


def labelled_pictures(root: Path, classes: Sequence[str], split: str | None) -> list[Picture]:
    """The images of a folder's own list with their labels; `split` takes a part of it."""
    listing = list_folder(root)
    listing.refuse()
    if split is not None and "split" not in listing.columns:
        raise DataError(
            "todo.prediction-3",
            f"{root}: there is no split to choose {split} from",
            fix="add a split column to labels.csv",
        )
    rows = [row for row in listing.rows if split in (None, row.split)]
    if not rows:
        raise DataError(
            "todo.prediction-4", f"{root}: no image of split {split}", fix="choose another split"
        )
    strange = sorted({row.label for row in rows} - set(classes))
    if strange:
        raise DataError(
            "todo.prediction-5",
            f"{root}: {len(strange)} labels that the model does not know: {', '.join(strange[:5])}",
            fix=f"its {len(classes)} classes are {', '.join(classes)}; leave out --score to predict without comparing",
        )
    return [Picture(row.file, root / row.file, row.label, row.split) for row in rows]


def predict(model: Model, pictures: Sequence[Picture], to: IO[bytes], *, batch: int) -> Outcome:
    """Write the csv, one row per image in order; files that cannot be read have no row and are listed in the outcome."""
    number = {name: i for i, name in enumerate(model.classes)}
    outcome = Outcome(
        np.zeros(len(number), np.int64), np.zeros((len(number), len(number)), np.int64)
    )
    _write(to, [["file", "predicted", "probability", *model.classes]])
    for good, probs in _answers(model, pictures, batch, outcome.bad):
        best = probs.argmax(axis=1)
        _write(
            to,
            [
                _row(picture.name, model.classes[b], p[b], p)
                for picture, b, p in zip(good, best, probs, strict=True)
            ],
        )
        outcome.predicted += np.bincount(best, minlength=len(number))
        if good[0].label:
            outcome.matrix += confusion(
                np.array([number[picture.label] for picture in good]), best, len(number)
            )
    return outcome


def _answers(
    model: Model, pictures: Sequence[Picture], batch: int, bad: list[tuple[str, str]]
) -> Iterator[tuple[list[Picture], np.ndarray]]:
    height, width = model.image_size
    if height != width:
        raise DataError(
            "todo.prediction-6",
            f"the model was trained on images of {width}x{height} pixels; files can be brought to squares only",
            fix="call the exported model from a program of yours, with images of that size",
        )

    def read(picture: Picture) -> np.ndarray | str:
        try:
            return (
                decode(picture.path, height, model.white)
                if is_image(picture.path)
                else "not an image"
            )
        except Unreadable as error:
            return str(error)

    with ThreadPoolExecutor(WORKERS) as pool:
        for start in range(0, len(pictures), batch):
            part = pictures[start : start + batch]
            images = list(pool.map(read, part))
            bad.extend(
                (picture.name, image)
                for picture, image in zip(part, images, strict=True)
                if isinstance(image, str)
            )
            good = [
                picture
                for picture, image in zip(part, images, strict=True)
                if not isinstance(image, str)
            ]
            if good:
                yield (
                    good,
                    model.probabilities(
                        np.stack([image for image in images if not isinstance(image, str)])
                    ),
                )


def _row(name: str, predicted: str, best: float, probs: np.ndarray) -> list[str]:
    return [name, predicted, f"{best:.6f}", *(f"{p:.6f}" for p in probs)]


def _write(to: IO[bytes], rows: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    to.write(text.getvalue().encode("utf-8", "surrogateescape"))  # file names may be any bytes


def counts(model: Model, outcome: Outcome) -> Mapping[str, int]:
    return dict(zip(model.classes, outcome.predicted.tolist(), strict=True))
