"""Ranking, suggestion, quota and estimate, on evidence whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from fedgsca.errors import ConfigError
from fedgsca.evidence import Judgement, SiteEvidence
from fedgsca.labels import score
from fedgsca.labels.build_audit import measure_ranking
from fedgsca.labels.second_opinion import (
    ask_second_opinion,
    nearest_rows,
    neighbour_opinion,
    order_by_similarity,
    out_of_sample_probs,
    unit_vectors,
)
from fedgsca.labels.wrong_count import fit_models
from fedgsca.rng import stream

CLASSES = ("normal", "serrated", "adenoma")


def opinion_of(
    truth: np.ndarray, *, classes: int = 3, sure: float = 4.0, rounds: int = 5
) -> np.ndarray:
    """(n, C): heads that have learned the truth fairly well: logits of the true class + `sure`."""
    rng = stream(0, "evidence")
    base = rng.normal(0, 1, (len(truth), classes))
    base[np.arange(len(truth)), truth] += sure
    total = np.zeros_like(base)
    for _ in range(rounds):
        probs = np.exp(base + rng.normal(0, 0.3, base.shape))
        total += probs / probs.sum(axis=1, keepdims=True)
    return total / rounds


def judge(truth: np.ndarray, **changes: float) -> SiteEvidence:
    """The judgement of such heads."""
    return judgement_of(opinion_of(truth, **changes))  # type: ignore[arg-type]


def judgement_of(probs: np.ndarray, share_explained: float = 0.5) -> SiteEvidence:
    return SiteEvidence.of(Judgement(probs, np.ones(len(probs)), 0.7, share_explained))


def flipped(n: int, share: float, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = stream(1, "flip")
    truth = rng.integers(0, classes, n)
    given = truth.copy()
    rows = rng.permutation(n)[: round(share * n)]
    given[rows] = (truth[rows] + rng.integers(1, classes, len(rows))) % classes
    return truth, given


def test_wrong_labels_come_first_with_the_right_suggestion() -> None:
    truth, given = flipped(600, 0.2)
    ranking = score.rank_labels(judge(truth), given)
    top = ranking.order[:60]
    assert np.mean(given[top] != truth[top]) > 0.95
    assert np.mean(ranking.suggestion[top] == truth[top]) > 0.95
    assert (np.diff(ranking.suspicion[ranking.order]) <= 1e-12).all()
    assert ranking.suspicion.min() >= 0 and ranking.suspicion.max() <= 1
    assert (ranking.suggestion != given).all()


def test_the_list_counts_and_explains() -> None:
    truth, given = flipped(600, 0.2)
    judgement = judge(truth)
    ranking = score.rank_labels(judgement, given)
    wrong = given != truth
    assert (measure_ranking(ranking.order, wrong).auroc or 0) > 0.97
    models = fit_models(judgement, given)
    errors = score.count_errors(models, 600)
    assert errors.can_tell
    assert errors.low <= wrong.sum() <= errors.high
    assert abs(errors.count - wrong.sum()) < 30
    total = 0.0
    for label in range(3):
        total += score.count_errors(models, 600, given == label).count
    assert total == pytest.approx(errors.count)
    row = int(ranking.order[0])
    reason = score.describe_label(ranking, row, int(given[row]), CLASSES)
    assert reason.startswith(f"labelled {CLASSES[given[row]]}; the evidence says")
    last = int(ranking.order[-1])
    assert "agrees" in score.describe_label(ranking, last, int(given[last]), CLASSES)
    for label, rows in score.select_clean_examples(given, ranking).items():
        assert len(rows) == 12
        assert (given[rows] == label).all()
        assert np.mean(truth[rows] == label) > 0.9


def test_heads_that_know_nothing_cannot_tell() -> None:
    _, given = flipped(300, 0.2)
    evidence = judgement_of(np.full((300, 3), 1 / 3), 0.0)
    assert not score.count_errors(fit_models(evidence, given), 300).can_tell
    ranking = score.rank_labels(evidence, given)
    assert sorted(ranking.order) == list(range(300)), "there is a list all the same"


def test_every_class_has_a_part_of_the_quota() -> None:
    truth, given = flipped(1000, 0.3)
    rare = np.flatnonzero(truth == 2)[40:]
    keep = np.setdiff1d(np.arange(1000), rare)
    truth, given = truth[keep], given[keep]
    ranking = score.rank_labels(judge(truth), given, quota=0.05)
    mask = ranking.priority
    assert 0.05 * len(given) <= mask.sum() <= 0.09 * len(given)
    for label in range(3):
        assert np.count_nonzero(mask & (given == label)) >= 3
    assert (ranking.probs.argmax(axis=1) != given)[mask].all()


def test_where_the_heads_agree_there_is_nothing_to_review() -> None:
    truth, _ = flipped(300, 0.0)
    assert not score.rank_labels(judge(truth, sure=12.0), truth).priority.any()


def test_ranking_quality_by_hand() -> None:
    wrong = np.array([1, 0, 1, 0, 0, 0, 0, 0, 0, 0], bool)
    quality = measure_ranking(np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), wrong)
    assert quality.precision_at == {"10%": 1.0, "errors": 0.5}
    assert quality.recall_at == {"10%": 0.5, "errors": 0.5}
    assert quality.auroc == pytest.approx(15 / 16)
    clean = measure_ranking(np.arange(10), np.zeros(10, bool))
    assert clean.auroc is None and clean.precision_at == {"10%": None, "errors": None}
    assert clean.recall_at == {"10%": None, "errors": None}


def test_neighbours_outvote_a_wrong_label() -> None:
    rng = stream(0, "knn")
    labels = np.arange(90) % 3
    features = np.eye(3)[labels] * 5 + rng.normal(0, 0.3, (90, 3))
    given = labels.copy()
    given[0] = 2
    opinion = neighbour_opinion(features, given, 3)
    assert opinion.labels[0] == 0 and opinion.confidence[0] == 1.0
    assert neighbour_opinion(features[:1], given[:1], 3).confidence.tolist() == [0.0]


def test_neighbours_are_the_most_similar_other_rows() -> None:
    features = stream(0, "cosine").normal(0, 1, (700, 5))  # more than one block
    unit = unit_vectors(features)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -np.inf)
    by_sorting = np.argsort(-cosine, axis=1)[:, :4]
    np.testing.assert_array_equal(np.sort(nearest_rows(unit, 4)), np.sort(by_sorting))
    assert order_by_similarity(unit, unit[3])[0] == 3
    assert nearest_rows(unit[:3], 10).shape == (3, 2)
    assert nearest_rows(unit[:1], 10).shape == (1, 0)


def test_a_second_opinion_needs_a_known_name_and_features() -> None:
    labels = np.zeros(3, int)
    with pytest.raises(ConfigError) as error:
        ask_second_opinion("neighbors", np.zeros((3, 2)), labels, 2)
    assert error.value.code == "audit.unknown-second-opinion" and "neighbours" in error.value.fix
    with pytest.raises(ConfigError) as error:
        ask_second_opinion("neighbours", None, labels, 2)
    assert error.value.code == "audit.no-features"


def test_a_regression_is_a_second_opinion() -> None:
    rng = stream(0, "cl")
    labels = np.arange(80) % 2
    features = np.eye(2)[labels] * 4 + rng.normal(0, 0.3, (80, 2))
    given = labels.copy()
    given[0] = 1
    probs = out_of_sample_probs(features, given, 3)  # a class that nobody has
    assert probs[0].argmax() == 0 and (probs[:, 2] == 0).all()
    assert ask_second_opinion("regression", features, given, 2).labels[0] == 0
