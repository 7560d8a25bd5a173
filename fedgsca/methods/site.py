"""A hospital as a method sees it: samples with given labels, a model, a memory, random streams.

True labels, where a simulation knows them, are not here: they belong to the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedgsca.config import TrainConfig
from fedgsca.methods.site_store import Store
from fedgsca.rng import stream
from fedgsca.support.checked_labels import CheckedLabels
from fedgsca.wire import Arrays

if TYPE_CHECKING:
    import torch

    from fedgsca.models.build import Classifier


class RowView:
    """The part of an array's interface that training needs, without copying the rows."""

    def __init__(self, source: np.ndarray, rows: np.ndarray) -> None:
        self._source = np.asarray(source)  # a memory map stays one, without its subclass
        self._rows = rows
        self.shape = (len(rows), *source.shape[1:])
        self.ndim = source.ndim
        self.dtype = source.dtype

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        return np.asarray(self._source[self._rows[index]])


@dataclass(frozen=True)
class Samples:
    """Inputs of a site (or of the test set) in a fixed order of rows."""

    # (n, H, W, 3) uint8 images, or (n, D) float32 features of a frozen backbone
    inputs: np.ndarray
    # (n,) int64, as given
    labels: np.ndarray
    num_classes: int
    # per channel, of images only
    mean: tuple[float, float, float] = (127.5, 127.5, 127.5)
    std: tuple[float, float, float] = (64.0, 64.0, 64.0)
    # (n,) names of patients or lesions, where the source has them
    groups: np.ndarray | None = None
    # labels that a person has checked; None: none of them. It never leaves the site
    checked: CheckedLabels | None = None
    # (n, D) float32: frozen features of the images, on which evidence heads are trained while a
    # network learns from the images; None: the network's own features
    features: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @property
    def are_images(self) -> bool:
        """Images rather than features."""
        return self.inputs.ndim == 4

    def part(self, rows: np.ndarray) -> Samples:
        """The samples of some rows (m,), in their order; inputs are not copied."""
        groups = None if self.groups is None else self.groups[rows]
        checked = None if self.checked is None else self.checked.part(rows)
        view: np.ndarray = RowView(self.inputs, rows)  # type: ignore[assignment]
        labels = self.labels[rows]
        features = None if self.features is None else self.features[rows]
        return replace(
            self, inputs=view, labels=labels, groups=groups, checked=checked, features=features
        )


@dataclass(frozen=True)
class Evaluation:
    """Outputs of a model on all samples in the order of rows, without augmentation."""

    # (n, C) float64
    probs: np.ndarray
    # (n,) float64: cross-entropy with the given labels, in nats
    losses: np.ndarray
    # (n, D), on request
    features: np.ndarray | None = None

    @property
    def predictions(self) -> np.ndarray:
        """(n,): the most probable class."""
        return np.asarray(self.probs.argmax(axis=1))


@dataclass(frozen=True)
class LabelEvidence:
    """What is known about a site's labels in this round (fedgsca/evidence.py).

    A method may use it. It stays at the site.
    """

    # (n, C): P(true class | image, given label); None: too early in the run
    posterior: np.ndarray | None = None
    # share of the information in unseen labels that the better judge explains
    share_explained: float = 0.0


@dataclass
class Site:
    """One site during a round. The model is borrowed: the engine has a single one in memory."""

    name: str
    samples: Samples
    hyper: TrainConfig
    seed: int
    model: Classifier
    device: torch.device
    store: Store
    # that a round asks: the server's mean divides what one of them has learnt by this number
    num_sites: int = 1
    # per-sample observations of the method in this round; they stay on this machine
    notes: dict[str, np.ndarray] = field(default_factory=dict)
    # outputs of the model as loaded, until training changes it
    evaluation: Evaluation | None = None
    # None: the run has no evidence heads
    evidence: LabelEvidence | None = None
    _current_weights: Arrays | None = None

    @property
    def num_samples(self) -> int:
        """n_k."""
        return len(self.samples)

    @property
    def labels(self) -> np.ndarray:
        """(n,): the given labels."""
        return self.samples.labels

    @property
    def checked(self) -> CheckedLabels | None:
        """Labels that a person has checked; None: none of them."""
        return self.samples.checked

    @property
    def num_classes(self) -> int:
        """C, the same at every site."""
        return self.samples.num_classes

    def rng(self, round: int, *purpose: str | int) -> np.random.Generator:
        """A random stream for a purpose in a round.

        It depends on the site's name, never on the order or the process in which sites run.
        """
        return stream(self.seed, "site", self.name, round, *purpose)

    def load(self, weights: Arrays) -> None:
        """Put the received weights into the model."""
        if weights is not self._current_weights:
            self.evaluation = None
            self._current_weights = weights
        load_weights(self.model, weights)

    def weights(self) -> dict[str, np.ndarray]:
        """A copy of the model's weights and buffers, ready to send."""
        return weights_of(self.model)

    def note(self, **arrays: np.ndarray) -> None:
        """Leave per-sample observations for the site's own records.

        They serve the label audit, histograms and, in simulations, the comparison with the truth.
        """
        self.notes.update(arrays)

    def note_corrections(self, labels: np.ndarray) -> int:
        """Note labels (n,) that a method uses instead of the given ones; how many differ."""
        corrections = labels != self.labels
        self.note(
            corrected=labels,
            clean=~corrections,
            pseudo_rows=np.flatnonzero(corrections),
            pseudo_labels=labels[corrections],
        )
        return int(corrections.sum())

    def recall(self, round: int) -> Mapping[str, np.ndarray]:
        """The site's private memory as it was before this round; empty at first."""
        return self.store.read_before(round)

    def remember(self, round: int, **arrays: np.ndarray) -> None:
        """Replace the private memory; it survives a restart and never leaves the site."""
        self.store.write(round, arrays)


def load_weights(model: torch.nn.Module, weights: Arrays) -> None:
    """Copy weights and buffers into a model, by name."""
    import torch

    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(torch.from_numpy(np.array(weights[name], copy=True)))


def weights_of(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """A copy of a model's weights and buffers, by name."""
    weights = {}
    for name, tensor in model.state_dict().items():
        weights[name] = tensor.detach().cpu().numpy().copy()
    return weights
