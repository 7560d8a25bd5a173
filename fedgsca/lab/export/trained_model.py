"""The model of a run, ready to be used: its weights, and everything needed to evaluate them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.config import OWN_FEATURES, SITES_SOURCE, Config
from fedgsca.errors import RunFolderError, WeightsError
from fedgsca.federation.records import Setup
from fedgsca.wire import Arrays

if TYPE_CHECKING:
    from torch import nn

    from fedgsca.data.table import ImageTable
    from fedgsca.models.build import Classifier

# (n, H, W, 3) uint8, or (n, D) float32 of the user's own features -> (n, C)
Probabilities = Callable[[np.ndarray], np.ndarray]

_MAX_NAMES = 4  # that an error lists


@dataclass(frozen=True)
class TrainedModel:
    """The global model of a run.

    What a method keeps at a single site (a personal map, a second model) is not part of it.
    """

    path: Path
    config: Config
    setup: Setup
    weights: Arrays
    # of training, so far
    rounds: int

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the outputs."""
        return self.setup.data.classes

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the training images, before the resizing of a frozen backbone."""
        _, height, width, _ = self.setup.data.shape
        return height, width

    @property
    def feature_width(self) -> int | None:
        """Numbers per image, if the model is a head on the user's own features, else None."""
        return self.setup.data.feature_width

    @property
    def white(self) -> int | None:
        """What 16-bit grey values are divided by; None: decide image by image."""
        return self.setup.data.white

    @property
    def head(self) -> str:
        """The kind of classifier head that the method trains."""
        from fedgsca.methods.base import load_methods

        return load_methods()[self.config.method].head

    @property
    def is_finished(self) -> bool:
        """Whether all rounds have been run."""
        return self.rounds >= self.config.train.rounds


def read_trained(path: Path, *, checkpoint: bool = False) -> TrainedModel:
    """The final model of a finished run; with `checkpoint`, the newest one of an unfinished run."""
    from fedgsca.federation.run_folder import read_config

    if (path / "plan.json").is_file():
        raise RunFolderError(
            "export.comparison",
            f"{path} is a comparison of several runs",
            fix=f"give one of the folders in {path / 'cells'}",
        )
    config = read_config(path)
    setup = _read_setup(path)
    if (path / "result.json").is_file():
        weights = _read_final_weights(path / "model.safetensors")
        return TrainedModel(path, config, setup, weights, config.train.rounds)
    weights, rounds = _read_newest_weights(path, config)
    if not checkpoint:
        raise RunFolderError(
            "run.not-finished",
            f"{path} is not finished: {rounds} of {config.train.rounds} rounds are done",
            fix=f"run `fedgsca resume {path}`, or export the model as it is with "
            f"`fedgsca export {path} --checkpoint`",
        )
    return TrainedModel(path, config, setup, weights, rounds)


def _read_setup(path: Path) -> Setup:
    from fedgsca.lab.report.run_reader import read_json

    setup = Setup.from_json(read_json(path / "setup.json"))
    if not setup.data.classes or len(setup.data.shape) != 4:
        raise RunFolderError(
            "run.damaged-file",
            f"{path / 'setup.json'} is missing or damaged",
            fix=f"run `fedgsca resume {path}`, which writes it again",
        )
    return setup


def _read_final_weights(path: Path) -> Arrays:
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise RunFolderError(
            "run.damaged-model",
            f"{path} cannot be read: {lines[0]}",
            fix="restore the file from a backup, or run the experiment again",
        ) from None


def _read_newest_weights(path: Path, config: Config) -> tuple[Arrays, int]:
    """The weights of the newest checkpoint, and the number of rounds that they were trained."""
    from fedgsca.federation import checkpoint

    state = checkpoint.latest(path / "checkpoint", config.fingerprint())
    if state is None:
        raise RunFolderError(
            "run.no-model-yet",
            f"{path} has no model yet, because no round is finished",
            fix=f"run `fedgsca resume {path}`",
        )
    return state.weights, state.round


