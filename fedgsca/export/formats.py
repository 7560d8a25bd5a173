"""The file formats: how a whole network is written, and how the file is opened again."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsca.export.model_json import Description
from fedgsca.export.trained_model import Probabilities, fill

if TYPE_CHECKING:
    from fedgsca.export.end_to_end import EndToEndModel


@dataclass(frozen=True)
class Format:
    """One kind of file."""

    file: str
    what: str
    write: Callable[[EndToEndModel, Description], bytes]
    open: Callable[[Path, Description], Probabilities]
    need: Callable[[], None] = lambda: None  # raises if a package is missing


def _write_safetensors(whole: EndToEndModel, about: Description) -> bytes:
    from fedgsca.site import weights_of
    from fedgsca.wire import save_tensors

    kept = {
        name: array
        for name, array in weights_of(whole).items()
        if name.startswith(("backbone.", "head."))
    }
    return save_tensors(
        kept,
        {"classes": json.dumps(about.classes), "model": about.architecture, "head": about.head},
    )


def _open_safetensors(path: Path, about: Description) -> Probabilities:
    from safetensors.numpy import load_file

    from fedgsca.export.end_to_end import EndToEndModel
    from fedgsca.models.build import build_classifier

    model = build_classifier(about.architecture, len(about.classes), seed=0, head=about.head)
    fill(model, load_file(path))
    return _with_torch(EndToEndModel(model, about).eval())


def _write_torchscript(whole: EndToEndModel, about: Description) -> bytes:
    import torch

    example = torch.zeros((2, *about.image_size, 3), dtype=torch.uint8)
    packed = io.BytesIO()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter(
            "ignore"
        )  # torch calls TorchScript deprecated; it is there as long as runtimes ask for it
        traced = torch.jit.trace(whole, example, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, packed, _extra_files={"classes.json": json.dumps(about.classes)})  # type: ignore[no-untyped-call]
    return packed.getvalue()


def _open_torchscript(path: Path, about: Description) -> Probabilities:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _with_torch(torch.jit.load(path, map_location="cpu").eval())  # type: ignore[no-untyped-call]


def _with_torch(model: Any) -> Probabilities:
    import torch

    def probabilities(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(model(torch.from_numpy(np.array(images))).numpy())

    return probabilities


def _write_onnx(whole: EndToEndModel, about: Description) -> bytes:
    from fedgsca.export import onnx_format as onnxfile

    return onnxfile.write(whole, about)


def _open_onnx(path: Path, about: Description) -> Probabilities:
    from fedgsca.export import onnx_format as onnxfile

    return onnxfile.open_file(path)


def _need_onnx() -> None:
    from fedgsca.export import onnx_format as onnxfile

    onnxfile.need("onnx", "onnxscript", "onnxruntime")


FORMATS: dict[str, Format] = {
    "safetensors": Format(
        "model.safetensors",
        "plain weights, for fedgsca and torch",
        _write_safetensors,
        _open_safetensors,
    ),
    "onnx": Format(
        "model.onnx",
        "for ONNX Runtime and other runtimes; extra [onnx]",
        _write_onnx,
        _open_onnx,
        _need_onnx,
    ),
    "torchscript": Format(
        "model.pt", "for libtorch and torch.jit.load", _write_torchscript, _open_torchscript
    ),
}
