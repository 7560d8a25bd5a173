"""What is exported, and in which files: one network from pixels to probabilities.

Inputs are uint8 RGB images of one size, (n, H, W, 3), as every decoder gives them. Normalisation,
the resizing in front of a frozen backbone and the softmax are inside, so that an integrator has no
constants to copy. Reading, rotating and cropping files stay outside.
"""

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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.errors import MissingExtraError
from fedgsca.lab.export.model_json import ModelDescription
from fedgsca.lab.export.trained_model import Probabilities, fill_network
from fedgsca.models.build import (
    Classifier,
    build_exported,
    build_head_only,
    feature_width,
    spec_of,
)
from fedgsca.support.registry import is_import_path, require_permission


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
        return _run_with_torch(model.eval())


def _run_with_torch(model: Any) -> Probabilities:
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
        lambda path, _: open_onnx(path),
        ("onnx", "onnxscript", "onnxruntime"),
    ),
    "torchscript": ExportFormat(
        "model.pt",
        "for libtorch and torch.jit.load",
        _write_torchscript,
        _open_torchscript,
    ),
}


# ---- the network ----


class FeatureModel(nn.Module):
    """(n, D) float32 features of the user's own network -> (n, C) float32 probabilities."""

    def __init__(self, model: Classifier, width: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.backbone = model.backbone
        self.head = model.head
        self.width = width
        self.temperature = temperature

    def forward(self, features: Tensor) -> Tensor:
        """Probabilities (n, C) of features (n, D)."""
        return self.classify(F.layer_norm(features, (self.width,)))  # as in models/features.py

    def classify(self, features: Tensor) -> Tensor:
        """The head and the softmax on top of it."""
        logits = self.head(features)
        if self.temperature != 1.0:
            logits = logits / self.temperature
        return torch.softmax(logits, dim=1)


class EndToEndModel(FeatureModel):
    """(n, H, W, 3) uint8 -> (n, C) float32 probabilities."""

    mean: Tensor
    std: Tensor
    resize_rows: Tensor
    resize_columns: Tensor

    def __init__(self, model: Classifier, description: ModelDescription) -> None:
        super().__init__(model, feature_width(description.model), description.temperature)
        spec = spec_of(description.architecture)
        height, width = description.image_size
        self.frozen = description.frozen
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(spec.std).view(1, 3, 1, 1))
        size = description.feature_size
        self.resizes = size is not None and (height, width) != (size, size)
        # A resizing between two fixed sizes is a product with two matrices, (size, H) and
        # (W, size): the same numbers in every runtime.
        columns = resize_matrix(width, size or width).T.contiguous()
        self.register_buffer("resize_rows", resize_matrix(height, size or height))
        self.register_buffer("resize_columns", columns)

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities (n, C) of images (n, H, W, 3)."""
        x = images.permute(0, 3, 1, 2).float()
        if self.resizes:
            x = self.resize_rows @ x @ self.resize_columns
        features = self.backbone((x - self.mean) / self.std)
        if self.frozen:
            return super().forward(features)
        return self.classify(features)


def make_export_model(model: Classifier, description: ModelDescription) -> nn.Module:
    """The network that is exported, with everything that an integrator would have to repeat."""
    if description.feature_width is not None:
        return FeatureModel(model, description.feature_width, description.temperature).eval()
    return EndToEndModel(model, description).eval()


def example_input(description: ModelDescription) -> Tensor:
    """Two inputs of zeros, for exporters that follow an example."""
    if description.feature_width is not None:
        return torch.zeros((2, description.feature_width))
    return torch.zeros((2, *description.image_size, 3), dtype=torch.uint8)


def resize_matrix(old: int, new: int) -> Tensor:
    """(new, old): the antialiased linear resizing of models/features.py.

    It is measured by what the resizing does to unit vectors.
    """
    if old == new:
        return torch.eye(old)
    unit = torch.eye(old).view(1, 1, old, old)
    size = (new, old)
    rows = F.interpolate(unit, size=size, mode="bilinear", align_corners=False, antialias=True)
    return rows[0, 0]
