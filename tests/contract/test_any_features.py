"""FedGSCA-E on features of any network: no width, scale or shape of the vectors breaks its rules.

The vectors are views of the same hidden points, so that a method can only differ by how it copes
with the view: random projections of 384 to 6,000 numbers, and forms that published networks have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedgsca.config import load_config
from fedgsca.federation.label_evidence import read_evidence
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.rng import stream

NUM_CLASSES, TRAIN, TEST, HIDDEN = 4, 240, 160, 12
View = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def project(width: int) -> View:
    """A random projection to `width` numbers."""
    return lambda points, rng: points @ rng.normal(size=(points.shape[1], width))


def rectify(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mostly zeros, like the averages behind a ReLU."""
    return np.maximum(project(1536)(points, rng) - 4.0, 0.0)


def use_few(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A user's embedding in which four of 768 numbers are a hundred times larger than the rest."""
    vectors = project(768)(points, rng)
    vectors[:, :4] *= 100.0
    return vectors


def shift(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Far from zero, where all vectors look alike before they are standardised."""
    return project(512)(points, rng) * 1e-3 + 50.0


VIEWS: dict[str, View] = {
    "384 numbers": project(384),
    "2,064 numbers": project(2064),
    "6,000 numbers": project(6000),
    "mostly zeros": rectify,
    "few large numbers": use_few,
    "far from zero": shift,
}


def write_view(view: str, folder: Path) -> Path:
    """An .npz file of the points as one network would see them."""
    rng = stream(3, "points")
    labels = np.arange(TRAIN + TEST) % NUM_CLASSES
    centres = 1.1 * rng.normal(size=(NUM_CLASSES, HIDDEN))
    points = centres[labels] + rng.normal(size=(len(labels), HIDDEN))
    features = VIEWS[view](points, stream(4, "view", view)).astype(np.float32)
    split = np.where(np.arange(len(labels)) < TRAIN, "train", "test")
    path = folder / "features.npz"
    np.savez(path, features=features, labels=labels, split=split)
    return path


def score(method: str, source: Path, folder: Path) -> float:
    """Macro F1 over the last rounds of a run with wrong labels."""
    config = load_config(
        method=method,
        data__source=str(source),
        data__sites=4,
        data__partition="stratified",
        model__name="features",
        train__rounds=30,
        train__threads=1,
        train__device="cpu",
        noise__spec="0-S40-P20-S40",
    )
    result = run(config, folder / method)
    assert result is not None
    assert all(np.isfinite(record.f1 or 0.0) for record in read_rounds(folder / method))
    return result.f1


@pytest.mark.parametrize("view", VIEWS)
def test_no_features_break_the_rules(view: str, tmp_path: Path) -> None:
    source = write_view(view, tmp_path)
    own_score = score("fedgsca-e", source, tmp_path)
    assert own_score >= score("fedavg", source, tmp_path) - 0.5
    for site in ("site-1", "site-2", "site-3", "site-4"):
        evidence = read_evidence(tmp_path / "fedgsca-e", site)
        for judgement in evidence.judgements.values():
            assert np.isfinite(judgement.probs).all()
            assert (judgement.probs > 0).any(axis=1).all()
