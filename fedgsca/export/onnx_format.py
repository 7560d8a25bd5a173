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
from fedgsca.export.model_json import Description
from fedgsca.export.trained_model import Probabilities

if TYPE_CHECKING:
    from fedgsca.export.end_to_end import EndToEndModel

OPSET = 18  # the oldest that torch's exporter writes without converting


def need(*packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            "todo.onnx-format-1",
            f"ONNX needs packages that are not installed: {', '.join(missing)}",
            fix="pip install -c constraints.txt 'fedgsca[onnx]'",
        )


def write(whole: EndToEndModel, about: Description) -> bytes:
    """The network as an ONNX graph, with any batch size; class names are in its metadata."""
    need("onnx", "onnxscript")
    import onnx
    import torch

    example = torch.zeros((2, *about.image_size, 3), dtype=torch.uint8)
    with _silent():
        program = torch.onnx.export(
            whole,
            (example,),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
        )
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(
        proto, {"classes": json.dumps(about.classes), "fedgsca": json.dumps(dict(about.training))}
    )
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def open_file(path: Path) -> Probabilities:
    need("onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(
        session.run(["probabilities"], {"images": np.ascontiguousarray(images)})[0]
    )


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """torch's exporter talks about itself: progress, packages that it does not need, deprecations of its own."""
    talker = logging.getLogger("torch.onnx")
    before = talker.level
    talker.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        talker.setLevel(before)
