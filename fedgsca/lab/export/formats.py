"""The file formats: how a network is written, and how the file is opened again."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsca.errors import MissingExtraError
from fedgsca.lab.export.model_json import ModelDescription
from fedgsca.lab.export.trained_model import Probabilities, fill_network
from fedgsca.support.registry import is_import_path, require_permission

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ExportFormat:
    """One kind of file."""

    file: str
    description: str
    write: Callable[[nn.Module, ModelDescription], bytes]
    open: Callable[[Path, ModelDescription], Probabilities]
    # optional packages
    packages: tuple[str, ...] = ()


def _write_safetensors(model: nn.Module, description: ModelDescription) -> bytes:
    from fedgsca.methods.site import weights_of
    from fedgsca.wire import save_tensors

    weights = {}
    for name, array in weights_of(model).items():
        if name.startswith(("backbone.", "head.")):
            weights[name] = array
    metadata = {
        "classes": list(description.classes),
        "model": description.architecture,
        "head": description.head,
    }
    return save_tensors(weights, metadata)


def _open_safetensors(path: Path, description: ModelDescription) -> Probabilities:
    from safetensors.numpy import load_file

    from fedgsca.lab.export.end_to_end import make_export_model
    from fedgsca.models.build import build_exported, build_head_only

    num_classes = len(description.classes)
    name, head = description.architecture, description.head
    if description.feature_width is not None:
        model = build_head_only(description.feature_width, num_classes, seed=0, head=head)
    else:
        if is_import_path(name):
            require_permission(name, "model.json")
        model = build_exported(description.model, num_classes, head=head)
    fill_network(model, load_file(path))
    return _run_with_torch(make_export_model(model, description))


def _write_torchscript(model: nn.Module, description: ModelDescription) -> bytes:
    import torch

    from fedgsca.lab.export.end_to_end import example_input

    example = example_input(description)
    buffer = io.BytesIO()
    files = {"classes.json": json.dumps(description.classes)}
    with warnings.catch_warnings(), torch.inference_mode():
        # torch calls TorchScript deprecated; it is offered as long as runtimes ask for it
        warnings.simplefilter("ignore")
        script = torch.jit.trace(model, example, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(script, buffer, _extra_files=files)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def _open_torchscript(path: Path, description: ModelDescription) -> Probabilities:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
        return _run_with_torch(model.eval())


def _run_with_torch(model: Any) -> Probabilities:
    import torch

    def probabilities(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(model(torch.from_numpy(np.array(images))).numpy())

    return probabilities


# the oldest version that torch's exporter writes without converting
OPSET = 18


def require_packages(*packages: str) -> None:
    """Raise an error if a package is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            "extra.onnx-missing",
            f"ONNX needs packages that are not installed: {', '.join(missing)}",
            fix="pip install 'fedgsca[onnx]'",
        )


def write_onnx(model: nn.Module, description: ModelDescription) -> bytes:
    """The network as an ONNX graph for any batch size; its metadata holds the class names."""
    require_packages("onnx", "onnxscript")
    import onnx
    import torch

    from fedgsca.lab.export.end_to_end import example_input

    name = "images" if description.feature_width is None else "features"
    example = example_input(description)
    with _without_chatter():
        program = torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[name],
            output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    assert program is not None
    proto = program.model_proto
    metadata = {
        "classes": json.dumps(description.classes),
        "fedgsca": json.dumps(description.training.to_json()),
    }
    onnx.helper.set_model_props(proto, metadata)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def open_onnx(path: Path) -> Probabilities:
    """The model in ONNX Runtime, on the CPU."""
    require_packages("onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def probabilities(images: np.ndarray) -> np.ndarray:
        outputs = session.run(["probabilities"], {name: np.ascontiguousarray(images)})
        return np.asarray(outputs[0])

    return probabilities


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """torch's exporter prints progress, packages that it does not need, and own deprecations."""
    logger = logging.getLogger("torch.onnx")
    old_level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(old_level)


FORMATS: dict[str, ExportFormat] = {
    "safetensors": ExportFormat(
        "model.safetensors",
        "plain weights, for fedgsca and torch",
        _write_safetensors,
        _open_safetensors,
    ),
    "onnx": ExportFormat(
        "model.onnx",
        "for ONNX Runtime and other runtimes; extra [onnx]",
        write_onnx,
        open_onnx,
        ("onnx", "onnxscript", "onnxruntime"),
    ),
    "torchscript": ExportFormat(
        "model.pt",
        "for libtorch and torch.jit.load",
        _write_torchscript,
        _open_torchscript,
    ),
}
