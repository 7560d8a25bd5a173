"""`fedgsca export`: the model of a run as a file for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedgsca.cli.options import Json, Quiet
from fedgsca.support.console import print_json, print_line, print_warning
from fedgsca.support.text import size_text


class Kind(StrEnum):
    """Formats by name; export/formats.py has the rest, but imports numpy."""

    safetensors = "safetensors"
    onnx = "onnx"
    torchscript = "torchscript"


Run = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run")]
Format = Annotated[Kind, typer.Option("--format", help="onnx needs the extra of that name")]
Out = Annotated[Path | None, typer.Option("--out", help="new folder; default RUN/export-FORMAT")]
Checkpoint = Annotated[
    bool, typer.Option("--checkpoint", help="take the newest model of a run that is not finished")
]


def add(app: typer.Typer) -> None:
    app.command(
        "export",
        help="Write a run's model for other programs, with a model card.",
        rich_help_panel="Use a model",
    )(export)


def export(
    run: Run,
    format: Format = Kind.safetensors,
    out: Out = None,
    checkpoint: Checkpoint = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    from fedgsca.export.write_export import export as write

    made = write(run, format.value, out or run / f"export-{format.value}", checkpoint=checkpoint)
    file = made.path / made.description.file
    if json:
        print_json(
            {
                "path": str(made.path),
                "file": str(file),
                "sha256": made.description.sha256,
                "check": made.check.to_json(),
            }
        )
        return
    if made.check.fallback_reason:
        print_warning(f"checked on random images only: {made.check.fallback_reason}")
    if not quiet:
        print_line(f"model   {file} ({size_text(file.stat().st_size)})", "bold")
        gap = f"largest difference {made.check.largest_difference:.1e}, limit {made.check.limit:g}"
        print_line(f"check   {made.check.images} {made.check.inputs}: {gap}", "green")
        print_line(f"card    {made.path / 'MODEL_CARD.md'} (some lines are yours to fill in)")
