"""Ranking, suggestion, quota and estimate, on evidence whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from fedgsca.engine.label_evidence import Evidence, add, means
from fedgsca.label_audit import score
from fedgsca.label_audit.ranking_quality import against_truth
from fedgsca.label_audit.second_opinion import by_neighbours
from fedgsca.rng import stream

CLASSES = ("normal", "serrated", "adenoma")


def evidence(
    truth: np.ndarray, given: np.ndarray, *, classes: int = 3, sure: float = 4.0, rounds: int = 5
) -> Evidence:
    """A model that has learned the truth fairly well: logits of the true class raised by `sure`, with noise."""
    rng, sums = stream(0, "evidence"), dict[str, np.ndarray]()
    base = rng.normal(0, 1, (len(truth), classes))
    base[np.arange(len(truth)), truth] += sure
    for _ in range(rounds):
        probs = np.exp(base + rng.normal(0, 0.3, base.shape))
        probs /= probs.sum(axis=1, keepdims=True)
        sums = add(sums, probs, -np.log(probs[np.arange(len(truth)), given]), None)
    return means(sums)


def flipped(n: int, share: float, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = stream(1, "flip")
    truth = rng.integers(0, classes, n)
    given = truth.copy()
    rows = rng.permutation(n)[: round(share * n)]
    given[rows] = (truth[rows] + rng.integers(1, classes, len(rows))) % classes
    return truth, given


def test_wrong_labels_come_first_with_the_right_suggestion() -> None:
    truth, given = flipped(600, 0.2)
    found = score.rank(evidence(truth, given), given)
    top = found.order[:60]
    assert np.mean(given[top] != truth[top]) > 0.95
    assert np.mean(found.suggested[top] == truth[top]) > 0.95
    assert (np.diff(found.suspicion[found.order]) <= 1e-12).all()
    assert found.suspicion.min() >= 0 and found.suspicion.max() <= 1
    assert (found.suggested != given).all()


def test_a_hard_class_is_not_suspect_as_a_whole() -> None:
    truth, given = flipped(900, 0.1)
    seen = evidence(truth, given)
    harder = Evidence(seen.rounds, seen.losses + 2.0 * (given == 1), seen.probs, seen.votes)
    share = np.mean(given[score.rank(harder, given).order[:90]] == 1)
    assert share < 0.5


def test_every_class_has_a_part_of_the_quota() -> None:
    truth, given = flipped(1000, 0.3)
    rare = np.flatnonzero(truth == 2)[40:]
    keep = np.setdiff1d(np.arange(1000), rare)
    truth, given = truth[keep], given[keep]
    seen = evidence(truth, given)
    chosen = score.rank(seen, given, quota=0.05).priority
    assert 0.05 * len(given) <= chosen.sum() <= 0.09 * len(given)
    for label in range(3):
        assert np.count_nonzero(chosen & (given == label)) >= 3
    assert (seen.probs.argmax(axis=1) != given)[chosen].all()


def test_where_the_model_agrees_there_is_nothing_to_review() -> None:
    truth, _ = flipped(300, 0.0)
    assert not score.rank(evidence(truth, truth, sure=12.0), truth).priority.any()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.4])
def test_the_interval_holds_the_number_of_wrong_labels(share: float) -> None:
    truth, given = flipped(800, share)
    seen = evidence(truth, given)
    found = score.estimate(seen, given, score.rank(seen, given).suspicion)
    wrong = np.count_nonzero(truth != given)
    assert found.low <= wrong <= found.high
    assert found.high - found.low < 0.2 * 800
    assert score.estimate(seen, given, np.zeros(800), np.zeros(800, bool)).count == 0


def test_confident_joint_by_hand() -> None:
    probs = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9], [0.3, 0.7]])
    given = np.array([0, 0, 0, 1, 1])
    # thresholds 0.6 and 0.8: rows 0 and 1 count as 0, rows 2 and 3 as 1, row 4 as nothing; rows scaled to 3 and 2 labels
    np.testing.assert_allclose(score.confident_joint(probs, given), [[2, 1], [0, 2]])


def test_the_reason_is_in_words() -> None:
    seen = Evidence(
        12,
        np.zeros(2),
        np.array([[0.02, 0.05, 0.93], [0.2, 0.7, 0.1]]),
        np.array([[0, 1, 11], [1, 10, 1]]),
    )
    assert (
        score.reason(seen, 0, 1, 2, CLASSES)
        == "given serrated, the model says adenoma with 0.93 in 11 of 12 rounds"
    )
    assert (
        score.reason(seen, 1, 1, 0, CLASSES)
        == "given serrated, the model agrees with 0.70 in 10 of 12 rounds"
    )


def test_clean_examples_are_agreed_upon_in_every_round() -> None:
    truth, given = flipped(300, 0.3)
    for label, rows in score.clean_examples(evidence(truth, given), given).items():
        assert len(rows) == 12
        assert (given[rows] == label).all() and (truth[rows] == label).all()


def test_what_the_truth_says_by_hand() -> None:
    wrong = np.array([1, 0, 1, 0, 0, 0, 0, 0, 0, 0], bool)
    found = against_truth(np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), wrong)
    assert found["precision_at"] == {"10%": 1.0, "errors": 0.5}
    assert found["recall_at"] == {"10%": 0.5, "errors": 0.5}
    assert found["auroc"] == pytest.approx(15 / 16)
    assert found["effort"][0] == [0, 0] and found["effort"][-1] == [10, 2]
    clean = against_truth(np.arange(10), np.zeros(10, bool))
    assert clean["auroc"] is None and clean["precision_at"] == {"10%": None, "errors": None}


def test_neighbours_outvote_a_wrong_label() -> None:
    rng = stream(0, "knn")
    labels = np.arange(90) % 3
    features = np.eye(3)[labels] * 5 + rng.normal(0, 0.3, (90, 3))
    given = labels.copy()
    given[0] = 2
    said, sure = by_neighbours(features, given, 3)
    assert said[0] == 0 and sure[0] == 1.0
    assert by_neighbours(features[:1], given[:1], 3)[1].tolist() == [0.0]


def test_cleanlab_is_a_second_opinion() -> None:
    pytest.importorskip("cleanlab")
    from fedgsca.label_audit.cleanlab_scores import out_of_sample, quality

    rng = stream(0, "cl")
    labels = np.arange(80) % 2
    features = np.eye(2)[labels] * 4 + rng.normal(0, 0.3, (80, 2))
    given = labels.copy()
    given[0] = 1
    probs = out_of_sample(features, given, 3)  # a class that nobody has
    assert probs[0].argmax() == 0 and (probs[:, 2] == 0).all()
    assert quality(probs[:, :2], given).argmin() == 0
