"""`fedgsca export`: a folder with the model, its description, its card and the self-check.

The folder appears complete or not at all. Before that, the file is opened again, and its numbers
are compared with those of the run's model on test images.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgsca.errors import FedgscaError, RunFolderError
from fedgsca.federation.run_folder import dumps
from fedgsca.lab.export.formats import FORMATS, make_export_model, require_packages
from fedgsca.lab.export.model_card import model_card
from fedgsca.lab.export.model_json import ExportCheck, ModelDescription, describe_model, to_json
from fedgsca.lab.export.prediction import open_model
from fedgsca.lab.export.temperature import TemperatureFit, fit_to_run, with_temperature
from fedgsca.lab.export.trained_model import (
    Probabilities,
    TrainedModel,
    as_evaluated,
    build_network,
    predict_in_batches,
    read_table,
    read_trained,
)
from fedgsca.rng import stream
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
    require_packages(*FORMATS[file_format].packages)
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
    kind = FORMATS[file_format]
    description = describe_model(trained_model, file_format, kind.file)
    description = replace(description, calibration=fit)
    model = make_export_model(build_network(trained_model), description)
    write_atomic(folder / kind.file, kind.write(model, description))
    return replace(description, sha256=sha256_file(folder / kind.file))


# largest difference of a probability
LIMIT = 1e-4
# test images at most, spread evenly
MAX_IMAGES = 256
# images of noise, where the data is not available
RANDOM_IMAGES = 32
# not a divisor of the numbers above: the file must accept batches of any size
_BATCH_SIZE = 24


def compare_models(
    trained_model: TrainedModel, reference: Probabilities, exported_model: Probabilities
) -> ExportCheck:
    """Compare the model of a run with its export."""
    inputs, fallback_reason = sample_images(trained_model)
    reference_probs = predict_in_batches(reference, inputs, _BATCH_SIZE)
    exported_probs = predict_in_batches(exported_model, inputs, _BATCH_SIZE)
    difference = float(np.abs(reference_probs - exported_probs).max())
    same_class = reference_probs.argmax(axis=1) == exported_probs.argmax(axis=1)
    return ExportCheck(
        inputs="random images" if fallback_reason else "test images",
        fallback_reason=fallback_reason,
        images=len(inputs),
        inputs_sha256=hashlib.sha256(np.ascontiguousarray(inputs).data).hexdigest(),
        largest_difference=difference if np.isfinite(difference) else float("inf"),
        limit=LIMIT,
        same_class=int(np.sum(same_class)),
    )


def sample_images(trained_model: TrainedModel) -> tuple[np.ndarray, str]:
    """Inputs for a check, and the reason if they are not test images but noise.

    (n, H, W, 3) uint8 images of the run's test set, or (n, D) float32 features of the user's own;
    noise where the run's data is gone or has changed.
    """
    try:
        table = read_table(trained_model)
    except FedgscaError as error:
        reason = f"the data of the run cannot be read ({type(error).__name__})"
        return _random_inputs(trained_model), reason
    rows = table.rows("test")
    if not len(rows):
        return _random_inputs(trained_model), "there are no test images on this machine"
    if table.fingerprint != trained_model.setup.data.fingerprint:
        return _random_inputs(trained_model), "the data has changed since the run"
    positions = np.linspace(0, len(rows) - 1, min(MAX_IMAGES, len(rows))).astype(np.int64)
    contents = table.images
    if trained_model.feature_width is not None and table.features is not None:
        contents = table.features
    return np.asarray(contents[rows[np.unique(positions)]]), ""


def _random_inputs(trained_model: TrainedModel) -> np.ndarray:
    rng = stream(0, "export", "check")
    if trained_model.feature_width is not None:
        return rng.standard_normal((RANDOM_IMAGES, trained_model.feature_width), dtype=np.float32)
    shape = (RANDOM_IMAGES, *trained_model.image_size, 3)
    return rng.integers(0, 256, shape, dtype=np.uint8)
