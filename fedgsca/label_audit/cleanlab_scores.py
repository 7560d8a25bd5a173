"""What a hospital finds in its own labels without a federation.

This is the only file that imports cleanlab.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgsca.errors import MissingExtraError

FOLDS = 5


def out_of_sample_probs(
    features: np.ndarray, given: np.ndarray, num_classes: int, *, folds: int = FOLDS
) -> np.ndarray:
    """(n, C) probabilities by logistic regressions, each trained on the other folds.

    `features` is (n, D), `given` (n,) class indices. A class that a regression has not seen gets 0.
    """
    _import_cleanlab()
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold, StratifiedKFold

    probs = np.zeros((len(given), num_classes))
    sizes = np.bincount(given, minlength=num_classes)
    splitter = StratifiedKFold if sizes[sizes > 0].min() >= folds else KFold
    for train, test in splitter(folds, shuffle=True, random_state=0).split(features, given):
        if len(np.unique(given[train])) < 2:
            probs[test, given[train[0]]] = 1.0
            continue
        model = LogisticRegression(max_iter=200).fit(features[train], given[train])
        probs[np.ix_(test, model.classes_)] = model.predict_proba(features[test])
    return probs


def label_quality(
    probs: np.ndarray, given: np.ndarray, method: str = "self_confidence"
) -> np.ndarray:
    """(n,) cleanlab's label quality scores, lower is worse."""
    cleanlab = _import_cleanlab()
    return np.asarray(cleanlab.rank.get_label_quality_scores(given, probs, method=method))


def _import_cleanlab() -> Any:
    try:
        import cleanlab.rank
    except ImportError:
        raise MissingExtraError(
            "extra.cleanlab-missing",
            "a second opinion by cleanlab needs a package that is not installed",
            fix="pip install 'fedgsca[cleanlab]', or use --second-opinion neighbours",
        ) from None
    return cleanlab
