"""ONNX files: the only file that imports the optional onnx packages."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.errors import MissingExtraError
from fedgsca.lab.export.model_json import ModelDescription
from fedgsca.lab.export.trained_model import Probabilities

if TYPE_CHECKING:
    from torch import nn

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
