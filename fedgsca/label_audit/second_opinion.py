"""Second opinions about a site's labels, from its own features alone: its nearest neighbours, or cleanlab (extra).

They stand beside the federation's suggestion and do not change the ranking.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedgsca.errors import ConfigError

Opinion = tuple[np.ndarray, np.ndarray]  # (n,) class index, (n,) how sure, 0 to 1
NEIGHBOURS, BLOCK = 10, 512


def by_neighbours(features: np.ndarray, given: np.ndarray, num_classes: int) -> Opinion:
    """The most frequent label among the ten most similar other samples (cosine), and its share. Ties: the smaller index."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    k = min(NEIGHBOURS, len(given) - 1)
    votes = np.zeros((len(given), num_classes))
    for start in range(
        0, len(given), BLOCK
    ):  # (block, n) at a time: memory does not grow with the square of n
        close = unit[start : start + BLOCK] @ unit.T
        rows = np.arange(start, start + len(close))
        close[np.arange(len(close)), rows] = -np.inf
        nearest = (
            np.argpartition(-close, k - 1, axis=1)[:, :k]
            if k
            else np.zeros((len(close), 0), np.int64)
        )
        np.add.at(votes, (rows[:, None], given[nearest]), 1.0)
    return votes.argmax(axis=1), votes.max(axis=1) / max(k, 1)


def by_cleanlab(features: np.ndarray, given: np.ndarray, num_classes: int) -> Opinion:
    """The class that a logistic regression, trained on the other four fifths, finds most probable."""
    from fedgsca.label_audit.cleanlab_scores import out_of_sample

    probs = out_of_sample(features, given, num_classes)
    return probs.argmax(axis=1), probs.max(axis=1)


OPINIONS: dict[str, Callable[[np.ndarray, np.ndarray, int], Opinion]] = {
    "neighbours": by_neighbours,
    "cleanlab": by_cleanlab,
}


def second_opinion(
    who: str, features: np.ndarray | None, given: np.ndarray, num_classes: int
) -> Opinion:
    if features is None:
        raise ConfigError(
            "todo.second-opinion-1",
            f"a second opinion by {who} needs features, and this folder holds no model to compute them with",
            fix="leave --second-opinion out, or give the folder of the finished run",
        )
    return OPINIONS[who](features, given, num_classes)
