"""How many labels are wrong: share, interval and "cannot tell", on labels whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from fedgsca.evidence import (
    Judgement,
    SiteEvidence,
    judge_labels,
    sharpen,
    symmetric_matrix,
)
from fedgsca.labels.wrong_count import (
    MAX_WIDTH,
    CountModels,
    assign_parts,
    estimate_wrong,
    fit_models,
)
from fedgsca.rng import stream
from tests.unit.test_evidence_heads import MIX, PAIR_FLIP, Labels, site_of


def evidence_of(opinion: np.ndarray, share_explained: float = 0.5) -> SiteEvidence:
    return SiteEvidence.of(Judgement(opinion, np.ones(len(opinion)), 1.0, share_explained))


def models_of(site: Labels) -> CountModels:
    return fit_models(evidence_of(site.opinion), site.given)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "matrix", [np.eye(3), symmetric_matrix(0.1, 3), symmetric_matrix(0.4, 3), PAIR_FLIP]
)
def test_the_interval_holds_the_truth_on_a_small_site(matrix: np.ndarray, seed: int) -> None:
    site = site_of(matrix, MIX, n=150, seed=seed)
    estimate = estimate_wrong(models_of(site))
    assert estimate.low <= estimate.share <= estimate.high
    assert estimate.low <= site.wrong.mean() <= estimate.high


@pytest.mark.parametrize("seed", range(3))
def test_a_small_clean_site_has_almost_no_wrong_labels(seed: int) -> None:
    estimate = estimate_wrong(models_of(site_of(np.eye(3), MIX, n=100, seed=seed)))
    assert estimate.can_tell
    assert estimate.share < 0.03
    assert estimate.low == 0.0


@pytest.mark.parametrize("power", [0.6, 1.0, 1.6])
@pytest.mark.parametrize("matrix", [np.eye(3), symmetric_matrix(0.3, 3), PAIR_FLIP])
def test_opinions_that_are_too_bold_or_too_cautious_do_not_change_the_share(
    matrix: np.ndarray, power: float
) -> None:
    site = site_of(matrix, MIX, n=800)
    estimate = estimate_wrong(fit_models(evidence_of(sharpen(site.opinion, power)), site.given))
    assert abs(estimate.share - site.wrong.mean()) < 0.05
    assert estimate.can_tell


def test_opinions_that_do_not_depend_on_the_image_cannot_tell() -> None:
    given = stream(0, "labels").choice(3, size=300, p=MIX)
    judgement = judge_labels(np.tile(MIX, (300, 1)), given, np.arange(300) % 2)
    assert judgement.share_explained < 0.01
    models = fit_models(SiteEvidence.of(judgement), given)
    estimate = estimate_wrong(models)
    assert not estimate.can_tell
    assert (estimate.low, estimate.high) == (0.0, 1.0)


def test_models_that_disagree_cannot_tell() -> None:
    """Two models that explain the labels equally well, with 5 and 50 % wrong labels."""
    suspicions = np.stack([np.full(100, 0.05), np.full(100, 0.5)])
    estimate = estimate_wrong(CountModels(suspicions, np.zeros(2), 0.5, np.zeros(100, bool)))
    assert estimate.share == pytest.approx(0.275)
    assert estimate.high - estimate.low > MAX_WIDTH
    assert not estimate.can_tell
    # one of them explains the labels much better
    sure = estimate_wrong(CountModels(suspicions, np.array([0.0, -60.0]), 0.5, np.zeros(100, bool)))
    assert sure.share == pytest.approx(0.05, abs=1e-4)
    margin = 1.645 * np.sqrt(2 * 0.05 * 0.95 / 100) + 0.01
    assert sure.high == pytest.approx(0.05 + margin, abs=1e-4)
    assert sure.can_tell


def test_parts_of_a_site_add_up_and_empty_parts_have_none() -> None:
    site = site_of(PAIR_FLIP, MIX, n=200)
    models = models_of(site)
    total = 0.0
    for label in range(3):
        mask = site.given == label
        part = estimate_wrong(models, mask)
        assert part.low <= part.share <= part.high
        total += part.share * mask.sum()
    assert total == pytest.approx(200 * estimate_wrong(models).share)
    empty = estimate_wrong(models, np.zeros(200, bool))
    assert (empty.share, empty.low, empty.high) == (0, 0, 0)


@pytest.mark.parametrize("given", [[], [0], [1, 1, 1, 1, 1, 1], [0, 2]])
def test_one_class_and_very_small_sites(given: list[int]) -> None:
    labels = np.array(given, dtype=np.int64)
    opinion = np.tile([0.2, 0.7, 0.1], (len(labels), 1))
    estimate = estimate_wrong(fit_models(evidence_of(opinion, 0.0), labels))
    assert np.isfinite([estimate.share, estimate.low, estimate.high]).all()
    assert not estimate.can_tell


def test_a_large_site_is_weighed_by_some_of_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of(symmetric_matrix(0.2, 3), MIX, n=1000)
    monkeypatch.setattr("fedgsca.labels.wrong_count.MAX_WEIGHED", 300)
    models = models_of(site)
    assert models.suspicions.shape[1] == 1000
    assert abs(estimate_wrong(models).share - site.wrong.mean()) < 0.03


def test_every_part_has_its_share_of_every_class() -> None:
    given = stream(0, "labels").choice(3, size=100, p=MIX)
    parts = assign_parts(given)
    for label in range(3):
        counts = np.bincount(parts[given == label], minlength=5)
        assert counts.max() - counts.min() <= 1


def test_judges_who_disagree_and_explain_equally_much_cannot_tell() -> None:
    """One judge was trained on images that look different: to it, a whole class looks wrong."""
    site = site_of(symmetric_matrix(0.05, 3), MIX, n=400, sure=1.5)
    misled = site.opinion[:, [1, 0, 2]] ** 0.8 + site.opinion
    misled /= misled.sum(axis=1, keepdims=True)
    judges = [Judgement(probs, np.ones(400), 1.0, 0.5) for probs in (site.opinion, misled)]
    one = estimate_wrong(fit_models(SiteEvidence.of(judges[0]), site.given))
    two = estimate_wrong(
        fit_models(SiteEvidence.of_federation(judges[1], judges[0], 4), site.given)
    )
    assert two.low <= one.share <= two.high
    assert two.low <= site.wrong.mean() <= two.high
