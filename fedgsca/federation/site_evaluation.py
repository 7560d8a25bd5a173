"""Scores of the global model, at the coordinator or, if it has no test images, at the sites.

A site sends one confusion matrix and one mean loss of its own test images, both declared here. The
matrices are added up, so that a large test set weighs more, and the scores are those of the sum. An
entry of a matrix is a number of images: a class with a single test image at a site reveals whether
the model recognises that image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedgsca.errors import UpdateError
from fedgsca.federation.base import Reply
from fedgsca.federation.final_statistics import FinalPredictions, label_predictions
from fedgsca.federation.local import SiteRunner
from fedgsca.federation.records import Matrix
from fedgsca.methods.site import Samples, load_weights
from fedgsca.methods.train import evaluate
from fedgsca.metrics import confusion, scores
from fedgsca.wire import Arrays, Extra, Payload, Update, check_extras

MAX_TEST_IMAGES = 10**9  # of a site; more is an error, or a lie
TEST_UPLOADS = {
    "confusion": Extra(
        ("C", "C"),
        "how many of the site's own test images of each class the global model takes for"
        " which class",
        low=0,
    ),
    "test_loss": Extra((), "mean loss of the global model on these images"),
}


@dataclass(frozen=True)
class ModelScores:
    """Scores in percent, the mean loss, and the confusion matrix (rows: true class)."""

    f1: float
    recall: float
    precision: float
    loss: float
    confusion: Matrix
    test_counts: Mapping[str, int] | None = None  # site -> test images, where the sites tested
    site_confusions: Mapping[str, Matrix] | None = None  # of the same sites


def scores_of(matrix: np.ndarray, loss: float) -> ModelScores:
    """Scores of a confusion matrix (C, C)."""
    rates = scores(matrix)
    return ModelScores(rates.f1, rates.recall, rates.precision, loss, _matrix_rows(matrix))


def _matrix_rows(matrix: np.ndarray) -> Matrix:
    return tuple(tuple(row) for row in matrix.tolist())


def score_model(runner: SiteRunner, weights: Arrays, samples: Samples) -> ModelScores:
    """Test a model on samples of this machine."""
    load_weights(runner.model, weights)
    evaluation = evaluate(runner.model, samples, runner.device)
    matrix = confusion(samples.labels, evaluation.predictions, samples.num_classes)
    return scores_of(matrix, float(np.mean(evaluation.losses)))


def predict_test_images(runner: SiteRunner, weights: Arrays) -> FinalPredictions | None:
    """The probabilities of the test images of this machine; None if there are none."""
    test = runner.experiment.test
    if test is None:
        return None
    load_weights(runner.model, weights)
    probs = evaluate(runner.model, test, runner.device).probs
    return label_predictions(runner.experiment, probs)


def count_at_site(runner: SiteRunner, name: str, payload: Payload) -> Update:
    """At a site: the counts on its own test images; all zero if it has none."""
    test, classes = runner.experiment.test, runner.experiment.table.num_classes
    if test is None:
        counts = np.zeros((classes, classes), np.int64)
        return Update(name, 0, {}, {"confusion": counts, "test_loss": np.array(0.0)})
    load_weights(runner.model, payload.weights)
    evaluation = evaluate(runner.model, test, runner.device)
    counts = confusion(test.labels, evaluation.predictions, classes)
    loss = np.array(float(np.mean(evaluation.losses)))
    return Update(name, len(test), {}, {"confusion": counts, "test_loss": loss})


def pool_scores(
    replies: Iterator[Reply], dims: Mapping[str, int], on_message: Callable[[str], None]
) -> ModelScores | None:
    """At the coordinator: scores of the sum of all usable matrices; None without test images."""
    total = np.zeros((dims["C"], dims["C"]), np.int64)
    loss_sum = 0.0
    test_counts: dict[str, int] = {}
    site_confusions: dict[str, Matrix] = {}
    for reply in replies:
        try:
            update = _check_counts(reply, dims)
        except UpdateError as error:
            on_message(f"{reply.site} did not test the model: {error.message}")
            continue
        matrix = np.asarray(update.extras["confusion"]).astype(np.int64)
        total += matrix
        site_confusions[reply.site] = _matrix_rows(matrix)
        loss_sum += float(update.extras["test_loss"]) * update.num_samples
        test_counts[reply.site] = update.num_samples
    if not total.any():
        return None
    pooled_scores = scores_of(total, loss_sum / max(1, sum(test_counts.values())))
    return replace(pooled_scores, test_counts=test_counts, site_confusions=site_confusions)


def _check_counts(reply: Reply, dims: Mapping[str, int]) -> Update:
    if reply.update is None:
        raise UpdateError("update.no-reply", reply.error or "no reply", fix="see the site's log")
    check_extras(f"test result of {reply.site}", reply.update.extras, TEST_UPLOADS, dims)
    counts = np.asarray(reply.update.extras["confusion"])
    if counts.sum() != reply.update.num_samples or counts.sum() > MAX_TEST_IMAGES:
        raise UpdateError(
            "update.test-counts",
            f"it reports {reply.update.num_samples} test images, but its counts add up to"
            f" {counts.sum()}",
            fix="install the same version of fedgsca there",
        )
    return reply.update
