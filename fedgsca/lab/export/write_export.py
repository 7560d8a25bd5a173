"""`fedgsca export`: a folder with the model, its description, its card and the self-check.

The folder appears complete or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedgsca.errors import FedgscaError, RunFolderError
from fedgsca.federation.run_folder import dumps
from fedgsca.lab.export.exported_model import open_model
from fedgsca.lab.export.formats import FORMATS
from fedgsca.lab.export.model_card import model_card
from fedgsca.lab.export.model_json import ModelDescription, describe_model, to_json
from fedgsca.lab.export.self_check import ExportCheck, compare_models
from fedgsca.lab.export.temperature import TemperatureFit, fit_to_run, with_temperature
from fedgsca.lab.export.trained_model import (
    TrainedModel,
    as_evaluated,
    build_network,
    read_trained,
)
from fedgsca.support.files import (
    is_abandoned,
    make_folders,
    sha256_file,
    temporary_path,
    write_atomic,
)
from fedgsca.support.registry import is_import_path
from fedgsca.support.text import one_line


@dataclass(frozen=True)
class ExportResult:
    """What was written."""

    path: Path
    description: ModelDescription
    check: ExportCheck


def export(
    run: Path,
    file_format: str,
    out: Path,
    *,
    checkpoint: bool = False,
    temperature: bool = False,
) -> ExportResult:
    """Write the model of a run to the folder `out`.

    `file_format` is a key of FORMATS; with `checkpoint`, the run may be unfinished; with
    `temperature`, the probabilities are calibrated on images that took no part in training or test.
    """
    FORMATS[file_format].require()
    trained_model = read_trained(run, checkpoint=checkpoint)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(
            "export.folder-not-empty",
            f"{out} exists and is not empty",
            fix="remove it, or choose another folder with --out",
        )
    folder = _temporary_folder(out)
    try:
        make_folders(folder)
        with _explain_own_network(trained_model, file_format):
            description, check = _write_files(
                folder, trained_model, file_format, temperature=temperature
            )
        os.replace(folder, out)
    except OSError as error:
        raise RunFolderError(
            "export.cannot-write",
            f"cannot write {out}: {error.strerror or error}",
            fix="choose another folder with --out",
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ExportResult(out, description, check)


@contextmanager
def _explain_own_network(trained_model: TrainedModel, file_format: str) -> Iterator[None]:
    """Exporters fail in many ways on code that they do not know."""
    name = trained_model.config.model.name
    try:
        yield
    except (FedgscaError, OSError):
        raise
    except Exception as error:
        if not is_import_path(name):
            raise
        raise FedgscaError(
            "export.own-network",
            f"{name} cannot be written as {file_format}: {type(error).__name__}:"
            f" {one_line(str(error))}",
            fix="--format safetensors; or make its forward() work for any batch size without"
            " Python numbers (x.flatten(1) instead of x.view(len(x), -1))",
        ) from error


def _temporary_folder(out: Path) -> Path:
    """A folder to build in; those of exports that were killed are removed."""
    for old in out.parent.glob(f"{out.name}.*.tmp"):
        if is_abandoned(old):
            shutil.rmtree(old, ignore_errors=True)
    return temporary_path(out)


def _write_files(
    folder: Path, trained_model: TrainedModel, file_format: str, *, temperature: bool
) -> tuple[ModelDescription, ExportCheck]:
    reference = as_evaluated(trained_model)
    fit = None
    if temperature:
        fit = fit_to_run(trained_model, reference)
        reference = with_temperature(reference, fit.temperature)
    description = _write_model(folder, trained_model, file_format, fit)
    write_atomic(folder / "model.json", to_json(description))
    check = compare_models(trained_model, reference, open_model(folder).probabilities)
    if not check.passed:
        raise FedgscaError(
            "export.self-check-failed",
            f"a probability of the exported model differs from the run's model by "
            f"{check.largest_difference:.2g} ({check.images} {check.inputs}, limit "
            f"{check.limit:g}); nothing was written",
            fix="try --format safetensors, and report this with the versions of torch and of the "
            "[onnx] packages",
        )
    write_atomic(folder / "check.json", dumps(check.to_json()))
    write_atomic(folder / "MODEL_CARD.md", model_card(trained_model, description, check).encode())
    return description, check


def _write_model(
    folder: Path, trained_model: TrainedModel, file_format: str, fit: TemperatureFit | None
) -> ModelDescription:
    from fedgsca.lab.export.end_to_end import make_export_model

    kind = FORMATS[file_format]
    description = describe_model(trained_model, file_format, kind.file)
    description = replace(description, calibration=fit)
    model = make_export_model(build_network(trained_model), description)
    write_atomic(folder / kind.file, kind.write(model, description))
    return replace(description, sha256=sha256_file(folder / kind.file))
