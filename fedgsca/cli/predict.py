"""`fedgsca predict`: a model on image files, to csv."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import Json, Quiet
from fedgsca.errors import ConfigError, DataError
from fedgsca.support.console import console, make_table, print_json, print_note, print_warning
from fedgsca.support.files import open_atomic
from fedgsca.support.text import number

if TYPE_CHECKING:
    from fedgsca.export.exported_model import LoadedModel
    from fedgsca.export.prediction import PredictionSummary


class Split(StrEnum):
    """Parts of a folder with a split column."""

    train = "train"
    val = "val"
    test = "test"


Where = Annotated[
    Path, typer.Argument(metavar="MODEL", help="folder of a run, or one that `fedgsca export` made")
]
Images = Annotated[
    list[Path],
    typer.Argument(metavar="IMAGES...", help="image files and folders, searched to any depth"),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="csv file; default: stdout")]
Batch = Annotated[int, typer.Option("--batch", min=1, max=4096, help="images at a time")]
Score = Annotated[
    bool,
    typer.Option(
        "--score", help="compare with the labels of the folder's labels.csv or class folders"
    ),
]
Part = Annotated[
    Split | None, typer.Option("--split", help="with --score: only this part of the folder")
]
Skip = Annotated[
    bool, typer.Option("--skip-unreadable", help="files that cannot be read are not an error")
]


def add(app: typer.Typer) -> None:
    app.command(
        "predict",
        help="Classify images with a run's or an exported model, to csv.",
        rich_help_panel="Use a model",
    )(predict)


def predict(
    model: Where,
    images: Images,
    out: Out = None,
    batch: Batch = 64,
    score: Score = False,
    split: Part = None,
    skip_unreadable: Skip = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    if json and out is None:
        raise ConfigError(
            "todo.predict-1",
            "--json and the csv cannot share stdout",
            fix="name a file for the csv with --out",
        )
    if split is not None and not score:
        raise ConfigError(
            "todo.predict-2", "--split needs labels to be compared with", fix="add --score"
        )
    if score and (len(images) != 1 or not images[0].is_dir()):
        raise ConfigError(
            "todo.predict-3",
            "--score needs one folder with labels",
            fix="give one folder with a labels.csv or class folders",
        )
    if out is not None and out.is_dir():
        raise ConfigError("todo.predict-4", f"--out {out} is a folder", fix="name a csv file")
    from fedgsca.export.exported_model import open_model
    from fedgsca.export.prediction import find_images, find_labelled_images, write_predictions

    opened = open_model(model)
    part = None if split is None else split.value
    pictures = (
        find_labelled_images(images[0], opened.classes, part) if score else find_images(images)
    )
    if split is None and any(picture.split == "train" for picture in pictures):
        print_warning(
            "the score includes images that are marked for training; --split test leaves them out"
        )
    with _sink(out) as to:
        outcome = write_predictions(opened, pictures, to, batch_size=batch)
    summary = _summary(opened, outcome, out, score=score)
    if not (quiet and skip_unreadable):
        for file in outcome.unreadable:
            print_note(f"unreadable: {file.name} ({file.reason})", "yellow")
    if json:
        print_json(summary)
    elif not quiet and outcome.num_images:
        _show(summary)
    if outcome.unreadable and not (skip_unreadable and outcome.num_images):
        raise DataError(
            "todo.predict-5",
            f"{len(outcome.unreadable)} of {len(pictures)} images cannot be read and have no row",
            fix="replace the files named above"
            + (", or accept it with --skip-unreadable" if outcome.num_images else ""),
        )


@contextmanager
def _sink(out: Path | None) -> Iterator[IO[bytes]]:
    """A file that appears when it is complete, or stdout."""
    if out is not None:
        with open_atomic(out) as handle:
            yield handle
        return
    try:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def _summary(
    model: LoadedModel, outcome: PredictionSummary, out: Path | None, *, score: bool
) -> dict[str, Any]:
    from fedgsca.export.prediction import count_by_class
    from fedgsca.metrics import per_class, scores

    found: dict[str, Any] = {
        "model": str(model.path),
        "format": model.format,
        "fingerprint": model.fingerprint,
        "images": outcome.num_images,
        "predicted": count_by_class(model, outcome),
        "unreadable": [{"file": file.name, "reason": file.reason} for file in outcome.unreadable],
        "out": None if out is None else str(out),
    }
    if score and outcome.num_images:
        matrix = outcome.matrix
        found["accuracy"] = 100.0 * float(matrix.trace()) / outcome.num_images
        found |= scores(matrix)._asdict()
        found["per_class"] = dict(zip(model.classes, per_class(matrix), strict=True))
        found["confusion"] = matrix.tolist()
    return found


def _show(summary: dict[str, Any]) -> None:
    """On stderr: stdout belongs to the csv."""
    where = f", written to {summary['out']}" if summary["out"] else ""
    print_note(f"{summary['images']} image{'s' * (summary['images'] != 1)}{where}", "bold")
    parts = summary.get("per_class")
    head = ["class", "predicted", *(["labelled", "precision", "recall", "F1"] if parts else [])]
    rows = []
    for name, count in summary["predicted"].items():
        more = (
            [
                str(parts[name]["support"]),
                *(number(parts[name][key]) for key in ("precision", "recall", "f1")),
            ]
            if parts
            else []
        )
        rows.append([name, str(count), *more])
    console(stderr=True).print(make_table(head, rows))
    if parts:
        print_note(f"accuracy {summary['accuracy']:.1f}   macro F1 {summary['f1']:.1f}", "bold")
