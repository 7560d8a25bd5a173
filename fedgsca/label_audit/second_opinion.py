"""Second opinions about a site's labels: its nearest neighbours, or cleanlab.

They use the site's own features alone. They are shown beside the federation's suggestion and do
not change the ranking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.label_audit.similarity import nearest_rows, unit_vectors
from fedgsca.support.text import did_you_mean

NEIGHBOURS = 10


@dataclass(frozen=True)
class SecondOpinion:
    """A class for every label of a site, and how certain it is."""

    # (n,) class indices
    labels: np.ndarray
    # (n,) 0 to 1
    confidence: np.ndarray


def neighbour_opinion(features: np.ndarray, given: np.ndarray, num_classes: int) -> SecondOpinion:
    """The most frequent label among the ten most similar other samples (cosine), and its share.

    `features` is (n, D), `given` (n,) class indices. Ties go to the smaller class index.
    """
    nearest = nearest_rows(unit_vectors(features), NEIGHBOURS)
    votes = np.zeros((len(given), num_classes))
    np.add.at(votes, (np.arange(len(given))[:, None], given[nearest]), 1.0)
    return SecondOpinion(votes.argmax(axis=1), votes.max(axis=1) / max(nearest.shape[1], 1))


def cleanlab_opinion(features: np.ndarray, given: np.ndarray, num_classes: int) -> SecondOpinion:
    """The most probable class by a logistic regression trained on the other four fifths."""
    from fedgsca.label_audit.cleanlab_scores import out_of_sample_probs

    probs = out_of_sample_probs(features, given, num_classes)
    return SecondOpinion(probs.argmax(axis=1), probs.max(axis=1))


OPINIONS: dict[str, Callable[[np.ndarray, np.ndarray, int], SecondOpinion]] = {
    "neighbours": neighbour_opinion,
    "cleanlab": cleanlab_opinion,
}


def ask_second_opinion(
    name: str, features: np.ndarray | None, given: np.ndarray, num_classes: int
) -> SecondOpinion:
    """The opinion of one of OPINIONS about the labels `given`, (n,), with `features`, (n, D)."""
    if name not in OPINIONS:
        raise ConfigError(
            "audit.unknown-second-opinion",
            f"there is no second opinion named {name!r}",
            fix=f"{did_you_mean(name, OPINIONS)}use one of: {', '.join(OPINIONS)}",
        )
    if features is None:
        raise ConfigError(
            "audit.no-features",
            f"a second opinion by {name} needs features, and this folder contains no model to"
            " compute them with",
            fix="omit --second-opinion, or give the folder of the finished run",
        )
    return OPINIONS[name](features, given, num_classes)
