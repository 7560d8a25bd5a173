"""The round loop refuses a model that no site can use, and the last good checkpoint stays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedgsca.config import METHODS
from fedgsca.errors import UpdateError
from fedgsca.federation import site_evaluation
from fedgsca.federation.base import RunObserver
from fedgsca.federation.checkpoint import latest
from fedgsca.federation.rounds import check_model, run
from fedgsca.methods.aggregate import is_buffer
from fedgsca.methods.base import ServerState, load_methods, register
from fedgsca.methods.fedavg import FedAvg
from fedgsca.methods.train import Evaluation, evaluate
from fedgsca.wire import Update
from tests.toys import toy_config


class DivergingServer(FedAvg):
    """FedAvg whose third round is not finite."""

    name = "diverging"

    def aggregate(self, state: ServerState, updates: Iterable[Update]) -> ServerState:
        after = super().aggregate(state, updates)
        if state.round < 2:
            return after
        weights = {name: array * np.float32(np.nan) for name, array in after.weights.items()}
        return replace(after, weights=weights)


@pytest.fixture
def diverging() -> Iterator[str]:
    load_methods()
    register(DivergingServer)
    yield DivergingServer.name
    METHODS.unregister(DivergingServer.name)


def test_a_model_that_is_not_finite_stops_the_run(diverging: str, tmp_path: Path) -> None:
    config = toy_config(diverging, frozen=True, train__rounds=4)
    with pytest.raises(UpdateError) as error:
        run(config, tmp_path)
    assert error.value.code == "round.invalid-model"
    assert error.value.message.startswith("round 3: ")
    state = latest(tmp_path / "checkpoint", config.fingerprint())
    assert state is not None and state.round == 2
    assert all(np.isfinite(array).all() for array in state.weights.values())


def test_a_variance_must_not_be_negative() -> None:
    mean = np.array([-1.0, 2.0], np.float32)
    check_model({"bn.running_mean": mean, "bn.running_var": np.array([0.0, 1.0])}, 0)
    with pytest.raises(UpdateError) as error:
        check_model({"bn.running_mean": mean, "bn.running_var": mean}, 0)
    assert error.value.code == "round.invalid-model"
    assert "bn.running_var" in error.value.message


def test_buffers_are_recognised_by_name() -> None:
    names = ["conv.weight", "bn.weight", "bn.running_mean", "bn.running_var"]
    assert [is_buffer(name) for name in names] == [False, False, True, True]
    assert is_buffer("layer.0.bn.num_batches_tracked")


class MessageObserver(RunObserver):
    """Collects the messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def test_a_loss_that_is_not_finite_is_null_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate_to_infinity(*arguments: object) -> Evaluation:
        evaluation = evaluate(*arguments)  # type: ignore[arg-type]
        return replace(evaluation, losses=np.full_like(evaluation.losses, np.inf))

    monkeypatch.setattr(site_evaluation, "evaluate", evaluate_to_infinity)
    observer = MessageObserver()
    run(toy_config("fedavg", frozen=True, train__rounds=1), tmp_path, observer=observer)
    assert len(observer.messages) == 1 and observer.messages[0].startswith("round 1: the loss")
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert json.loads(text).get("loss") is None
