"""`fedgsca predict`: a model on image files, to csv. `fedgsca export`: for other programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from fedgsca.cli.options import Json, Quiet
from fedgsca.errors import ConfigError, DataError
from fedgsca.support.console import (
    console,
    make_table,
    print_json,
    print_line,
    print_note,
    print_start,
    print_warning,
)
from fedgsca.support.files import open_atomic
from fedgsca.support.text import number, plural, size_text

if TYPE_CHECKING:
    from fedgsca.lab.export.prediction import LoadedModel, PredictionSummary


class FolderSplit(StrEnum):
    """Parts of a folder with a split column."""

    train = "train"
    val = "val"
    test = "test"


ModelFolder = Annotated[
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
SplitName = Annotated[
    FolderSplit | None, typer.Option("--split", help="with --score: only this part of the folder")
]
SkipUnreadable = Annotated[
    bool, typer.Option("--skip-unreadable", help="files that cannot be read are not an error")
]


def predict(
    model: ModelFolder,
    images: Images,
    out: Out = None,
    batch: Batch = 64,
    score: Score = False,
    split: SplitName = None,
    skip_unreadable: SkipUnreadable = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Classify images with a run's or an exported model, to csv."""
    _check_options(images, out, score=score, split=split, as_json=as_json)
    print_start(f"opening the model of {model}", quiet=quiet or as_json)
    from fedgsca.lab.export.prediction import (
        find_images,
        find_labelled_images,
        open_model,
        write_predictions,
    )
    from fedgsca.lab.export.temperature import describe_fit

    loaded_model = open_model(model)
    if score:
        part = None if split is None else split.value
        files = find_labelled_images(images[0], loaded_model.classes, part)
    else:
        files = find_images(images)
    if split is None and any(file.split == "train" for file in files):
        print_warning(
            "the score includes images that are marked for training; --split test leaves them out"
        )
    with _open_output(out) as handle:
        result = write_predictions(loaded_model, files, handle, batch_size=batch)
    summary = _summarise(loaded_model, result, out, score=score)
    if not (quiet and skip_unreadable):
        for file in result.unreadable:
            print_note(f"unreadable: {file.name} ({file.reason})", "yellow")
    if as_json:
        print_json(summary)
    elif not quiet and result.num_images:
        _show_summary(summary)
        if loaded_model.calibration is not None:
            print_note(describe_fit(loaded_model.calibration))
    if result.unreadable and not (skip_unreadable and result.num_images):
        acceptance = ", or accept the gaps with --skip-unreadable" if result.num_images else ""
        raise DataError(
            "predict.unreadable-images",
            f"{len(result.unreadable)} of {len(files)} images cannot be read and have no row",
            fix=f"replace the files listed above{acceptance}",
        )


def _check_options(
    images: Sequence[Path],
    out: Path | None,
    *,
    score: bool,
    split: FolderSplit | None,
    as_json: bool,
) -> None:
    if as_json and out is None:
        raise ConfigError(
            "predict.json-needs-out",
            "--json and the csv cannot both be written to stdout",
            fix="name a file for the csv with --out",
        )
    if split is not None and not score:
        raise ConfigError(
            "predict.split-needs-score",
            "--split only makes sense where the predictions are compared with labels",
            fix="add --score",
        )
    if score and (len(images) != 1 or not images[0].is_dir()):
        raise ConfigError(
            "predict.score-needs-folder",
            "--score needs exactly one folder with labels",
            fix="give one folder with a labels.csv or class folders",
        )
    if out is not None and out.is_dir():
        raise ConfigError(
            "predict.out-is-folder", f"--out {out} is a folder", fix="give the name of a csv file"
        )


@contextmanager
def _open_output(out: Path | None) -> Iterator[IO[bytes]]:
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


