"""The only file that imports cleanlab (extra): what a hospital finds in its own labels without a federation."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgsca.errors import MissingExtraError

FOLDS = 5


def out_of_sample(
    features: np.ndarray, given: np.ndarray, num_classes: int, *, folds: int = FOLDS
) -> np.ndarray:
    """(n, C) probabilities of each sample by a logistic regression that was not trained on it; classes it never saw get 0."""
    _cleanlab()
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold, StratifiedKFold

    probs = np.zeros((len(given), num_classes))
    common = np.bincount(given, minlength=num_classes)
    kind = StratifiedKFold if common[common > 0].min() >= folds else KFold
    for train, test in kind(folds, shuffle=True, random_state=0).split(features, given):
        if len(np.unique(given[train])) < 2:
            probs[test, given[train[0]]] = 1.0
            continue
        fitted = LogisticRegression(max_iter=200).fit(features[train], given[train])
        probs[np.ix_(test, fitted.classes_)] = fitted.predict_proba(features[test])
    return probs


def quality(probs: np.ndarray, given: np.ndarray, method: str = "self_confidence") -> np.ndarray:
    """(n,) cleanlab's label quality, lower is worse."""
    return np.asarray(_cleanlab().rank.get_label_quality_scores(given, probs, method=method))


def _cleanlab() -> Any:
    try:
        import cleanlab.rank
    except ImportError:
        raise MissingExtraError(
            "todo.cleanlab-scores-1",
            "a second opinion by cleanlab needs a package that is not installed",
            fix="pip install -c constraints.txt 'fedgsca[cleanlab]', or use --second-opinion neighbours",
        ) from None
    return cleanlab
