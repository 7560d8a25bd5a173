"""A hospital as a method sees it: its samples with the given labels, a model to train, its private memory, its random streams.

True labels, where a simulation knows them, are not here: they belong to the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.config import TrainConfig
from fedgsca.rng import stream
from fedgsca.site_store import Store
from fedgsca.wire import Arrays

if TYPE_CHECKING:
    import torch

    from fedgsca.models import Classifier
    from fedgsca.train import Evaluation


@dataclass(frozen=True)
class Samples:
    """Inputs of a site (or of the test set) in fixed row order."""

    inputs: (
        np.ndarray
    )  # (n, H, W, 3) uint8 images, or (n, D) float32 features in frozen-backbone mode
    labels: np.ndarray  # (n,) int64, as given
    num_classes: int
    mean: tuple[float, float, float] = (127.5, 127.5, 127.5)  # images only
    std: tuple[float, float, float] = (64.0, 64.0, 64.0)

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @property
    def are_images(self) -> bool:
        return self.inputs.ndim == 4


@dataclass
class Site:
    """One site for the duration of a run. The model object is borrowed: the engine keeps a single one in memory."""

    name: str
    samples: Samples
    hyper: TrainConfig
    seed: int
    model: Classifier
    device: torch.device
    store: Store
    notes: dict[str, np.ndarray] = field(
        default_factory=dict
    )  # what the method saw this round; stays on this machine
    seen: Evaluation | None = (
        None  # outputs of the model as loaded, while nothing has trained on it
    )
    _loaded: Arrays | None = None

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    @property
    def labels(self) -> np.ndarray:
        """Given labels, (n,)."""
        return self.samples.labels

    @property
    def num_classes(self) -> int:
        return self.samples.num_classes

    def rng(self, round: int, *purpose: str | int) -> np.random.Generator:
        """A stream that depends on the site's name, never on the order or the process in which sites run."""
        return stream(self.seed, "site", self.name, round, *purpose)

    def load(self, weights: Arrays) -> None:
        """Put the received weights into the model."""
        if weights is not self._loaded:
            self.seen, self._loaded = None, weights
        load_weights(self.model, weights)

    def weights(self) -> dict[str, np.ndarray]:
        """A copy of the model's weights and buffers, ready to send."""
        return weights_of(self.model)

    def note(self, **arrays: np.ndarray) -> None:
        """Leave per-sample observations for the site's own records (audit, histograms, and in simulations the comparison with the truth)."""
        self.notes.update(arrays)

    def recall(self, round: int) -> Mapping[str, np.ndarray]:
        """The site's private memory as it was before this round; empty at first."""
        return self.store.before(round)

    def remember(self, round: int, **arrays: np.ndarray) -> None:
        """Replace the private memory; it survives a restart and never leaves the site."""
        self.store.write(round, arrays)


def load_weights(model: torch.nn.Module, weights: Arrays) -> None:
    import torch

    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.from_numpy(np.array(weights[name], copy=True)))


def weights_of(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {
        name: tensor.detach().cpu().numpy().copy() for name, tensor in model.state_dict().items()
    }
