"""find_label_issues: the audit's ranking for Python users, numpy in and numpy out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgsca.errors import ConfigError, DataError
from fedgsca.evidence import SiteEvidence, judge_labels
from fedgsca.labels.find_issues import find_label_issues
from fedgsca.labels.score import rank_labels
from fedgsca.rng import stream

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def noisy_labels(n: int = 600, share: float = 0.2, sure: float = 4.0) -> Arrays:
    """Labels (n,), probabilities (n, 3) of a good model, and which labels are wrong."""
    rng = stream(2, "issues")
    truth = rng.integers(0, 3, n)
    labels = truth.copy()
    rows = rng.permutation(n)[: round(share * n)]
    labels[rows] = (truth[rows] + rng.integers(1, 3, len(rows))) % 3
    logits = rng.normal(0, 1, (n, 3))
    logits[np.arange(n), truth] += sure
    probs = np.exp(logits)
    return labels, probs / probs.sum(axis=1, keepdims=True), labels != truth


@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
def test_wrong_labels_are_found_whatever_their_share(share: float) -> None:
    labels, probs, wrong = noisy_labels(share=share)
    issues = find_label_issues(labels, probs)
    assert wrong[issues].mean() > 0.9
    assert np.isin(np.flatnonzero(wrong), issues).mean() > 0.9


def test_issues_are_sorted_by_suspicion_and_agree_with_mask_and_scores() -> None:
    labels, probs, _ = noisy_labels()
    issues, scores = find_label_issues(labels, probs, return_scores=True)
    assert scores.shape == labels.shape and scores.min() >= 0 and scores.max() <= 1
    assert (np.diff(scores[issues]) <= 0).all() and (scores[issues] >= 0.5).all()
    mask = find_label_issues(labels, probs, return_mask=True)
    assert mask.dtype == bool and np.flatnonzero(mask).tolist() == sorted(issues.tolist())
    assert (probs.argmax(axis=1) != labels)[mask].all(), "the model contradicts every issue"


def test_a_quota_gives_the_review_list_of_the_audit() -> None:
    labels, probs, _ = noisy_labels(share=0.4)
    judgement = judge_labels(probs, labels, np.arange(len(labels)) % 2)
    ranking = rank_labels(SiteEvidence.of(judgement), labels, 0.05)
    issues, scores = find_label_issues(labels, probs, quota=0.05, return_scores=True)
    assert sorted(issues.tolist()) == np.flatnonzero(ranking.priority).tolist()
    np.testing.assert_allclose(scores, ranking.suspicion)
    assert len(find_label_issues(labels, probs, quota=0.0)) <= 9, "at most three per class"


def test_clean_labels_give_few_issues() -> None:
    labels, probs, _ = noisy_labels(share=0.0, sure=7.0)
    assert len(find_label_issues(labels, probs)) == 0


def test_lists_float16_and_one_label_are_accepted() -> None:
    issues = find_label_issues([0, 0] + [1, 0] * 19, [[0.1, 0.9], [0.9, 0.1]] * 20)
    assert issues.tolist() == [0]
    labels, probs, _ = noisy_labels()
    half = find_label_issues(labels.astype(np.uint8), probs.astype(np.float16))
    full = find_label_issues(labels, probs)
    assert len(np.setxor1d(half, full)) <= 2
    assert find_label_issues([0], [[1.0, 0.0]]).tolist() == []


def test_a_probability_of_zero_is_as_suspicious_as_can_be() -> None:
    labels, probs, _ = noisy_labels()
    probs[7] = 0.0
    probs[7, (labels[7] + 1) % 3] = 1.0
    issues, scores = find_label_issues(labels, probs, return_scores=True)
    assert 7 in issues and np.isfinite(scores).all()


GOOD_PROBS = [[0.9, 0.1], [0.2, 0.8]]


@pytest.mark.parametrize(
    ("labels", "probs", "code"),
    [
        ([0.0, 1.0], GOOD_PROBS, "audit.labels-not-integers"),
        (["a", "b"], GOOD_PROBS, "audit.labels-not-integers"),
        ([[0], [1]], GOOD_PROBS, "audit.labels-not-integers"),
        (np.zeros(0, int), np.zeros((0, 2)), "audit.no-labels"),
        ([0, 1, 1], GOOD_PROBS, "audit.probs-shape"),
        ([0, 1], [0.9, 0.1], "audit.probs-shape"),
        ([0, 0], [[1.0], [1.0]], "audit.probs-shape"),
        ([0, 1], [[0.9, np.nan], [0.2, 0.8]], "audit.probs-not-finite"),
        ([0, 1], [["0.9", "0.1"], ["0.2", "0.8"]], "audit.probs-not-finite"),
        ([0, 1], [[3.0, -1.0], [0.2, 0.8]], "audit.probs-not-normalised"),
        ([0, 1], [[1.5, -0.5], [0.2, 0.8]], "audit.probs-not-normalised"),
        ([0, 2], GOOD_PROBS, "audit.label-out-of-range"),
        ([-1, 1], GOOD_PROBS, "audit.label-out-of-range"),
    ],
)
def test_invalid_input_is_an_error_with_a_code(labels: Any, probs: Any, code: str) -> None:
    with pytest.raises(DataError) as error:
        find_label_issues(labels, probs)
    assert error.value.code == code and error.value.fix


@pytest.mark.parametrize("quota", [-0.1, 1.1, float("nan")])
def test_a_quota_is_a_share(quota: float) -> None:
    with pytest.raises(ConfigError) as error:
        find_label_issues([0, 1], GOOD_PROBS, quota=quota)
    assert error.value.code == "audit.invalid-quota"
