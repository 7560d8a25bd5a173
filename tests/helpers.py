"""A federation small enough for unit tests: Gaussian clouds as features, or tiny images.

It does what the real engine does: messages are encoded and decoded, extras are checked against the
method's declaration, and a site's memory is on disk. Only the data and the loop are smaller.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsca.config import TrainConfig
from fedgsca.federation.local import measure_decisions
from fedgsca.methods.base import Method, ServerState, make_method
from fedgsca.methods.site import Samples, Site
from fedgsca.methods.site_store import Store
from fedgsca.methods.train import evaluate
from fedgsca.models.build import Classifier, build_classifier, build_head_only
from fedgsca.rng import stream
from fedgsca.wire import (
    Arrays,
    Payload,
    Update,
    check_extras,
    check_update,
    decode_payload,
    decode_update,
    encode_payload,
    encode_update,
)

WIDTH, CLASSES = 16, 4


def needs_packages(*names: str) -> pytest.MarkDecorator:
    """The mark of tests that are skipped where an optional package is missing.

    `pytest.importorskip` at the top of a file imports it in every process of `make test`: MONAI
    and Opacus take seconds of each. This mark only looks whether they are there.
    """
    missing_packages = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(
        bool(missing_packages), reason=f"not installed: {', '.join(missing_packages)}"
    )


@dataclass
class Toy:
    """Sites, their true labels, a clean test set, and the loop around one method."""

    folder: Path
    method: Method
    model: Classifier
    hyper: TrainConfig
    sites: dict[str, Samples]
    truth: dict[str, np.ndarray]
    test: Samples
    width: int
    updates: dict[str, Update] = field(default_factory=dict)  # of the last round
    notes: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # of the last round
    # of the last round, against the truth
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @property
    def dims(self) -> dict[str, int]:
        return {"C": CLASSES, "D": self.width, "E": self.width, "K": len(self.sites)}

    def site(self, name: str) -> Site:
        return Site(
            name,
            self.sites[name],
            self.hyper,
            0,
            self.model,
            torch.device("cpu"),
            Store(self.folder / name),
        )

    def start(self) -> ServerState:
        weights = {name: tensor.numpy().copy() for name, tensor in self.model.state_dict().items()}
        return self.method.start(weights, seed=0)

    def run_round(self, name: str, payload: Payload) -> Update:
        site = self.site(name)
        received = decode_payload(encode_payload(payload))
        update = decode_update(encode_update(self.method.local_update(received, site)))
        check_update(update, payload.weights, self.method.uploads, self.dims)
        self.notes[name] = site.notes
        self.metrics[name] = measure_decisions(site.notes, self.truth[name], site.labels)
        return update

    def round(self, state: ServerState, absent: Sequence[str] = ()) -> ServerState:
        payload = self.method.broadcast(state, state.round)
        check_extras("payload", payload.extras, self.method.downloads, self.dims)
        self.updates = {
            name: self.run_round(name, payload) for name in sorted(self.sites) if name not in absent
        }
        return self.method.aggregate(state, iter(self.updates.values()))

    def run(self, rounds: int, state: ServerState | None = None) -> ServerState:
        state = state or self.start()
        for _ in range(rounds):
            state = self.round(state)
        return state

    def accuracy(self, weights: Arrays) -> float:
        """Share of the clean test set that a model gets right."""
        self.site(next(iter(self.sites))).load(weights)
        evaluation = evaluate(self.model, self.test, torch.device("cpu"))
        return float(np.mean(evaluation.predictions == self.test.labels))


def clouds(labels: np.ndarray, rng: np.random.Generator, spread: float = 1.0) -> np.ndarray:
    """(n, 16) float32: class c is centred at 2 in four coordinates of its own."""
    centres = np.kron(np.eye(CLASSES), np.full(WIDTH // CLASSES, 2.0))
    return np.asarray(
        centres[labels] + spread * rng.normal(size=(len(labels), WIDTH)), dtype=np.float32
    )


def tiny_images(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(n, 16, 16, 3) uint8: a bright quadrant names the class."""
    images = rng.normal(100, 25, size=(len(labels), 2, 8, 2, 8, 3))
    for row, label in enumerate(labels):
        images[row, label // 2, :, label % 2] += 60
    return np.asarray(images.reshape(-1, 16, 16, 3).clip(0, 255), dtype=np.uint8)


def toy_experiment(
    folder: Path,
    method: str = "fedavg",
    *,
    noise: Sequence[float] = (0.0, 0.0, 0.5, 0.5),
    samples: int = 60,
    spread: float = 1.0,
    rounds: int = 20,
    images: bool = False,
    options: Mapping[str, Any] | None = None,
    **hyper: Any,
) -> Toy:
    """One site per entry of `noise`: that share of its labels is replaced by another class.

    `hyper` goes to TrainConfig.
    """

    def make_samples(labels: np.ndarray, given: np.ndarray, rng: np.random.Generator) -> Samples:
        inputs = tiny_images(labels, rng) if images else clouds(labels, rng, spread)
        return Samples(inputs, given, CLASSES)

    sites: dict[str, Samples] = {}
    truth: dict[str, np.ndarray] = {}
    for number, share in enumerate(noise, start=1):
        name = f"site-{number}"
        rng = stream(7, "toy", number)
        labels = np.arange(samples, dtype=np.int64) % CLASSES
        wrong = np.zeros(samples, bool)
        wrong[rng.permutation(samples)[: round(share * samples)]] = True
        given = np.where(wrong, (labels + rng.integers(1, CLASSES, samples)) % CLASSES, labels)
        sites[name] = make_samples(labels, given, rng)
        truth[name] = labels
    labels = np.arange(400, dtype=np.int64) % CLASSES
    test = make_samples(labels, labels, stream(7, "toy", "test"))
    settings = {
        "rounds": rounds,
        "batch_size": 16,
        "lr": 0.05,
        "momentum": 0.0,
        "threads": 1,
        "augment": "none",
        "device": "cpu",
        **hyper,
    }
    toy_method = make_method(method, options or {}, rounds)
    torch.set_num_threads(1)
    if images:
        model = build_classifier("cnn", CLASSES, seed=0, head=toy_method.head)
    else:
        model = build_head_only(WIDTH, CLASSES, seed=0, head=toy_method.head)
    width = 128 if images else WIDTH
    return Toy(folder, toy_method, model, TrainConfig(**settings), sites, truth, test, width)
