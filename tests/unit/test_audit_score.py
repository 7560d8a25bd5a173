"""Ranking, suggestion, quota and estimate, on evidence whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedgsca.engine.label_evidence import Evidence, add_round, mean_evidence
from fedgsca.errors import ConfigError
from fedgsca.evidence import POWERS, Judgement, class_masses, normalise_mix
from fedgsca.label_audit import score
from fedgsca.label_audit.build_audit import measure_ranking
from fedgsca.label_audit.second_opinion import (
    ask_second_opinion,
    nearest_rows,
    neighbour_opinion,
    order_by_similarity,
    unit_vectors,
)
from fedgsca.rng import stream

CLASSES = ("normal", "serrated", "adenoma")


def evidence(
    truth: np.ndarray, given: np.ndarray, *, classes: int = 3, sure: float = 4.0, rounds: int = 5
) -> Evidence:
    """A model that has learned the truth fairly well: logits of the true class plus `sure`."""
    rng = stream(0, "evidence")
    sums: dict[str, np.ndarray] = {}
    base = rng.normal(0, 1, (len(truth), classes))
    base[np.arange(len(truth)), truth] += sure
    for _ in range(rounds):
        probs = np.exp(base + rng.normal(0, 0.3, base.shape))
        probs /= probs.sum(axis=1, keepdims=True)
        sums = add_round(sums, probs, -np.log(probs[np.arange(len(truth)), given]), None)
    return mean_evidence(sums)


def flipped(n: int, share: float, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = stream(1, "flip")
    truth = rng.integers(0, classes, n)
    given = truth.copy()
    rows = rng.permutation(n)[: round(share * n)]
    given[rows] = (truth[rows] + rng.integers(1, classes, len(rows))) % classes
    return truth, given


def test_wrong_labels_come_first_with_the_right_suggestion() -> None:
    truth, given = flipped(600, 0.2)
    ranking = score.rank_labels(evidence(truth, given), given)
    top = ranking.order[:60]
    assert np.mean(given[top] != truth[top]) > 0.95
    assert np.mean(ranking.suggestion[top] == truth[top]) > 0.95
    assert (np.diff(ranking.suspicion[ranking.order]) <= 1e-12).all()
    assert ranking.suspicion.min() >= 0 and ranking.suspicion.max() <= 1
    assert (ranking.suggestion != given).all()


def with_judgement(observations: Evidence, probs: np.ndarray) -> Evidence:
    """The same evidence in a run with heads, whose opinion is `probs`."""
    references = normalise_mix(class_masses(probs, np.ones(len(probs))))
    return replace(observations, judgement=Judgement(probs, references, POWERS[0]))


def test_the_heads_decide_where_a_run_has_them() -> None:
    """The model in training has memorised the given labels, the heads have not."""
    truth, given = flipped(600, 0.2)
    opinion = evidence(truth, given).probs.astype(np.float64)
    memorised_labels = evidence(given, given)
    blind = score.rank_labels(memorised_labels, given)
    observations = with_judgement(memorised_labels, opinion)
    ranking = score.rank_labels(observations, given)
    wrong = given != truth
    assert (measure_ranking(ranking.order, wrong).auroc or 0) > 0.97
    assert (measure_ranking(blind.order, wrong).auroc or 0) < 0.7
    top = ranking.order[:60]
    assert np.mean(ranking.suggestion[top] == truth[top]) > 0.95
    assert (np.diff(ranking.suspicion[ranking.order]) <= 1e-12).all()
    errors = score.count_errors(observations, given, ranking)
    assert errors.can_tell
    assert errors.low <= wrong.sum() <= errors.high
    assert abs(errors.count - wrong.sum()) < 30
    total = 0.0
    for label in range(3):
        total += score.count_errors(observations, given, ranking, given == label).count
    assert total == pytest.approx(errors.count)
    row = int(top[0])
    reason = score.describe_label(observations, ranking, row, int(given[row]), CLASSES)
    assert reason.startswith(f"labelled {CLASSES[given[row]]}; the evidence says")
    for label, rows in score.select_clean_examples(observations, given, ranking).items():
        assert (given[rows] == label).all()
        assert np.mean(truth[rows] == label) > 0.9


def test_heads_that_know_nothing_cannot_tell() -> None:
    _, given = flipped(300, 0.2)
    observations = with_judgement(evidence(given, given), np.full((300, 3), 1 / 3))
    ranking = score.rank_labels(observations, given)
    assert not score.count_errors(observations, given, ranking).can_tell
    assert sorted(ranking.order) == list(range(300)), "there is a list all the same"


def test_a_hard_class_is_not_suspect_as_a_whole() -> None:
    truth, given = flipped(900, 0.1)
    observations = evidence(truth, given)
    harder = Evidence(
        observations.rounds,
        observations.losses + 2.0 * (given == 1),
        observations.probs,
        observations.votes,
    )
    share = np.mean(given[score.rank_labels(harder, given).order[:90]] == 1)
    assert share < 0.5


def test_every_class_has_a_part_of_the_quota() -> None:
    truth, given = flipped(1000, 0.3)
    rare = np.flatnonzero(truth == 2)[40:]
    keep = np.setdiff1d(np.arange(1000), rare)
    truth, given = truth[keep], given[keep]
    observations = evidence(truth, given)
    mask = score.rank_labels(observations, given, quota=0.05).priority
    assert 0.05 * len(given) <= mask.sum() <= 0.09 * len(given)
    for label in range(3):
        assert np.count_nonzero(mask & (given == label)) >= 3
    assert (observations.probs.argmax(axis=1) != given)[mask].all()


def test_where_the_model_agrees_there_is_nothing_to_review() -> None:
    truth, _ = flipped(300, 0.0)
    assert not score.rank_labels(evidence(truth, truth, sure=12.0), truth).priority.any()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.4])
def test_the_interval_contains_the_number_of_wrong_labels(share: float) -> None:
    truth, given = flipped(800, share)
    observations = evidence(truth, given)
    errors = score.estimate_errors(
        observations, given, score.rank_labels(observations, given).suspicion
    )
    wrong = np.count_nonzero(truth != given)
    assert errors.low <= wrong <= errors.high
    assert errors.high - errors.low < 0.2 * 800
    assert score.estimate_errors(observations, given, np.zeros(800), np.zeros(800, bool)).count == 0


def test_confident_joint_by_hand() -> None:
    probs = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9], [0.3, 0.7]])
    given = np.array([0, 0, 0, 1, 1])
    # thresholds 0.6 and 0.8: rows 0 and 1 count as 0, rows 2 and 3 as 1, row 4 as nothing;
    # rows are scaled to 3 and 2 labels
    np.testing.assert_allclose(score.confident_joint(probs, given), [[2, 1], [0, 2]])


def test_the_reason_is_a_sentence() -> None:
    observations = Evidence(
        12,
        np.zeros(2),
        np.array([[0.02, 0.05, 0.93], [0.2, 0.7, 0.1]]),
        np.array([[0, 1, 11], [1, 10, 1]]),
    )
    assert (
        score.describe_reason(observations, 0, 1, 2, CLASSES)
        == "labelled serrated; the model says adenoma (93 %), almost every time it looked at the"
        " image"
    )
    assert (
        score.describe_reason(observations, 1, 1, 0, CLASSES)
        == "labelled serrated; the model agrees (70 %), almost every time it looked at the image"
    )


@pytest.mark.parametrize(
    ("votes", "words"),
    [
        (17, "every time it looked at the image"),
        (16, "almost every time it looked at the image"),
        (9, "most times it looked at the image"),
        (1, "only sometimes when it looked at the image"),
        (0, "never when it looked at the image"),
    ],
)
def test_a_pathologist_reads_how_often_the_model_said_so(votes: int, words: str) -> None:
    assert score.describe_frequency(votes, 17) == f", {words}"
    assert score.describe_frequency(votes, 1) == ""


def test_clean_examples_are_agreed_upon_in_every_round() -> None:
    truth, given = flipped(300, 0.3)
    observations = evidence(truth, given)
    ranking = score.rank_labels(observations, given)
    for label, rows in score.select_clean_examples(observations, given, ranking).items():
        assert len(rows) == 12
        assert (given[rows] == label).all() and (truth[rows] == label).all()


def test_ranking_quality_by_hand() -> None:
    wrong = np.array([1, 0, 1, 0, 0, 0, 0, 0, 0, 0], bool)
    quality = measure_ranking(np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), wrong)
    assert quality.precision_at == {"10%": 1.0, "errors": 0.5}
    assert quality.recall_at == {"10%": 0.5, "errors": 0.5}
    assert quality.auroc == pytest.approx(15 / 16)
    assert quality.effort[0] == (0, 0) and quality.effort[-1] == (10, 2)
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


def test_cleanlab_is_a_second_opinion() -> None:
    pytest.importorskip("cleanlab")
    from fedgsca.label_audit.second_opinion import label_quality, out_of_sample_probs

    rng = stream(0, "cl")
    labels = np.arange(80) % 2
    features = np.eye(2)[labels] * 4 + rng.normal(0, 0.3, (80, 2))
    given = labels.copy()
    given[0] = 1
    probs = out_of_sample_probs(features, given, 3)  # a class that nobody has
    assert probs[0].argmax() == 0 and (probs[:, 2] == 0).all()
    assert label_quality(probs[:, :2], given).argmin() == 0
