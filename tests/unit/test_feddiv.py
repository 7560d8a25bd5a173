"""FedDiv: the merged filter, de-biased agreement, and what a site trains on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgsca.methods.feddiv import debiased_labels, merge_filters, update_prior
from fedgsca.methods.parts.statistics import double_softmax_losses, unit_range
from tests.helpers import toy_experiment

QUICK = {"warmup": 5, "relabel_from": 1}
ROUNDS = 20


def test_filters_are_averaged_by_samples() -> None:
    filters = [
        np.array([0.1, 0.7, 0.01, 0.04, 0.6, 0.4]),
        np.array([0.3, 0.9, 0.05, 0.08, 0.8, 0.2]),
    ]
    linear = merge_filters(filters, [30, 10], "linear")
    assert linear == pytest.approx([0.15, 0.75, 0.02, 0.05, 0.65, 0.35])
    squared = merge_filters(filters, [30, 10], "squared")
    assert squared[2:4] == pytest.approx([0.5625 * 0.01 + 0.0625 * 0.05, 0.5625 * 0.04 + 0.005])
    assert np.isnan(merge_filters([], [], "linear")).all()


def test_debiasing_prefers_the_class_that_is_predicted_less() -> None:
    logits = np.log(np.array([[0.5, 0.45, 0.05]]))
    assert debiased_labels(logits, np.array([0.8, 0.1, 0.1]), xi=0.5).tolist() == [1]
    assert debiased_labels(logits, np.full(3, 1 / 3), xi=0.5).tolist() == [0]


def test_the_prior_counts_confident_samples_only() -> None:
    uniform = np.full(3, 1 / 3)
    logits = np.log(np.array([[0.9, 0.05, 0.05], [0.4, 0.3, 0.3]]))
    prior = update_prior(uniform, logits, xi=0.5, memory=0.2)
    assert prior == pytest.approx(0.2 / 3 + 0.8 * np.array([0.9, 0.05, 0.05]))
    assert update_prior(uniform, logits[1:], 0.5, 0.2) is uniform


def test_losses_of_a_double_softmax_and_their_scale() -> None:
    probs = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    losses = double_softmax_losses(probs, np.zeros(3, np.int64))
    assert losses == pytest.approx([np.log(np.e + 1) - 1, np.log(2), np.log(np.e + 1)])
    assert unit_range(losses)[[0, 2]].tolist() == [0.0, 1.0]
    assert unit_range(np.full(3, 0.7)).tolist() == [0.0] * 3
    assert len(unit_range(np.empty(0))) == 0


def test_noisy_sites_train_on_fewer_samples_than_clean_ones(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "feddiv", options=QUICK, rounds=ROUNDS, lr=0.2)
    state = toy.run(ROUNDS)
    levels = [float(update.extras["noise_level"]) for _, update in sorted(toy.updates.items())]
    assert max(levels[:2]) < 0.1 and min(levels[2:]) > 0.4
    for name in ("site-3", "site-4"):
        before = np.mean(toy.sites[name].labels == toy.truth[name])
        assert np.mean(toy.notes[name]["corrected"] == toy.truth[name]) > before + 0.3
    assert np.isfinite(state.extras["filter"]).all()
    assert toy.accuracy(state.weights) > 0.9


def test_losses_scaled_at_each_site_make_clean_sites_look_noisy(tmp_path: Path) -> None:
    """Why `scaling = site`, the published code, is not the default."""
    options = {**QUICK, "scaling": "site"}
    toy = toy_experiment(tmp_path, "feddiv", options=options, rounds=ROUNDS, lr=0.2)
    toy.run(ROUNDS)
    levels = [float(toy.updates[name].extras["noise_level"]) for name in ("site-1", "site-2")]
    assert max(levels) > 0.15


def test_the_server_keeps_the_filter_of_an_absent_site(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "feddiv", options=QUICK, rounds=8, lr=0.2)
    state = toy.run(4)
    next_state = toy.method.aggregate(state, [])
    assert next_state.extras["filter"] == pytest.approx(state.extras["filter"])
