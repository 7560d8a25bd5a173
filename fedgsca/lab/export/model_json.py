"""model.json: everything that a program must know to use an exported model; and check.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedgsca.config import ModelConfig
from fedgsca.data.image_files import VERSION
from fedgsca.errors import RunFolderError
from fedgsca.lab.export.temperature import TemperatureFit
from fedgsca.lab.export.trained_model import TrainedModel
from fedgsca.support.json_record import Record, stored_as
from fedgsca.support.version import __version__


@dataclass(frozen=True)
class TrainingFacts(Record):
    """Where the model comes from."""

    method: str
    seed: int
    rounds: int
    rounds_planned: int
    data: str
    data_fingerprint: str
    # of the configuration
    fingerprint: str
    weights_sha256: str | None


@dataclass(frozen=True)
class ExportCheck(Record):
    """check.json: the record of one comparison."""

    # "test images" or "random images"
    inputs: str
    # the reason for random images, else empty
    fallback_reason: str = field(metadata=stored_as("why"))
    images: int
    inputs_sha256: str
    largest_difference: float
    limit: float
    # images for which both models name the same class
    same_class: int

    @property
    def passed(self) -> bool:
        """Whether the difference is small enough."""
        return bool(self.largest_difference <= self.limit)

    def to_json(self) -> dict[str, Any]:
        """The content of check.json, with the verdict."""
        return {**super().to_json(), "passed": self.passed}


@dataclass(frozen=True)
class ModelDescription:
    """One exported model. What follows from other fields is written, but not read back."""

    format: str
    file: str
    sha256: str
    # in the order of the outputs
    classes: tuple[str, ...]
    architecture: str
    head: str
    # height, width
    image_size: tuple[int, int]
    frozen: bool
    # pixels at which a frozen backbone sees the image
    feature_size: int | None
    white_level: int | None
    # which of its layers give the features (model.features)
    features: Literal["stages", "last"] = "last"
    # numbers per image, if the input is features instead of images
    feature_width: int | None = None
    training: TrainingFacts = field(default_factory=lambda: TrainingFacts.from_json({}))
    # None: the probabilities are those of the run's model
    calibration: TemperatureFit | None = None

    @property
    def model(self) -> ModelConfig:
        """The settings that the network is built with."""
        model = ModelConfig(name=self.architecture, frozen=self.frozen, features=self.features)
        if self.feature_size is None:
            return model
        return model.model_copy(update={"feature_size": self.feature_size})

    @property
    def temperature(self) -> float:
        """What the logits are divided by."""
        return 1.0 if self.calibration is None else self.calibration.temperature


def describe_model(trained_model: TrainedModel, file_format: str, file: str) -> ModelDescription:
    """The description of a model that will be written to `file`; its sha256 is still empty."""
    config, setup = trained_model.config, trained_model.setup
    training = TrainingFacts(
        method=config.method,
        seed=config.seed,
        rounds=trained_model.rounds,
        rounds_planned=config.train.rounds,
        data=setup.data.name,
        data_fingerprint=setup.data.fingerprint,
        fingerprint=config.fingerprint(),
        weights_sha256=setup.weights,
    )
    return ModelDescription(
        format=file_format,
        file=file,
        sha256="",
        classes=trained_model.classes,
        architecture=config.model.name,
        head=trained_model.head,
        image_size=trained_model.image_size,
        frozen=config.model.frozen,
        feature_size=config.model.feature_size if config.model.frozen else None,
        white_level=trained_model.white,
        features=config.model.features,
        feature_width=trained_model.feature_width,
        training=training,
    )


def to_json(description: ModelDescription) -> bytes:
    """The content of model.json."""
    fit = description.calibration
    tree = {
        "format": description.format,
        "file": description.file,
        "sha256": description.sha256,
        "classes": list(description.classes),
        "input": _describe_input(description),
        "output": {
            "name": "probabilities",
            "type": "float32",
            "shape": ["batch", len(description.classes)],
            "sum": 1,
        },
        "preprocessing": _describe_preprocessing(description),
        "inside_model": _describe_inside(description),
        "architecture": description.architecture,
        "head": description.head,
        "frozen_backbone": description.frozen,
        "backbone_included": description.feature_width is None,
        "training": description.training.to_json(),
        "calibration": None if fit is None else fit.to_json(),
        "fedgsca": __version__,
    }
    return json.dumps(tree, indent=1, ensure_ascii=False).encode() + b"\n"


def _describe_input(description: ModelDescription) -> dict[str, object]:
    if description.feature_width is not None:
        return {
            "name": "features",
            "type": "float32",
            "shape": ["batch", description.feature_width],
            "batch": "any",
        }
    height, width = description.image_size
    return {
        "name": "images",
        "type": "uint8",
        "layout": "NHWC",
        "colour": "RGB",
        "height": height,
        "width": width,
        "batch": "any",
    }


def _describe_preprocessing(description: ModelDescription) -> dict[str, object]:
    """What a program must do with a file before it calls the model."""
    if description.feature_width is not None:
        return {"features": "by the network that computed the training features"}
    size = min(description.image_size)
    return {
        "decoder": VERSION,
        "rotation": "EXIF orientation applied",
        "transparency": "over white",
        "white_level": description.white_level,
        "resize": f"shorter side to {size}, bilinear with antialiasing (Pillow BILINEAR)",
        "crop": "middle",
        "dicom": "modality LUT, first window, MONOCHROME1 inverted",
    }


def _describe_inside(description: ModelDescription) -> dict[str, object]:
    """What the model does itself."""
    from fedgsca.models.build import spec_of

    if description.feature_width is not None:
        return {"features": "each vector to zero mean and unit variance", "softmax": True}
    spec = spec_of(description.architecture)
    features = "as they are"
    if description.frozen:
        features = "each vector to zero mean and unit variance"
        if description.features == "stages":
            features = "averages of every stage, " + features.replace("vector", "stage")
    return {
        "resize_to": description.feature_size,
        "layers": description.features,
        "mean": list(spec.mean),
        "std": list(spec.std),
        "features": features,
        "temperature": description.temperature,
        "softmax": True,
    }


def _read_calibration(tree: Mapping[str, Any]) -> TemperatureFit | None:
    """None if nothing was fitted. A temperature that is no number is an error."""
    fit = tree.get("calibration")
    if fit is None:
        return None
    temperature = fit["temperature"]
    if not isinstance(temperature, int | float) or not 0.0 < temperature < float("inf"):
        raise ValueError(f"the temperature is {temperature!r}")
    return TemperatureFit.from_json(fit)


def read_description(folder: Path) -> ModelDescription:
    """The description of an exported model."""
    path = folder / "model.json"
    try:
        tree = json.loads(path.read_bytes())
        inputs, inside = tree["input"], tree["inside_model"]
        has_features = inputs["name"] == "features"
        return ModelDescription(
            format=str(tree["format"]),
            file=str(tree["file"]),
            sha256=str(tree["sha256"]),
            classes=tuple(map(str, tree["classes"])),
            architecture=str(tree["architecture"]),
            head=str(tree["head"]),
            image_size=(int(inputs.get("height", 0)), int(inputs.get("width", 0))),
            frozen=bool(tree["frozen_backbone"]),
            feature_size=inside.get("resize_to"),
            white_level=tree["preprocessing"].get("white_level"),
            features="stages" if inside.get("layers") == "stages" else "last",
            feature_width=int(inputs["shape"][1]) if has_features else None,
            training=TrainingFacts.from_json(tree["training"]),
            calibration=_read_calibration(tree),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            "export.damaged-description",
            f"{path} is damaged: {error!r}",
            fix="export the model again",
        ) from None
