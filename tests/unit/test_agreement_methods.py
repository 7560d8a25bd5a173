"""The chain of heads of FedCUFIT and the reliabilities of FedWANN, against hand numbers."""

from __future__ import annotations

import numpy as np

from fedgsca.methods.base import ServerState, make_method
from fedgsca.methods.fedcufit import predict
from fedgsca.methods.fedwann import SIZES, reliabilities
from fedgsca.wire import Update


def on_a_circle(degrees: np.ndarray) -> np.ndarray:
    angles = np.radians(degrees)
    return np.column_stack([np.cos(angles), np.sin(angles)])


def test_a_label_among_its_own_class_is_fully_reliable_and_a_wrong_one_is_not() -> None:
    # 16 images of class 0 around 0 degrees and 26 of class 1 around 120
    degrees = np.concatenate([np.linspace(0, 10, 16), np.linspace(120, 130, 26)])
    labels = np.repeat([0, 1], [16, 26])
    labels[10] = 1
    weights = reliabilities(on_a_circle(degrees), labels, 2)
    # its 20 nearest others have 15 labels of class 0, its 40 nearest 25 of class 1
    assert weights[10] == SIZES[0] / SIZES[-1]
    assert weights[[0, 15, 30]].tolist() == [1.0, 1.0, 1.0]


def test_a_label_without_a_majority_anywhere_has_no_weight() -> None:
    labels = np.array([0] * 30 + [1])
    assert reliabilities(on_a_circle(np.linspace(0, 30, 31)), labels, 2)[-1] == 0.0


def test_sites_of_any_size_have_reliabilities() -> None:
    for n in (0, 1, 2, 6):
        weights = reliabilities(on_a_circle(np.arange(n, dtype=float)), np.zeros(n, int), 2)
        assert weights.shape == (n,)


def test_a_guide_predicts_the_largest_logit() -> None:
    weight, bias = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.0, 0.5])
    assert predict(weight, bias, np.array([[2.0, 1.0], [1.0, 0.6]])).tolist() == [0, 1]


def make_update(site: str, n: int, value: float) -> Update:
    guides = {"guides": np.full((2, 2, 3), value, np.float32)}
    guides["guide_biases"] = np.full((2, 2), value, np.float32)
    return Update(site, n, {"head.weight": np.full(2, 10 * value, np.float32)}, guides)


def test_guides_are_averaged_like_the_model_and_survive_an_empty_round() -> None:
    method = make_method("fedcufit", {}, 3)
    state = ServerState(0, {"head.weight": np.zeros(2, np.float32)})
    assert "guides" not in method.broadcast(state, 0).extras
    state = method.aggregate(state, [make_update("a", 30, 1.0), make_update("b", 10, 5.0)])
    np.testing.assert_allclose(state.weights["head.weight"], 20.0)
    np.testing.assert_allclose(state.extras["guides"], 2.0)
    state = method.aggregate(state, [])
    np.testing.assert_allclose(method.broadcast(state, 2).extras["guide_biases"], 2.0)
