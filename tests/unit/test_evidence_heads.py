"""The mathematics of evidence, on labels whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fedgsca import evidence
from fedgsca.evidence import (
    RIDGE,
    Heads,
    Judgement,
    KernelRegression,
    SiteEvidence,
    assign_folds,
    balance_classes,
    draw_holdout,
    estimate_transition,
    gaussian_kernel,
    head_targets,
    judge,
    judge_alone,
    judge_labels,
    label_losses,
    layer_normalise,
    normalise_mix,
    sharpen,
    suspicion,
    symmetric_matrix,
    train_heads,
)
from fedgsca.methods.parts.holdout import expected_counts, expected_f1, pool_small_classes
from fedgsca.metrics import auroc
from fedgsca.rng import stream


@dataclass(frozen=True)
class Labels:
    """A site whose truth is known: an honest opinion about the true classes, and given labels."""

    truth: np.ndarray
    given: np.ndarray
    opinion: np.ndarray
    mix: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        return np.asarray(self.truth != self.given)


def site_of(
    matrix: np.ndarray, mix: list[float], n: int = 4000, sure: float = 3.0, seed: int = 0
) -> Labels:
    """Samples from the mix, labels by the matrix, and the exact posterior of a noisy observation.

    The observation is a Gaussian vector around sure * onehot(truth), so that the opinion is
    calibrated under the mix by Bayes' rule.
    """
    rng = stream(seed, "evidence-site")
    num_classes = len(mix)
    truth = rng.choice(num_classes, size=n, p=mix)
    given = np.array([rng.choice(num_classes, p=matrix[label]) for label in truth])
    observations = rng.normal(size=(n, num_classes)) + sure * np.eye(num_classes)[truth]
    logits = sure * observations + np.log(mix)
    return Labels(truth, given, evidence.softmax(logits), np.array(mix))


PAIR_FLIP = np.array([[0.7, 0.3, 0.0], [0.0, 0.7, 0.3], [0.3, 0.0, 0.7]])
MIX = [0.6, 0.3, 0.1]


# ---- folds and heads ----


def test_a_fold_depends_on_seed_site_and_content_only() -> None:
    contents = [f"image {i}".encode() for i in range(400)]
    folds = assign_folds(0, "berlin", contents)
    assert set(folds) == {0, 1, 2, 3}
    assert np.bincount(folds).min() > 70
    order = stream(0, "order").permutation(400)
    np.testing.assert_array_equal(
        assign_folds(0, "berlin", [contents[i] for i in order]), folds[order]
    )
    np.testing.assert_array_equal(assign_folds(0, "berlin", contents[:9]), folds[:9])
    assert (assign_folds(0, "lyon", contents) != folds).any()
    assert (assign_folds(1, "berlin", contents) != folds).any()
    assert len(set(assign_folds(0, "berlin", [b"the same picture"] * 5))) == 1


def test_held_out_samples_depend_on_seed_site_and_content_and_not_on_the_fold() -> None:
    contents = [f"image {i}".encode() for i in range(2000)]
    mask = draw_holdout(0, "berlin", contents, 0.2)
    assert 330 < mask.sum() < 470
    np.testing.assert_array_equal(draw_holdout(0, "berlin", contents[5:9], 0.2), mask[5:9])
    assert (draw_holdout(1, "berlin", contents, 0.2) != mask).any()
    # a larger share only adds samples
    assert draw_holdout(0, "berlin", contents, 0.4)[mask].all()
    assert not draw_holdout(0, "berlin", contents, 0.0).any()
    folds = assign_folds(0, "berlin", contents)
    assert np.bincount(folds[mask]).min() > 0.2 * mask.sum()


def features_of(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    rng = stream(seed, "evidence-features")
    centres = rng.normal(size=(labels.max() + 1, 32))
    return layer_normalise(centres[labels] + rng.normal(size=(len(labels), 32)))


def epoch(heads: Heads, features: np.ndarray, given: np.ndarray, folds: np.ndarray) -> Heads:
    targets, weights = head_targets(np.eye(3)[given])
    return train_heads(heads, features, targets, weights, folds, np.arange(len(given)))


def test_a_head_never_sees_its_own_fold() -> None:
    """Labels of fold 0 change: head 0, which judges them, stays the same to the last bit."""
    labels = np.arange(90) % 3
    features = features_of(labels)
    folds = np.arange(90) // 3 % 2
    other_labels = labels.copy()
    other_labels[folds == 0] = stream(0, "shuffle").permutation(labels[folds == 0])
    start = Heads.zeros(32, 3)
    heads = epoch(start, features, labels, folds)
    other_heads = epoch(start, features, other_labels, folds)
    np.testing.assert_array_equal(heads.weight[0], other_heads.weight[0])
    np.testing.assert_array_equal(heads.bias[0], other_heads.bias[0])
    assert not np.array_equal(heads.weight[1], other_heads.weight[1])
    opinions = judge(heads, features, folds)
    other_opinions = judge(other_heads, features, folds)
    np.testing.assert_array_equal(opinions[folds == 0], other_opinions[folds == 0])


def test_one_step_of_a_head_by_hand() -> None:
    """Two samples of two classes; head 1 sees fold 0, head 0 sees fold 1."""
    features = np.array([[1.0, -1.0], [-1.0, 1.0]])
    targets = np.eye(2)
    folds = np.array([0, 1])
    heads = Heads.zeros(2, 2, num_heads=2)
    heads = train_heads(heads, features, targets, np.ones(2), folds, np.arange(2), step=2.0)
    # lr = 2.0 / D = 1; gap = (1/2 - target) * K / (K - 1) = (-1/2, 1/2) * 2, over a batch of 2
    np.testing.assert_allclose(heads.weight[1], [[0.5, -0.5], [-0.5, 0.5]])
    np.testing.assert_allclose(heads.bias[1], [0.5, -0.5])
    np.testing.assert_allclose(heads.weight[0], [[0.5, -0.5], [-0.5, 0.5]])
    np.testing.assert_allclose(heads.bias[0], [-0.5, 0.5])


def test_heads_learn_and_each_sample_is_judged_by_the_head_of_its_fold() -> None:
    labels = np.arange(300) % 3
    features = features_of(labels)
    folds = stream(0, "folds").integers(0, 2, 300)
    heads = Heads.zeros(32, 3)
    for _ in range(10):
        heads = epoch(heads, features, labels, folds)
    probs = judge(heads, features, folds)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    assert np.mean(probs.argmax(axis=1) == labels) > 0.9
    np.testing.assert_array_equal(
        probs[folds == 1], judge(heads, features, folds * 0 + 1)[folds == 1]
    )


def test_targets_give_rare_classes_more_weight_within_a_limit() -> None:
    given = np.array([0] * 900 + [1] * 99 + [2])
    targets, weights = head_targets(np.eye(3)[given])
    np.testing.assert_array_equal(targets, np.eye(3)[given])
    assert weights[0] < 1 < weights[950] < weights[999] <= evidence.MAX_WEIGHT
    np.testing.assert_allclose(weights[950] / weights[0], np.sqrt(901 / 100))
    np.testing.assert_allclose(balance_classes(np.array([3, 0]), 1.0), [5 / 4, 5])


def test_layer_normalisation() -> None:
    features = layer_normalise(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]))
    np.testing.assert_allclose(features[0], [-1.2247, 0, 1.2247], atol=1e-3)
    np.testing.assert_array_equal(features[1], 0)


# ---- T and the class mix ----


def test_sharpening() -> None:
    np.testing.assert_allclose(sharpen(np.array([[0.8, 0.2]]), 2.0), [[16 / 17, 1 / 17]])
    np.testing.assert_allclose(sharpen(np.array([[0.8, 0.2]]), 1.0), [[0.8, 0.2]])
    np.testing.assert_allclose(sharpen(np.array([[1.0, 0.0]]), 6.0), [[1.0, 0.0]], atol=1e-9)


def test_the_symmetric_matrix_by_hand() -> None:
    np.testing.assert_allclose(
        symmetric_matrix(0.4, 3), [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]]
    )


@pytest.mark.parametrize("matrix", [PAIR_FLIP, symmetric_matrix(0.4, 3), symmetric_matrix(0.05, 3)])
def test_em_recovers_the_matrix_and_the_wrong_share(matrix: np.ndarray) -> None:
    site = site_of(matrix, MIX)
    fit = estimate_transition(site.opinion, site.given, site.mix)
    np.testing.assert_allclose(fit.matrix, matrix, atol=0.07)
    np.testing.assert_allclose(fit.mix, MIX, atol=0.03)
    assert abs(fit.wrong_share - site.wrong.mean()) < 0.03
    assert (auroc(suspicion(fit.posterior, site.given), site.wrong) or 0) > 0.95
    np.testing.assert_allclose(fit.posterior.sum(axis=1), 1)


def test_em_recovers_a_class_mix_unlike_that_of_the_opinion() -> None:
    """The opinion was formed under equal shares; the site has other ones."""
    site = site_of(symmetric_matrix(0.2, 3), MIX)
    equal = np.full(3, 1 / 3)
    opinion = site.opinion * (equal / site.mix)
    opinion /= opinion.sum(axis=1, keepdims=True)
    fit = estimate_transition(opinion, site.given, equal)
    np.testing.assert_allclose(fit.mix, MIX, atol=0.03)
    assert abs(fit.wrong_share - site.wrong.mean()) < 0.03


def test_the_order_of_samples_and_the_names_of_classes_do_not_matter() -> None:
    site = site_of(PAIR_FLIP, MIX, n=300)
    fit = estimate_transition(site.opinion, site.given, site.mix)
    order = stream(0, "order").permutation(300)
    other = estimate_transition(site.opinion[order], site.given[order], site.mix)
    np.testing.assert_allclose(other.posterior, fit.posterior[order], atol=1e-9)
    names = np.array([2, 0, 1])  # new class of column c is column names[c] of the old ones
    new_name = np.argsort(names)
    renamed = estimate_transition(site.opinion[:, names], new_name[site.given], site.mix[names])
    np.testing.assert_allclose(renamed.posterior, fit.posterior[:, names], atol=1e-9)
    np.testing.assert_allclose(renamed.matrix, fit.matrix[np.ix_(names, names)], atol=1e-9)


def test_a_class_that_nobody_has_gets_a_tiny_share() -> None:
    mix = normalise_mix(np.array([3.0, 1.0, 0.0]))
    np.testing.assert_allclose(mix, [0.75, 0.25, 0], atol=1e-5)
    assert mix[2] > 0


@pytest.mark.parametrize("given", [[1, 1, 1, 1, 1, 1], [0], [0, 2]])
def test_one_class_and_very_small_sites(given: list[int]) -> None:
    labels = np.array(given)
    opinion = np.tile([0.2, 0.7, 0.1], (len(labels), 1))
    judgement = judge_labels(opinion, labels, np.arange(len(labels)) % 2)
    posterior = SiteEvidence.of(judgement).posterior(labels)
    assert np.isfinite(posterior).all()
    assert np.isfinite(judgement.transition(labels).log_likelihood)


# ---- judges ----


def test_the_likelihood_finds_the_power_that_makes_opinions_honest() -> None:
    site = site_of(symmetric_matrix(0.3, 3), MIX)
    cautious = sharpen(site.opinion, 1 / 3)
    assert judge_labels(cautious, site.given, np.arange(4000) % 2).power == 3.0


@pytest.mark.parametrize("matrix", [symmetric_matrix(0.4, 3), PAIR_FLIP])
def test_useless_opinions_explain_nothing_and_good_ones_something(matrix: np.ndarray) -> None:
    site = site_of(matrix, MIX, n=200)
    halves = np.arange(200) % 2
    assert judge_labels(site.opinion, site.given, halves).share_explained > 0.05
    order = stream(0, "order").permutation(200)
    assert judge_labels(site.opinion[order], site.given, halves).share_explained < 0.01
    # one part only: nothing can be said
    assert judge_labels(site.opinion, site.given, halves * 0).share_explained == 0.0


def test_leaving_a_group_out_is_fitting_without_it() -> None:
    rng = stream(0, "ridge")
    features, targets = rng.normal(size=(24, 40)), rng.normal(size=(24, 3))
    weights = rng.uniform(0.2, 3.0, 24)
    groups = np.arange(24) // 2
    predictions = KernelRegression(features, groups).leave_one_out(targets, weights)
    mean = weights @ targets / weights.sum()
    rest = groups != 5
    features /= np.sqrt((features**2).sum(axis=1).mean())
    kernel = gaussian_kernel(features[rest], features[rest])
    coefficients = np.linalg.solve(kernel + np.diag(RIDGE / weights[rest]), targets[rest] - mean)
    expected = mean + gaussian_kernel(features[~rest], features[rest]) @ coefficients
    np.testing.assert_allclose(predictions[~rest], expected)


def test_many_samples_are_spanned_by_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(120) % 3
    features, groups = features_of(labels), np.arange(120) // 2
    targets, weights = head_targets(np.eye(3)[labels])
    exact = KernelRegression(features, groups).leave_one_out(targets, weights)
    monkeypatch.setattr(evidence, "LANDMARKS", 119)
    close = KernelRegression(features, groups).leave_one_out(targets, weights)
    np.testing.assert_allclose(close, exact, atol=0.02)
    monkeypatch.setattr(evidence, "LANDMARKS", 60)
    rough = KernelRegression(features, groups).leave_one_out(targets, weights)
    assert np.mean(rough.argmax(axis=1) == exact.argmax(axis=1)) > 0.9


def test_alone_a_label_does_not_change_the_opinion_about_its_own_patient() -> None:
    labels = np.arange(90) % 3
    features = features_of(labels)
    groups = np.arange(90) // 2
    other_labels = labels.copy()
    other_labels[:2] = labels[[1, 0]]  # of one patient; the class sizes stay
    targets = [head_targets(np.eye(3)[given]) for given in (labels, other_labels)]
    kernel = KernelRegression(features, groups)
    opinions = [kernel.leave_one_out(*pair) for pair in targets]
    np.testing.assert_allclose(opinions[0][:2], opinions[1][:2], atol=1e-12)
    assert np.abs(opinions[0][2:] - opinions[1][2:]).max() > 1e-6


def test_alone_wrong_labels_are_suspicious() -> None:
    rng = stream(1, "alone")
    truth = np.arange(300) % 3
    given = np.where(rng.random(300) < 0.2, (truth + 1) % 3, truth)
    judgement = judge_alone(features_of(truth), given, np.arange(300), num_classes=3)
    doubt = suspicion(SiteEvidence.of(judgement).posterior(given), given)
    assert (auroc(doubt, given != truth) or 0) > 0.97
    assert abs(doubt.mean() - np.mean(given != truth)) < 0.05


def test_two_judges_are_averaged_and_the_more_sites_the_less_the_own_one_counts() -> None:
    sure = Judgement(np.array([[0.9, 0.1]] * 8), np.ones(8), 1.0, 0.2)
    unsure = Judgement(np.array([[0.4, 0.6]] * 8), np.ones(8), 1.0, 0.1)
    given = np.array([0, 1] * 4)
    evidence = SiteEvidence.of_federation(sure, unsure, num_sites=4)
    assert evidence.shares == pytest.approx({"site": 1 / 3, "federation": 2 / 3})
    assert evidence.share_explained == 0.2
    one, two = unsure.transition(given).posterior, sure.transition(given).posterior
    product = one ** (1 / 3) * two ** (2 / 3)
    np.testing.assert_allclose(
        evidence.posterior(given), product / product.sum(axis=1, keepdims=True)
    )
    assert SiteEvidence.of_federation(sure, unsure, num_sites=100).shares["site"] < 0.1


# ---- selection ----


def test_losses_and_suspicion_by_hand() -> None:
    posterior = np.array([[0.9, 0.1], [0.3, 0.7], [0.0, 1.0]])
    given = np.array([0, 0, 1])
    np.testing.assert_allclose(
        label_losses(posterior, given)[[0, 2]], [-np.log(0.9), 0.0], atol=1e-12
    )
    np.testing.assert_allclose(suspicion(posterior, given), [0.1, 0.7, 0])


# ---- a score without true labels ----


def test_expected_f1_equals_f1_where_the_posterior_is_certain() -> None:
    truth = np.array([0, 0, 1, 1, 1])
    predictions = np.array([0, 1, 1, 1, 0])
    score = expected_f1(expected_counts(np.eye(3)[truth], predictions))
    # class 0: 2 * 1 / (2 + 2), class 1: 2 * 2 / (3 + 3); class 2 does not occur
    assert score == pytest.approx((0.5 + 2 / 3) / 2)
    assert expected_f1(np.zeros((3, 3))) == 0.0


def test_small_classes_are_pooled_and_keep_their_weight_in_the_score() -> None:
    counts = np.array([[40.0, 2.0, 1.0], [50.0, 4.0, 3.0], [48.0, 2.0, 4.0]])
    large_classes, pooled_counts = pool_small_classes(counts, 5.0)
    assert np.isnan(large_classes[:, 1:]).all()
    np.testing.assert_array_equal(large_classes[:, 0], counts[:, 0])
    np.testing.assert_array_equal(pooled_counts, [3.0, 7.0, 6.0])
    score = expected_f1(np.nan_to_num(large_classes), pooled_counts)
    assert score == pytest.approx((80 / 98 + 2 * (6 / 13)) / 3)
    # too small even together: nothing leaves
    _, pooled_counts = pool_small_classes(counts, 10.0)
    assert np.isnan(pooled_counts).all()