def _summarise(
    model: LoadedModel, result: PredictionSummary, out: Path | None, *, score: bool
) -> dict[str, Any]:
    """The JSON object of --json."""
    from fedgsca.metrics import per_class, scores

    summary: dict[str, Any] = {
        "model": str(model.path),
        "format": model.format,
        "fingerprint": model.fingerprint,
        "calibration": None if model.calibration is None else model.calibration.to_json(),
        "images": result.num_images,
        "predicted": dict(zip(model.classes, result.class_counts.tolist(), strict=True)),
        "unreadable": [{"file": file.name, "reason": file.reason} for file in result.unreadable],
        "out": None if out is None else str(out),
    }
    if score and result.num_images:
        matrix = result.matrix
        summary["accuracy"] = 100.0 * float(matrix.trace()) / result.num_images
        summary |= scores(matrix)._asdict()
        summary["per_class"] = dict(zip(model.classes, per_class(matrix), strict=True))
        summary["confusion"] = matrix.tolist()
    return summary


def _show_summary(summary: dict[str, Any]) -> None:
    """A table on stderr: stdout is for the csv."""
    target = f", written to {summary['out']}" if summary["out"] else ""
    print_note(f"{plural(summary['images'], 'image')}{target}", "bold")
    class_scores = summary.get("per_class")
    header = ["class", "predicted"]
    if class_scores:
        header += ["labelled", "precision", "recall", "F1"]
    rows = []
    for name, count in summary["predicted"].items():
        cells = [name, str(count)]
        if class_scores:
            scores = class_scores[name]
            cells.append(str(scores["support"]))
            cells += [number(scores[key]) for key in ("precision", "recall", "f1")]
        rows.append(cells)
    console(stderr=True).print(make_table(header, rows))
    if class_scores:
        print_note(f"accuracy {summary['accuracy']:.1f}   macro F1 {summary['f1']:.1f}", "bold")


# ---- export ----


class ModelFormat(StrEnum):
    """Formats by name; export/formats.py writes them, but imports numpy."""

    safetensors = "safetensors"
    onnx = "onnx"
    torchscript = "torchscript"


Run = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run")]
FormatName = Annotated[
    ModelFormat, typer.Option("--format", help="onnx needs the extra of that name")
]
ExportFolder = Annotated[
    Path | None, typer.Option("--out", help="new folder; default RUN/export-FORMAT")
]
Checkpoint = Annotated[
    bool, typer.Option("--checkpoint", help="take the newest model of a run that is not finished")
]
Temperature = Annotated[
    bool,
    typer.Option(
        "--temperature",
        help="calibrate the probabilities on validation or held-out images; changes no class",
    ),
]


def export(
    run: Run,
    model_format: FormatName = ModelFormat.safetensors,
    out: ExportFolder = None,
    checkpoint: Checkpoint = False,
    temperature: Temperature = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a run's model for other programs, with a model card."""
    print_start(f"exporting the model of {run}", quiet=quiet or as_json)
    from fedgsca.lab.export.temperature import GIVEN_LABELS_CAUTION, describe_fit
    from fedgsca.lab.export.write_export import export as write_export

    folder = out or run / f"export-{model_format.value}"
    model_export = write_export(
        run, model_format.value, folder, checkpoint=checkpoint, temperature=temperature
    )
    fit = model_export.description.calibration
    file = model_export.path / model_export.description.file
    check = model_export.check
    if as_json:
        print_json(
            {
                "path": str(model_export.path),
                "file": str(file),
                "sha256": model_export.description.sha256,
                "check": check.to_json(),
                "calibration": None if fit is None else fit.to_json(),
            }
        )
        return
    if check.fallback_reason:
        print_warning(f"checked on random images only: {check.fallback_reason}")
    if fit is not None and fit.has_given_labels:
        print_warning(GIVEN_LABELS_CAUTION)
    if not quiet:
        if fit is not None:
            print_line(f"scaled  {describe_fit(fit)}")
        print_line(f"model   {file} ({size_text(file.stat().st_size)})", "bold")
        gap = f"largest difference {check.largest_difference:.1e}, limit {check.limit:g}"
        print_line(f"check   {check.images} {check.inputs}: {gap}", "green")
        print_line(f"card    {model_export.path / 'MODEL_CARD.md'} (complete the marked lines)")