def build_network(trained_model: TrainedModel) -> Classifier:
    """Backbone and head with the trained weights.

    A frozen backbone comes from its own file, which must be the one of the run.
    """
    from fedgsca.models.build import (
        Classifier,
        build_classifier,
        build_head_only,
        feature_width,
    )

    model = trained_model.config.model
    num_classes = len(trained_model.classes)
    if not model.frozen:
        classifier = build_classifier(model.name, num_classes, seed=0, head=trained_model.head)
        fill_network(classifier, trained_model.weights)
        return classifier
    backbone = _load_frozen_backbone(trained_model)
    width = trained_model.feature_width or feature_width(model)
    head = build_head_only(width, num_classes, seed=0, head=trained_model.head)
    fill_network(head, trained_model.weights)
    return Classifier(backbone, head.head)


def _load_frozen_backbone(trained_model: TrainedModel) -> nn.Module:
    from torch import nn

    from fedgsca.federation.samples import weight_files, weights_digest
    from fedgsca.models.build import build_frozen

    config = trained_model.config
    if config.model.name == OWN_FEATURES:
        return nn.Identity()
    paths = weight_files(config)  # none: a network of the user's own, which brings its weights
    backbone = build_frozen(config.model, seed=config.seed, weights=paths)
    digest = trained_model.setup.weights
    if digest is not None and digest != weights_digest(trained_model.config):
        names = " and ".join(map(str, paths)) or config.model.name
        raise WeightsError(
            "weights.other-file",
            f"{names} does not have the weights that the run started with",
            fix=f"restore that file or module; the sha256 was {digest}",
        )
    return backbone


def fill_network(model: nn.Module, weights: Arrays) -> None:
    """Put arrays into a network by name; every name and every shape must fit."""
    import torch

    tensors = model.state_dict()
    problems = sorted(set(tensors) ^ set(weights))
    for name, tensor in tensors.items():
        if name in weights and tuple(tensor.shape) != np.shape(weights[name]):
            problems.append(name)
    if problems:
        names = ", ".join(problems[:_MAX_NAMES])
        if len(problems) > _MAX_NAMES:
            names += " ..."
        raise WeightsError(
            "weights.do-not-fit",
            f"the weights do not fit the network and its classes: {names}",
            fix="run or export the model again; the folder mixes files of different runs, or "
            "comes from another version of fedgsca",
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(np.array(weights[name], copy=True)))


def as_evaluated(trained_model: TrainedModel) -> Probabilities:
    """The model through the very functions that evaluated it during the run, on the CPU."""
    import torch
    from torch import nn

    from fedgsca.methods.site import Samples
    from fedgsca.methods.train import evaluate
    from fedgsca.models.build import Classifier, feature_width, spec_of
    from fedgsca.models.features import extract, standardise

    torch.set_num_threads(trained_model.config.train.threads)
    model = build_network(trained_model)
    frozen = trained_model.config.model.frozen
    spec = spec_of(trained_model.config.model.name)
    num_classes = len(trained_model.classes)
    # the features of a frozen backbone are computed before, as during the run
    classifier = Classifier(nn.Identity(), model.head) if frozen else model

    def probabilities(images: np.ndarray) -> np.ndarray:
        inputs = images
        if trained_model.feature_width is not None:
            inputs = np.empty(images.shape, np.float32)
            standardise(images, inputs)
        elif frozen:
            settings = trained_model.config.model
            inputs = np.empty((len(images), feature_width(settings)), np.float32)
            extract(model.backbone, settings, images, inputs)
        labels = np.zeros(len(images), np.int64)
        samples = Samples(inputs, labels, num_classes, spec.mean, spec.std)
        return evaluate(classifier, samples, torch.device("cpu")).probs

    return probabilities


def predict_in_batches(model: Probabilities, inputs: np.ndarray, size: int) -> np.ndarray:
    """(n, C) float64."""
    batches = []
    for start in range(0, len(inputs), size):
        batches.append(np.asarray(model(np.asarray(inputs[start : start + size])), np.float64))
    return np.concatenate(batches)


def read_table(trained_model: TrainedModel) -> ImageTable:
    """The images of the run; of a deployment, those that the coordinator has."""
    from fedgsca.federation.deployment import prepare_coordinator
    from fedgsca.federation.simulation import load_images

    config = trained_model.config
    if config.data.source == SITES_SOURCE:
        return prepare_coordinator(config).table
    return load_images(config, trained_model.path)
