"""The chain of heads of FedCUFIT, against hand numbers."""

from __future__ import annotations

import numpy as np

from fedgsca.methods.base import ServerState, make_method
from fedgsca.methods.fedcufit import predict
from fedgsca.wire import Update


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
