"""model.json: all that a program must know to use an exported model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgsca import __version__
from fedgsca.data.decode.image_files import VERSION
from fedgsca.errors import RunFolderError
from fedgsca.export.trained_model import Trained


@dataclass(frozen=True)
class Description:
    """One exported model. What is computed from other fields is written, but not read back."""

    format: str
    file: str
    sha256: str
    classes: tuple[str, ...]  # in the order of the outputs
    architecture: str
    head: str
    image_size: tuple[int, int]  # height, width
    frozen: bool
    feature_size: int | None  # pixels at which a frozen backbone sees the image
    white_level: int | None
    training: Mapping[str, Any] = field(default_factory=dict)


def describe(trained: Trained, format: str, file: str) -> Description:
    config, data = trained.config, trained.setup["data"]
    return Description(
        format=format,
        file=file,
        sha256="",
        classes=trained.classes,
        architecture=config.model.name,
        head=trained.head,
        image_size=trained.image_size,
        frozen=config.model.frozen,
        feature_size=config.model.feature_size if config.model.frozen else None,
        white_level=trained.white,
        training={
            "method": config.method,
            "seed": config.seed,
            "rounds": trained.rounds,
            "rounds_planned": config.train.rounds,
            "data": data.get("name"),
            "data_fingerprint": data.get("fingerprint"),
            "fingerprint": config.fingerprint(),
            "weights_sha256": trained.setup.get("weights"),
        },
    )


def to_json(about: Description) -> bytes:
    from fedgsca.models.build import spec_of

    height, width = about.image_size
    spec = spec_of(about.architecture)
    tree = {
        "format": about.format,
        "file": about.file,
        "sha256": about.sha256,
        "classes": list(about.classes),
        "input": {
            "name": "images", "type": "uint8", "layout": "NHWC", "colour": "RGB", "height": height, "width": width, "batch": "any",
        },
        "output": {"name": "probabilities", "type": "float32", "shape": ["batch", len(about.classes)], "sum": 1},
        "preprocessing": {
            "decoder": VERSION,
            "rotation": "EXIF orientation applied",
            "transparency": "over white",
            "white_level": about.white_level,
            "resize": f"shorter side to {min(height, width)}, bilinear with antialiasing (Pillow BILINEAR)",
            "crop": "middle",
            "dicom": "modality LUT, first window, MONOCHROME1 inverted",
        },
        "inside_model": {
            "resize_to": about.feature_size,
            "mean": list(spec.mean),
            "std": list(spec.std),
            "features": "each vector to zero mean and unit variance" if about.frozen else "as they are",
            "softmax": True,
        },
        "architecture": about.architecture,
        "head": about.head,
        "frozen_backbone": about.frozen,
        "backbone_included": True,
        "training": dict(about.training),
        "fedgsca": __version__,
    }  # fmt: skip
    return json.dumps(tree, indent=1, ensure_ascii=False).encode() + b"\n"


def read_description(folder: Path) -> Description:
    path = folder / "model.json"
    try:
        tree = json.loads(path.read_bytes())
        return Description(
            format=str(tree["format"]),
            file=str(tree["file"]),
            sha256=str(tree["sha256"]),
            classes=tuple(map(str, tree["classes"])),
            architecture=str(tree["architecture"]),
            head=str(tree["head"]),
            image_size=(int(tree["input"]["height"]), int(tree["input"]["width"])),
            frozen=bool(tree["frozen_backbone"]),
            feature_size=tree["inside_model"]["resize_to"],
            white_level=tree["preprocessing"]["white_level"],
            training=dict(tree["training"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            "todo.model-json-1", f"{path} is damaged: {error!r}", fix="export the model again"
        ) from None
