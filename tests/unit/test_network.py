"""A site's answer, read by a coordinator that trusts none of it; and which node is which site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedgsca.config import load_config
from fedgsca.errors import UpdateError
from fedgsca.federation.filters.base import RoundContext, UpdateContext
from fedgsca.federation.filters.claims import ClaimFilter
from fedgsca.hospital.messages import MessageKind, SiteMessage, read_message
from fedgsca.hospital.network import NetworkEngine
from fedgsca.hospital.site_contacts import NodeRegistry
from fedgsca.wire import Payload

GOOD_HEADER: dict[str, Any] = {
    "kind": "train",
    "round": 2,
    "site": "north",
    "num_samples": 7,
    "error": None,
    "observed": {},
    "seconds": 1.5,
}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"num_samples": math.inf}, "its message cannot be used (ValueError"),
        ({"num_samples": "many"}, "its message cannot be used (ValueError"),
        ({"round": math.inf}, "its message cannot be used (ValueError"),
        ({"round": 1}, "it answered train of round 2"),
        ({"seconds": None}, "its message cannot be used (TypeError"),
        ({"seconds": math.nan}, "its message cannot be used (ValueError"),
        ({"observed": 3}, "its message cannot be used (TypeError"),
        ({"observed": {"num_samples": 1}}, "its message cannot be used (ValueError: num_samples"),
        (
            {"observed": {"noisy_auroc": math.inf}},
            "its message cannot be used (ValueError: noisy_auroc",
        ),
        (
            {"observed": {"pseudo_count": "<b>"}},
            "its message cannot be used (ValueError: pseudo_count",
        ),
        ({"error": "it ran out of memory"}, "it ran out of memory"),
    ],
)
def test_an_invalid_answer_becomes_a_reason(header: dict[str, Any], reason: str) -> None:
    message = SiteMessage("1", {**GOOD_HEADER, **header}, {}, {})
    reply = read_message(message, "north", "train", 2)
    assert reply.update is None
    assert (reply.error or "").startswith(reason)


def test_a_valid_answer_is_an_update() -> None:
    metrics = {"noisy_auroc": 0.5, "pseudo_accuracy": None}
    message = SiteMessage("1", {**GOOD_HEADER, "observed": metrics}, {}, {})
    reply = read_message(message, "north", "train", 2)
    assert reply.update is not None
    assert (reply.update.site, reply.update.num_samples) == ("north", 7)
    assert reply.simulation_metrics == metrics


def test_nodes_are_registered_by_the_names_of_their_keys() -> None:
    registry = NodeRegistry(("a", "b"))
    online = {1: "a", 2: "b", 3: "c"}
    assert registry.unidentified(online) == [1, 2, 3]
    assert registry.enter(1, "a", "a", None) is None
    assert registry.enter(2, "b", "a", None) == "it calls itself a, but its key is registered as b"
    assert registry.enter(3, "c", "c", None) == "c is not one of the experiment's sites"
    assert registry.missing_sites() == []
    assert registry.nodes == {"a": 1}
    assert "registered as b" in registry.absence_reason("b")
    assert registry.unidentified(online | {4: "a", 5: "d"}) == [5], "a has its node"


def test_refused_nodes_are_asked_again_and_absent_ones_forgotten() -> None:
    registry = NodeRegistry(("a", "b"))
    registry.enter(1, "a", "a", None)
    registry.enter(2, "b", "b", "its images cannot be read")
    assert registry.unidentified({1: "a", 2: "b"}) == []
    registry.retry()
    assert registry.missing_sites() == ["b"]
    assert registry.unidentified({1: "a", 2: "b"}) == [2]
    registry.forget_absent([2])
    assert registry.nodes == {}
    assert registry.enter(4, "a", "a", None) is None


class LyingTransport:
    """Nodes that say "7 images" when they connect, and later what `claims` says."""

    def __init__(self, claims: dict[str, int]) -> None:
        self.claims = claims
        self.names = dict(enumerate(claims))

    def online(self) -> dict[int, str]:
        return self.names

    def send(
        self, kind: MessageKind, payload: Payload, nodes: Sequence[int], seconds: float | None
    ) -> dict[str, int]:
        return {f"{kind} {payload.round} {node}": node for node in nodes}

    def collect(self, message_ids: Sequence[str]) -> list[SiteMessage]:
        messages = []
        for message_id in message_ids:
            kind, round_index, node = message_id.split()
            site = self.names[int(node)]
            header = {
                **GOOD_HEADER,
                "kind": kind,
                "round": int(round_index),
                "site": site,
                "num_samples": 7 if kind == "hello" else self.claims[site],
            }
            messages.append(SiteMessage(message_id, header, {}, {}))
        return messages


def test_a_site_claims_at_most_the_images_that_it_declared() -> None:
    claims = {"a": 7, "b": 6, "c": 8}  # b holds one out
    engine = NetworkEngine(LyingTransport(claims), list(claims), deadline=30.0)
    claims_filter = ClaimFilter(load_config(method="fedavg").aggregation, list(claims))
    context = RoundContext(Payload(0, {}), Path(), print, print)
    liars = []
    for reply in engine.exchange(Payload(0, {})):
        assert reply.update is not None and reply.declared_samples == 7
        try:
            claims_filter.examine(reply.update, UpdateContext(reply, context))
        except UpdateError as error:
            assert error.code == "update.too-many-images"
            liars.append(reply.site)
    assert liars == ["c"]
