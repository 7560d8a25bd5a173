"""`fedgsca export`: a folder with the model, its description, its card and the record of the check. EndToEndModel or not at all."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from fedgsca.data.file_facts import sha256_file
from fedgsca.errors import FedgscaError, RunFolderError
from fedgsca.experiment.run_folder import dumps
from fedgsca.export.exported_model import open_model
from fedgsca.export.formats import FORMATS, Format
from fedgsca.export.model_card import model_card
from fedgsca.export.model_json import Description, describe, to_json
from fedgsca.export.self_check import Check, compare
from fedgsca.export.trained_model import Trained, as_evaluated, network, read_trained
from fedgsca.support.files import abandoned, beside, write_atomic


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    about: Description
    check: Check


def export(run: Path, format: str, out: Path, *, checkpoint: bool = False) -> Exported:
    FORMATS[format].need()
    trained = read_trained(run, checkpoint=checkpoint)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(
            "todo.write-export-1",
            f"{out} exists and is not empty",
            fix="remove it, or choose another folder with --out",
        )
    folder = _beside(out)
    try:
        folder.mkdir(parents=True)
        made = _fill(folder, trained, format)
        os.replace(folder, out)
    except OSError as error:
        raise RunFolderError(
            "todo.write-export-2",
            f"cannot write {out}: {error.strerror or error}",
            fix="choose another folder with --out",
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Exported(out, *made)


def _beside(out: Path) -> Path:
    """A folder to build in; those of exports that were killed are removed."""
    for old in out.parent.glob(f"{out.name}.*.tmp"):
        if abandoned(old):
            shutil.rmtree(old, ignore_errors=True)
    return beside(out)


def _fill(folder: Path, trained: Trained, format: str) -> tuple[Description, Check]:
    kind = FORMATS[format]
    about = _write_model(folder, trained, format, kind)
    write_atomic(folder / "model.json", to_json(about))
    check = compare(trained, as_evaluated(trained), open_model(folder).probabilities)
    if not check.passed:
        raise FedgscaError(
            "todo.write-export-3",
            f"the exported model differs from the run's by {check.largest_difference:.2g} in a probability "
            f"({check.images} {check.inputs}, limit {check.limit:g}); nothing was written",
            fix="try --format safetensors, and report this with the versions of torch and of the [onnx] packages",
        )
    write_atomic(folder / "check.json", dumps(check.as_dict()))
    write_atomic(folder / "MODEL_CARD.md", model_card(trained, about, check).encode())
    return about, check


def _write_model(folder: Path, trained: Trained, format: str, kind: Format) -> Description:
    from fedgsca.export.end_to_end import EndToEndModel

    about = describe(trained, format, kind.file)
    write_atomic(
        folder / kind.file, kind.write(EndToEndModel(network(trained), about).eval(), about)
    )
    return replace(about, sha256=sha256_file(folder / kind.file))
