"""Second opinions about a site's labels: its nearest neighbours, or a logistic regression.

They use the site's own features alone. They are shown beside the federation's suggestion and do not
change the ranking.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedgsca.errors import ConfigError
from fedgsca.support.text import did_you_mean

FOLDS = 5
BLOCK = 512  # rows compared at a time, so that memory does not grow with the square of n
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


def regression_opinion(features: np.ndarray, given: np.ndarray, num_classes: int) -> SecondOpinion:
    """The most probable class by a logistic regression trained on the other four fifths."""
    probs = out_of_sample_probs(features, given, num_classes)
    return SecondOpinion(probs.argmax(axis=1), probs.max(axis=1))


OPINIONS: dict[str, Callable[[np.ndarray, np.ndarray, int], SecondOpinion]] = {
    "neighbours": neighbour_opinion,
    "regression": regression_opinion,
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
            f"a second opinion by {name} needs the features of a frozen network",
            fix="omit --second-opinion, or pip install 'fedgsca[weights]' and make the run again",
        )
    return OPINIONS[name](features, given, num_classes)


# ---- a regression ----


def out_of_sample_probs(
    features: np.ndarray, given: np.ndarray, num_classes: int, *, folds: int = FOLDS
) -> np.ndarray:
    """(n, C) probabilities by logistic regressions, each trained on the other folds.

    `features` is (n, D), `given` (n,) class indices. A class that a regression has not seen gets 0.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold, StratifiedKFold

    probs = np.zeros((len(given), num_classes))
    sizes = np.bincount(given, minlength=num_classes)
    splitter = StratifiedKFold if sizes[sizes > 0].min() >= folds else KFold
    for train, test in splitter(folds, shuffle=True, random_state=0).split(features, given):
        if len(np.unique(given[train])) < 2:
            probs[test, given[train[0]]] = 1.0
            continue
        with warnings.catch_warnings():  # advice for programmers, such as more iterations
            warnings.simplefilter("ignore")
            model = LogisticRegression(max_iter=200).fit(features[train], given[train])
        probs[np.ix_(test, model.classes_)] = model.predict_proba(features[test])
    return probs


# ---- similar samples ----


def unit_vectors(features: np.ndarray) -> np.ndarray:
    """(n, D): every row divided by its length; a zero row stays zero."""
    return np.asarray(features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12))


def nearest_rows(unit: np.ndarray, k: int) -> np.ndarray:
    """(n, min(k, n - 1)) the most similar other rows of each row of `unit`, (n, D), in no order."""
    n = len(unit)
    k = min(k, n - 1)
    nearest = np.zeros((n, max(k, 0)), np.int64)
    if k < 1:
        return nearest
    for start in range(0, n, BLOCK):
        cosine = unit[start : start + BLOCK] @ unit.T  # (block, n)
        rows = np.arange(start, start + len(cosine))
        cosine[np.arange(len(cosine)), rows] = -np.inf  # a sample is not its own neighbour
        nearest[rows] = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
    return nearest


def order_by_similarity(unit: np.ndarray, query: np.ndarray) -> np.ndarray:
    """(n,) rows of `unit`, (n, D), the most similar to `query`, (D,), first; stable."""
    return np.argsort(-(unit @ query), kind="stable")
