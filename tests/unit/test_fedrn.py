"""FedRN: reliable neighbours, the ensemble, and what travels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgsca.methods.fedrn import SLOTS, ensemble, loss_probabilities, reliability
from tests.helpers import toy_experiment


def test_reliability_by_hand() -> None:
    """The own site counts as most similar; expertise and similarity are scaled to 0..1."""
    expertise = np.array([0.5, 0.9, 0.7])
    outputs = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    scores = reliability(expertise, outputs, row=0, alpha=0.6)
    similarity = np.array([1.0, 0.0, 1 / np.sqrt(2)])
    expected = 0.6 * np.array([0.0, 1.0, 0.5]) + 0.4 * similarity
    assert scores == pytest.approx(expected)


def test_the_ensemble_is_a_weighted_mean() -> None:
    probabilities = np.array([[1.0, 0.0], [0.0, 0.5]])
    assert ensemble(probabilities, np.array([3.0, 1.0])) == pytest.approx([0.75, 0.125])
    assert ensemble(probabilities, np.zeros(2)) == pytest.approx([0.5, 0.25])


def test_losses_without_two_modes_are_all_clean() -> None:
    assert loss_probabilities(np.full(50, 0.3)).tolist() == [1.0] * 50
    rng = np.random.default_rng(0)
    losses = np.concatenate([rng.normal(0.2, 0.05, 80), rng.normal(3.0, 0.3, 20)])
    assert (loss_probabilities(losses) > 0.5).tolist() == [True] * 80 + [False] * 20


def test_after_the_warm_up_noisy_sites_select(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedrn", rounds=20, lr=0.2)
    state = toy.run(20)
    selections = [int(update.extras["selected"]) for _, update in sorted(toy.updates.items())]
    assert min(selections[:2]) > max(selections[2:])
    for name in ("site-3", "site-4"):
        wrong = toy.sites[name].labels != toy.truth[name]
        clean = toy.notes[name]["clean"]
        assert clean[~wrong].mean() > clean[wrong].mean() + 0.3
    assert toy.accuracy(state.weights) > 0.95


def test_heads_travel_without_names_and_unused_places_are_empty(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedrn", rounds=10)
    state = toy.run(3)
    payload = toy.method.broadcast(state, 3)
    assert payload.extras["heads"].shape[0] == SLOTS
    known = np.isfinite(payload.extras["expertise"])
    assert known.tolist() == [True] * 4 + [False] * (SLOTS - 4)
    assert np.isnan(payload.extras["heads"][4:]).all()
    expertise = payload.extras["expertise"][known]
    assert expertise.tolist() == sorted(expertise, reverse=True), "the most expert sites first"
