"""Scores of the global model where the coordinator has no test images: each site counts on its own held-out images.

What a site sends is one confusion matrix and one mean loss, both declared here. The matrices are added up, so a large test set
weighs more, and the scores are those of the sum. A cell of a matrix is a number of images: a class with a single test image at a site
tells whether the model recognises that image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedgsca.engine.local import Reply, SiteRunner
from fedgsca.errors import UpdateError
from fedgsca.metrics import confusion, scores
from fedgsca.site import load_weights
from fedgsca.train import evaluate
from fedgsca.wire import Extra, Payload, Update, check_extras

DECLARED = {
    "confusion": Extra(
        ("C", "C"),
        "how many of the site's own test images of each class the global model takes for which class",
    ),
    "test_loss": Extra((), "mean loss of the global model on these images"),
}


@runtime_checkable
class SiteEvaluator(Protocol):
    """An engine that can have the model tested at the sites."""

    def judge(self, payload: Payload) -> Iterator[Reply]: ...


def judge(runner: SiteRunner, name: str, payload: Payload) -> Update:
    """At a site: the counts on its own test images; all zero where it has none."""
    test, classes = runner.experiment.test, runner.experiment.table.num_classes
    if test is None:
        return Update(
            name,
            0,
            {},
            {"confusion": np.zeros((classes, classes), np.int64), "test_loss": np.array(0.0)},
        )
    load_weights(runner.model, payload.weights)
    seen = evaluate(runner.model, test, runner.device)
    matrix = confusion(test.labels, seen.predicted, classes)
    return Update(
        name,
        len(test),
        {},
        {"confusion": matrix, "test_loss": np.array(float(np.mean(seen.losses)))},
    )


def pooled(
    replies: Iterator[Reply], dims: Mapping[str, int], said: Callable[[str], None]
) -> dict[str, Any]:
    """At the coordinator: scores of the sum of all usable matrices, or nothing if there is no test image anywhere."""
    total, loss, tested = np.zeros((dims["C"], dims["C"]), np.int64), 0.0, dict[str, int]()
    for reply in replies:
        try:
            if reply.update is None:
                raise UpdateError(
                    "todo.site-evaluation-1", reply.error or "no reply", fix="see the site's log"
                )
            check_extras(f"test result of {reply.site}", reply.update.extras, DECLARED, dims)
        except UpdateError as error:
            said(f"{reply.site} did not test the model: {error.message}")
            continue
        total += np.asarray(reply.update.extras["confusion"]).astype(np.int64)
        loss += float(reply.update.extras["test_loss"]) * reply.update.num_samples
        tested[reply.site] = reply.update.num_samples
    if not total.any():
        return {}
    found = scores(total)
    return {
        "f1": found.f1, "recall": found.recall, "precision": found.precision, "loss": loss / max(1, sum(tested.values())),
        "confusion": total.tolist(), "tested": tested,
    }  # fmt: skip
