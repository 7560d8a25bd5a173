"""`fedgsca export`: the model of a run as a file for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedgsca.cli.options import Json, Quiet
from fedgsca.support.console import print_json, print_line, print_start, print_warning
from fedgsca.support.text import size_text


class ModelFormat(StrEnum):
    """Formats by name; export/formats.py writes them, but imports numpy."""

    safetensors = "safetensors"
    onnx = "onnx"
    torchscript = "torchscript"


Run = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run")]
FormatName = Annotated[
    ModelFormat, typer.Option("--format", help="onnx needs the extra of that name")
]
Out = Annotated[Path | None, typer.Option("--out", help="new folder; default RUN/export-FORMAT")]
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


def add(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        "export",
        help="Write a run's model for other programs, with a model card.",
        rich_help_panel="Use a model",
    )(export)


def export(
    run: Run,
    model_format: FormatName = ModelFormat.safetensors,
    out: Out = None,
    checkpoint: Checkpoint = False,
    temperature: Temperature = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """`fedgsca export`."""
    print_start(f"exporting the model of {run}", quiet=quiet or as_json)
    from fedgsca.export.temperature import GIVEN_LABELS_CAUTION, describe_fit
    from fedgsca.export.write_export import export as write_export

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
