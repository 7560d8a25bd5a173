"""Steps of the server, and BatchNorm layers that stay at their site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgsca.federation.rounds import run
from fedgsca.methods.base import make_method
from fedgsca.methods.parts.server_steps import TAU, MethodWithServerSteps
from fedgsca.methods.site import Samples
from fedgsca.methods.site_store import Store
from fedgsca.wire import Update
from tests.toys import toy_config


def step(kind: str, rate: float, rounds: int = 2) -> list[dict[str, np.ndarray]]:
    """Models after rounds in which the only site sends the model plus one."""
    method = MethodWithServerSteps(make_method("fedavg", {}, 9), kind, rate)
    weights = {"w": np.zeros(3, np.float32), "bn.running_var": np.ones(2, np.float32)}
    state = method.start(weights, 0)
    models = []
    for number in range(rounds):
        payload = method.broadcast(state, number)
        assert not payload.extras  # moments stay at the server
        answer = {name: value + np.float32(1) for name, value in payload.weights.items()}
        state = method.aggregate(state, [Update("a", 5, answer)])
        models.append(dict(state.weights))
    return models


def test_momentum_adds_up_the_changes() -> None:
    first, second = step("momentum", 0.5)
    assert np.allclose(first["w"], 0.5) and np.allclose(second["w"], 0.5 + 0.5 * 1.9)
    assert first["w"].dtype == np.float32


def test_adam_has_the_size_of_its_rate() -> None:
    (first,) = step("adam", 0.1, rounds=1)
    assert np.allclose(first["w"], 0.1 * 0.1 / (np.sqrt(0.01) + TAU))
    assert np.allclose(first["bn.running_var"], 2.0)  # a statistic takes the mean


@pytest.mark.parametrize("method", ["fedavg", "fedgsca-e", "fedgp"])
def test_a_resumed_run_continues_with_its_moments(method: str, tmp_path: Path) -> None:
    config = toy_config(method, train__rounds=4, aggregation__server="adam")
    run(config, tmp_path / "a")
    run(config, tmp_path / "b", stop_after=2)
    run(config, tmp_path / "b")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert models[0] == models[1]


def test_fedbn_keeps_its_layers_at_the_site(tmp_path: Path) -> None:
    config = toy_config("fedbn", model__name="cnn", train__rounds=2)
    run(config, tmp_path / "a")
    memory = Store(tmp_path / "a" / "store" / "site-1").read_before(2)
    names = {name.rpartition(".")[2] for name in memory}
    assert {"weight", "bias", "running_mean", "running_var"} <= names
    assert not any(name.startswith("head") for name in memory)
    plain = toy_config("fedavg", model__name="cnn", train__rounds=2)
    run(plain, tmp_path / "b")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert models[0] != models[1]


def test_the_memory_of_new_samples_is_that_of_the_method() -> None:
    """When a patient leaves, FedCorr's labels and losses follow the samples that stay."""
    method = make_method("fedcorr", {}, 9)
    labels = np.array([0, 1, 1])
    samples = Samples(np.zeros((3, 2), np.float32), labels, 2)
    memory = MethodWithServerSteps(method, "adam", 0.1).new_memory(samples, "a", 0)
    assert set(memory) == set(method.new_memory(samples, "a", 0)) == {"", "elr"}
    assert np.array_equal(memory[""]["labels"], labels)
