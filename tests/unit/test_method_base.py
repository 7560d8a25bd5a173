"""The contract of a method: what it may leave out, and how it is found."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from fedgsca.config import METHODS
from fedgsca.methods.base import (
    Card,
    Logged,
    Method,
    MethodOptions,
    ServerState,
    average_models,
    load_methods,
    make_method,
    paper_methods,
    register,
)
from fedgsca.methods.site import Site
from fedgsca.wire import Payload, Update

WEIGHTS = {"w": np.array([1.0, 2.0], np.float32)}


@pytest.fixture
def bare() -> Iterator[type[Method]]:
    """A method that defines nothing but its name and what a site does."""
    load_methods()

    @register
    class Bare(Method):
        name = "bare"

        def local_update(self, payload: Payload, site: Site) -> Update:
            return Update(site.name, site.num_samples, payload.weights)

    yield Bare
    METHODS.unregister("bare")


def test_a_method_needs_only_a_name_and_a_local_update(bare: type[Method]) -> None:
    method = make_method("bare", {}, rounds=7)
    assert isinstance(method, bare)
    assert (method.options, method.rounds) == (MethodOptions(), 7)
    assert (bare.card.title, bare.head, bare.card.passes) == ("bare", "linear", 3.0)
    assert bare.uploads == bare.downloads == {} and bare.logged == Logged()


def test_methods_are_listed_in_the_order_of_the_paper(bare: type[Method]) -> None:
    built_in = [name for name, method in load_methods().items() if method.card.order < Card.order]
    assert built_in == [
        "fedavg",
        "fedprox",
        "fedrobust",
        "fedcorr",
        "fedgp",
        "fedfixer",
        "fednoro",
        "fedgsca",
        "fedgsca-e",
        "feddiv",
        "fedelc",
        "fedlsr",
        "fedrn",
        "maskedoptim",
        "fedcufit",
        "fedbn",
    ]
    assert list(paper_methods()) == built_in[:8]
    assert list(load_methods())[: len(built_in)] == built_in and "bare" in load_methods()


def test_built_in_methods_describe_themselves() -> None:
    for name, method in load_methods().items():
        if method.card.order < Card.order:
            assert method.card.title.lower() == name and method.card.paper
        assert set(method.logged.events) <= set(method.uploads), "events are uploads"


def test_averaging_keeps_what_the_server_stored() -> None:
    state = ServerState(4, WEIGHTS, {"momentum": np.ones(3)})
    assert average_models(state, []).extras == state.extras


def test_the_server_half_is_that_of_fedavg(bare: type[Method]) -> None:
    method = make_method("bare", {}, rounds=7)
    state = method.start(WEIGHTS, seed=0)
    assert (state.round, dict(state.weights), dict(state.extras)) == (0, WEIGHTS, {})
    payload = method.broadcast(state, 0)
    assert payload.round == 0 and payload.weights is state.weights and not payload.extras
    updates = [
        Update("a", 1, {"w": np.array([0.0, 0.0], np.float32)}),
        Update("b", 3, {"w": np.array([4.0, 8.0], np.float32)}),
    ]
    after_round = method.aggregate(state, iter(updates))
    assert after_round.round == 1 and after_round.weights["w"].tolist() == [3.0, 6.0]
    assert average_models(state, updates, lambda _: 1.0).weights["w"].tolist() == [2.0, 4.0]
    assert average_models(state, []).weights["w"].tolist() == [1.0, 2.0]
