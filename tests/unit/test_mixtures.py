"""Mixtures over a few sites: the same as scikit-learn's, and how they differ from 2-means."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from fedgsca.methods.parts.groups import (
    Mixture,
    fit_mixture,
    fit_two_groups,
    nearer_second,
    two_means,
    vote_of_mixtures,
)
from fedgsca.rng import stream


def simulated_losses(rng: np.random.Generator, sites: int, classes: int) -> np.ndarray:
    """(K, C) class losses scaled to 0..1; every site has its own rate of wrong labels."""
    rates = rng.choice([0.0, 0.1, 0.2, 0.4], size=sites)
    hardness = rng.uniform(0.5, 1.5, size=classes)
    losses = hardness + 2.0 * rates[:, None] + rng.normal(0, 0.15, (sites, classes))
    low = losses.min(axis=0)
    return np.asarray((losses - low) / (losses.max(axis=0) - low))


def published_vote(points: np.ndarray) -> frozenset[int]:
    """The noisy sites by nine scikit-learn mixtures and the most frequent division."""
    divisions = []
    for seed in range(9):
        mixture = GaussianMixture(n_components=2, random_state=seed).fit(points)
        noisy = mixture.predict(points) == np.argmax(mixture.means_.sum(axis=1))
        divisions.append(frozenset(np.flatnonzero(noisy).tolist()))
    counts = Counter(divisions)
    best = max(counts.values())
    return next(division for division in divisions if counts[division] == best)


def noisy_sites(mixture: Mixture, points: np.ndarray) -> frozenset[int]:
    return frozenset(np.flatnonzero(mixture.in_second(points)).tolist())


@pytest.mark.parametrize(("sites", "classes"), [(4, 1), (4, 9), (12, 3), (40, 2)])
def test_em_from_the_same_groups_is_scikit_learns(sites: int, classes: int) -> None:
    points = simulated_losses(stream(sites, "mixture", classes), sites, classes)
    start = nearer_second(points, two_means(points))
    ours = fit_mixture(points, start)
    hard = np.stack([~start, start], axis=1).astype(float)
    theirs = GaussianMixture(2)
    theirs._initialize_parameters = lambda x, random_state, xp=None: theirs._initialize(x, hard)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(points)
    order = np.argsort(theirs.means_.sum(axis=1))
    assert ours.means == pytest.approx(theirs.means_[order], abs=1e-6)
    assert ours.covariances == pytest.approx(theirs.covariances_[order], abs=1e-6)
    assert ours.weights == pytest.approx(theirs.weights_[order], abs=1e-6)


def test_the_vote_is_the_published_one_in_nearly_all_cases() -> None:
    """Only the random starts differ."""
    agreements = []
    for number in range(60):
        points = simulated_losses(stream(number, "vote"), 4, 9)
        mixture = vote_of_mixtures(points)
        assert mixture is not None
        agreements.append(noisy_sites(mixture, points) == published_vote(points))
    assert np.mean(agreements) >= 0.85


def test_with_four_sites_mixtures_and_two_means_are_not_the_same() -> None:
    """It was thought that the mixture stays at its 2-means start."""
    differences = []
    for number in range(60):
        points = simulated_losses(stream(number, "vote"), 4, 9)
        mixture = vote_of_mixtures(points)
        assert mixture is not None
        centres = two_means(points)
        centres = centres[np.argsort(centres.sum(axis=1))]
        by_means = frozenset(np.flatnonzero(nearer_second(points, centres)).tolist())
        differences.append(noisy_sites(mixture, points) != by_means)
    assert 0.02 < np.mean(differences) < 0.6


def test_equal_sites_have_no_groups() -> None:
    assert vote_of_mixtures(np.zeros((4, 3))) is None
    assert fit_two_groups(np.ones((4, 1))) is None


def test_the_vote_is_deterministic() -> None:
    points = simulated_losses(stream(5, "vote"), 6, 4)
    one, other = vote_of_mixtures(points), vote_of_mixtures(points)
    assert one is not None and other is not None
    assert np.array_equal(one.means, other.means)
