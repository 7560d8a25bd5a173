"""Metrics against scikit-learn and against hand numbers."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsca.metrics import (
    auroc,
    confusion,
    detection,
    headline,
    per_class,
    quadratic_kappa,
    scores,
    stability,
)
from fedgsca.rng import stream


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), classes=st.integers(2, 10), n=st.integers(1, 60))
def test_scores_are_scikit_learns(seed: int, classes: int, n: int) -> None:
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    rng = stream(seed, "metrics")
    true, predicted = (
        rng.integers(0, classes, n),
        rng.integers(0, max(classes - 1, 1), n),
    )  # some classes absent, some unpredicted
    matrix = confusion(true, predicted, classes)
    names = list(range(classes))
    np.testing.assert_array_equal(matrix, confusion_matrix(true, predicted, labels=names))
    p, r, f, support = precision_recall_fscore_support(
        true, predicted, labels=names, average=None, zero_division=0
    )
    own_fit = scores(matrix)
    np.testing.assert_allclose(
        [own_fit.f1, own_fit.recall, own_fit.precision],
        [100 * f.mean(), 100 * r.mean(), 100 * p.mean()],
    )
    for row, expected in zip(per_class(matrix), zip(f, r, p, support, strict=True), strict=True):
        np.testing.assert_allclose(
            [row["f1"], row["recall"], row["precision"]], 100 * np.array(expected[:3])
        )
        assert row["support"] == expected[3]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 80), levels=st.integers(1, 20))
def test_auroc_is_scikit_learns_also_with_ties(seed: int, n: int, levels: int) -> None:
    from sklearn.metrics import roc_auc_score

    rng = stream(seed, "auroc")
    score, positive = rng.integers(0, levels, n) / 7, rng.random(n) < 0.4
    if positive.all() or not positive.any():
        assert auroc(score, positive) is None
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert auroc(score, positive) == pytest.approx(roc_auc_score(positive, score), abs=1e-12)


def test_auroc_hand_numbers() -> None:
    positive = np.array([False, False, True, True])
    assert auroc(np.array([0.1, 0.2, 0.3, 0.4]), positive) == 1.0
    assert auroc(np.array([0.4, 0.3, 0.2, 0.1]), positive) == 0.0
    assert auroc(np.ones(4), positive) == 0.5


def test_detection() -> None:
    flagged, wrong = (
        np.array([True, True, True, False, False]),
        np.array([True, False, True, True, False]),
    )
    assert detection(flagged, wrong) == {
        "precision": pytest.approx(2 / 3),
        "recall": pytest.approx(2 / 3),
        "rate": 0.6,
    }
    nothing = np.zeros(5, dtype=bool)
    assert detection(nothing, wrong) == {"precision": None, "recall": 0.0, "rate": 0.0}
    assert detection(flagged, nothing) == {"precision": 0.0, "recall": None, "rate": 0.6}
    assert detection(nothing[:0], nothing[:0]) == {"precision": None, "recall": None, "rate": None}


def test_stability_is_the_squared_distance_of_the_named_arrays() -> None:
    old = {"w": np.array([1.0, 2.0], dtype=np.float32), "b": np.array(0.5), "count": np.array(3)}
    new = {"w": np.array([4.0, 6.0], dtype=np.float32), "b": np.array(1.5), "count": np.array(99)}
    assert stability(old, new, ["w", "b"]) == 3**2 + 4**2 + 1
    assert stability(old, old, ["w", "b"]) == 0.0


def test_stability_keeps_tiny_moves_of_many_weights() -> None:
    old = {"w": np.ones(10**6, dtype=np.float32)}
    new = {"w": np.full(10**6, 1 + 2.0**-20, dtype=np.float32)}
    assert stability(old, new, ["w"]) == pytest.approx(10**6 * 2.0**-40, rel=1e-12)


def test_headline_is_the_mean_of_the_last_five() -> None:
    assert headline([0.0, 100.0, 1, 2, 3, 4, 5]) == 3.0
    assert headline([10.0, 20.0]) == 15.0
    with pytest.raises(ValueError):
        headline([])


def test_the_light_modules_import_nothing_heavy() -> None:
    code = (
        "import sys, fedgsca.metrics, fedgsca.selector, fedgsca.pseudo_label, fedgsca.noise;"
        "import fedgsca.noise.candidates;"
        "heavy = {'torch', 'sklearn', 'scipy', 'matplotlib', 'PIL', 'monai'};"
        "print(sorted({m.split('.')[0] for m in sys.modules} & heavy))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_quadratic_kappa_is_scikit_learns() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = stream(0, "kappa")
    true = rng.integers(0, 5, 300)
    predicted = np.clip(true + rng.integers(-1, 3, 300), 0, 4)
    expected = sklearn.cohen_kappa_score(true, predicted, weights="quadratic")
    assert quadratic_kappa(confusion(true, predicted, 5)) == pytest.approx(expected)
    assert quadratic_kappa(np.diag([3, 4])) == 1.0
    assert quadratic_kappa(np.array([[5, 0], [0, 0]])) is None
    assert quadratic_kappa(np.zeros((2, 2))) is None
