"""The model of a run, ready to be used: its weights with everything that is needed to make them answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgsca.config import Config
from fedgsca.errors import RunFolderError, WeightsError
from fedgsca.wire import Arrays

if TYPE_CHECKING:
    from torch import nn

    from fedgsca.models.build import Classifier

Probabilities = Callable[[np.ndarray], np.ndarray]  # (n, H, W, 3) uint8 -> (n, C)


@dataclass(frozen=True)
class Trained:
    """A run's global model. What a method keeps at a single site (a personal map, a second model) is not part of it."""

    path: Path
    config: Config
    setup: Mapping[str, Any]
    weights: Arrays
    rounds: int  # that made it

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(map(str, self.setup["data"]["classes"]))

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images it was trained on, before a frozen backbone's own resizing."""
        _, height, width, _ = self.setup["data"]["shape"]
        return int(height), int(width)

    @property
    def white(self) -> int | None:
        level = self.setup["data"].get("white")
        return None if level is None else int(level)

    @property
    def head(self) -> str:
        from fedgsca.methods.base import load_methods

        return load_methods()[self.config.method].head


def read_trained(path: Path, *, checkpoint: bool = False) -> Trained:
    """The final model of a finished run; with `checkpoint` the newest one of a run that is not finished."""
    from fedgsca.experiment.run_folder import read_config
    from fedgsca.report.run_reader import read_json

    if (path / "plan.json").is_file():
        raise RunFolderError(
            "todo.trained-model-1",
            f"{path} is a comparison of several runs",
            fix=f"give one of the folders in {path / 'cells'}",
        )
    config, setup = read_config(path), read_json(path / "setup.json")
    if setup is None or not {"classes", "shape"} <= set(setup.get("data", {})):
        raise RunFolderError(
            "todo.trained-model-2",
            f"{path / 'setup.json'} is missing or damaged",
            fix=f"fedgsca resume {path} writes it again",
        )
    if (path / "result.json").is_file():
        return Trained(path, config, setup, _final(path / "model.safetensors"), config.train.rounds)
    weights, rounds = _newest(path, config)
    if not checkpoint:
        raise RunFolderError(
            "todo.trained-model-3",
            f"{path} is not finished: {rounds} of {config.train.rounds} rounds are done",
            fix=f"fedgsca resume {path}; or, for the model as it is, fedgsca export {path} --checkpoint",
        )
    return Trained(path, config, setup, weights, rounds)


def _final(path: Path) -> Arrays:
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunFolderError(
            "todo.trained-model-4",
            f"{path} cannot be read: {why}",
            fix="restore it from a backup, or run the experiment again",
        ) from None


def _newest(path: Path, config: Config) -> tuple[Arrays, int]:
    from fedgsca.engine import checkpoint

    state = checkpoint.latest(path / "checkpoint", config.fingerprint())
    if state is None:
        raise RunFolderError(
            "todo.trained-model-5",
            f"{path} has no model yet: no round is finished",
            fix=f"fedgsca resume {path}",
        )
    return state.weights, state.round


def network(trained: Trained) -> Classifier:
    """Backbone and head with the trained weights; a frozen backbone comes from its own file, which must be the one of the run."""
    from fedgsca.experiment.simulation import weights_digest, weights_path
    from fedgsca.models.build import Classifier, build_backbone, build_classifier, build_head_only
    from fedgsca.models.weights import load_backbone

    model, classes = trained.config.model, len(trained.classes)
    if not model.frozen:
        whole = build_classifier(model.name, classes, seed=0, head=trained.head)
        fill(whole, trained.weights)
        return whole
    path = weights_path(trained.config)
    assert path is not None  # a frozen run without weights does not start
    backbone = build_backbone(model.name, seed=0)
    load_backbone(backbone, path)
    began = trained.setup.get("weights")
    if began is not None and began != weights_digest(trained.config):
        raise WeightsError(
            "todo.trained-model-6",
            f"{path} is not the file that the run began with",
            fix="restore that file: its sha256 is " + began,
        )
    head = build_head_only(feature_width_of(trained), classes, seed=0, head=trained.head)
    fill(head, trained.weights)
    return Classifier(backbone, head.head)


def feature_width_of(trained: Trained) -> int:
    from fedgsca.models.build import feature_width

    return feature_width(trained.config.model.name)


def fill(model: nn.Module, weights: Arrays) -> None:
    """Put arrays into a network by name; every name and shape must fit."""
    import torch

    wanted = model.state_dict()
    wrong = sorted(set(wanted) ^ set(weights))
    wrong += [
        name
        for name in wanted
        if name in weights and tuple(wanted[name].shape) != np.shape(weights[name])
    ]
    if wrong:
        raise WeightsError(
            "todo.trained-model-7",
            f"the weights do not fit the network and its classes: {', '.join(wrong[:4])}{' ...' if len(wrong) > 4 else ''}",
            fix="the folder mixes files of different runs, or comes from another version of fedgsca; run or export it again",
        )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(torch.from_numpy(np.array(weights[name], copy=True)))


def as_evaluated(trained: Trained) -> Probabilities:
    """The model through the very functions that evaluated it during the run, on the CPU."""
    import torch
    from torch import nn

    from fedgsca.models.build import Classifier, spec_of
    from fedgsca.models.features import extract
    from fedgsca.site import Samples
    from fedgsca.train import evaluate

    torch.set_num_threads(trained.config.train.threads)
    model, frozen = network(trained), trained.config.model.frozen
    spec, classes, cpu = (
        spec_of(trained.config.model.name),
        len(trained.classes),
        torch.device("cpu"),
    )
    judge = Classifier(nn.Identity(), model.head) if frozen else model

    def probabilities(images: np.ndarray) -> np.ndarray:
        inputs = images
        if frozen:
            inputs = np.empty((len(images), spec.width), np.float32)
            extract(model.backbone, spec, images, trained.config.model.feature_size, inputs)
        samples = Samples(inputs, np.zeros(len(images), np.int64), classes, spec.mean, spec.std)
        return evaluate(judge, samples, cpu).probs

    return probabilities
