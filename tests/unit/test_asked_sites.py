"""Draws of sites, discounted late updates, adaptive time-outs: by numbers worked out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsca.config import FederationConfig, load_config
from fedgsca.errors import ConfigError, UpdateError
from fedgsca.federation.filters.lateness import LateSites, check_lateness, late_weight, rebase
from fedgsca.federation.round_status import StatusObserver, read_status
from fedgsca.federation.rounds import draw_sites, run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.hospital.messages import SiteMessage
from fedgsca.hospital.network import NetworkEngine
from fedgsca.hospital.site_contacts import SiteTimeouts
from fedgsca.lab.report.html_page import write_report
from fedgsca.methods.base import ServerState, make_method
from fedgsca.wire import Payload, Update
from tests.toys import FaultyEngine, toy_config

NAMES = [f"site-{i + 1}" for i in range(10)]

# ---- draws ----


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"participation": 0.3}, 3),
        ({"participation": 0.25}, 3),  # 2.5 is rounded up
        ({"participation": 0.01}, 1),
        ({"sites_per_round": 7}, 7),
        ({"sites_per_round": 50}, 10),
    ],
)
def test_the_number_of_sites_asked(settings: dict[str, Any], expected: int) -> None:
    federation = FederationConfig(**settings)
    assert federation.is_partial
    assert federation.num_asked(len(NAMES)) == expected


def test_every_site_is_drawn_equally_often() -> None:
    config = load_config(federation__participation=0.3)
    counts = Counter[str]()
    for round_index in range(500):
        sites = draw_sites(config, NAMES, round_index)
        assert list(sites) == sorted(set(sites))
        counts.update(sites)
    assert min(counts.values()) > 115  # 150 are expected
    assert max(counts.values()) < 185


def test_a_draw_depends_on_seed_and_round_only() -> None:
    config = load_config(federation__participation=0.3)
    assert draw_sites(config, NAMES, 4) == draw_sites(config, NAMES[::-1], 4)
    other_seed = load_config(federation__participation=0.3, seed=1)
    draws = {draw_sites(config, NAMES, 4), draw_sites(config, NAMES, 5)}
    assert len(draws | {draw_sites(other_seed, NAMES, 4)}) == 3


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (
            {"federation__participation": 0.5, "federation__sites_per_round": 3},
            "config.two-participations",
        ),
        (
            {
                "data__source": "sites",
                "data__classes": ["a", "b"],
                "federation__sites": ["x", "y"],
                "federation__simulated_lateness": 0.1,
            },
            "config.lateness-not-simulated",
        ),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(**settings)
    assert code in [problem.code for problem in error.value.problems]


# ---- stages that need all sites ----


def test_fedcorr_asks_all_sites_while_it_preprocesses(tmp_path: Path) -> None:
    config = toy_config(
        "fedcorr",
        frozen=True,
        federation__participation=0.5,
        fedcorr__stage1=0.3,
        federation__eval_every=9,
    )
    run(config, tmp_path / "run")
    asked = [record.asked_sites for record in read_rounds(tmp_path / "run")]
    assert asked[:2] == [None, None]
    assert all(sites is not None and len(sites) == 2 for sites in asked[2:])


def test_fednoro_asks_all_sites_at_the_switch() -> None:
    method = make_method("fednoro", {"warmup": 3}, 10)
    rounds = [method.asks_all_sites(ServerState(i, {})) for i in range(5)]
    assert rounds == [False, False, False, True, True]
    state = ServerState(5, {}, {"centres": np.zeros((2, 3))})
    assert not method.asks_all_sites(state)


def test_a_fedcorr_site_that_missed_the_preprocessing_measures_itself(tmp_path: Path) -> None:
    """site-2 has 40 % wrong labels; it is absent in stage 1 and must not pass as clean."""
    levels = {}
    for name, absent in (("present", {}), ("absent", {0: "site-2", 1: "site-2"})):
        config = toy_config(
            "fedcorr",
            frozen=True,
            fedcorr__stage1=0.3,
            fedcorr__split_guard=0.0,
            fedcorr__one_group="noisy",
        )
        run(config, tmp_path / name, engine=FaultyEngine(config, tmp_path / name, absent=absent))
        record = read_rounds(tmp_path / name)[2]
        levels[name] = record.sites["site-2"].number("noise_level")
    store = tmp_path / "absent" / "store" / "site-2"
    assert sorted(path.name for path in store.glob("round-*"))[0] == "round-000002.safetensors"
    assert levels["absent"] is not None


# ---- late updates ----


def small_model(weight: list[float], variance: float, count: int) -> dict[str, np.ndarray]:
    return {
        "w": np.array(weight, np.float32),
        "bn.running_var": np.array([variance], np.float32),
        "n": np.array([count]),
    }


def test_a_late_change_is_halved_and_made_to_the_current_model() -> None:
    old_model = small_model([1, 2], 1.0, 4)
    update = Update("a", 7, small_model([3, 2], 0.2, 6))
    update = rebase(update, old_model, small_model([5, 5], 0.1, 9), late_weight(1))
    np.testing.assert_allclose(update.weights["w"], [6, 5])  # 5 + (3 - 1) / 2
    # a variance is mixed, not moved: 0.1 + (0.2 - 1) / 2 would be negative
    np.testing.assert_allclose(update.weights["bn.running_var"], [0.15], rtol=1e-6)
    assert update.weights["n"] == 9
    assert update.weights["w"].dtype == np.float32
    assert (update.site, update.num_samples) == ("a", 7)


def stage_payload(round_index: int, stage: int) -> Payload:
    return Payload(round_index, {}, {"stage": np.array(stage)})


@pytest.mark.parametrize(
    ("method", "answered", "current", "words"),
    [
        ("fedavg", stage_payload(3, 0), stage_payload(6, 0), "3 rounds late"),
        ("fedgp", stage_payload(5, 1), stage_payload(6, 1), "graph network"),
        ("fedcorr", stage_payload(5, 0), stage_payload(6, 1), "stage of the method has changed"),
    ],
)
def test_an_update_that_does_not_fit_any_more_is_refused(
    method: str, answered: Payload, current: Payload, words: str
) -> None:
    with pytest.raises(UpdateError, match=words) as error:
        check_lateness(make_method(method, {}, 10), answered, current, 2)
    assert error.value.code == "update.too-late"


def test_an_update_of_the_same_stage_fits() -> None:
    check_lateness(make_method("fedcorr", {}, 10), stage_payload(4, 1), stage_payload(6, 1), 2)


def test_delays_follow_the_probability(tmp_path: Path) -> None:
    config = load_config(federation__simulated_lateness=0.4)
    sites = LateSites(FaultyEngine(config, tmp_path), config, NAMES, tmp_path)
    delays = [sites.delay(i, name) for i in range(200) for name in NAMES]
    assert np.mean([delay >= 1 for delay in delays]) == pytest.approx(0.4, abs=0.03)
    assert np.mean([delay >= 2 for delay in delays]) == pytest.approx(0.16, abs=0.03)


# ---- time-outs ----


def test_a_timeout_follows_the_median() -> None:
    timeouts = SiteTimeouts(3600.0, 5.0)
    for seconds in (40.0, 30.0):
        timeouts.record("train", "a", seconds)
    assert timeouts.timeout("train", "a") == 3600.0  # two answers say too little
    timeouts.record("train", "a", 2000.0)
    assert timeouts.usual("train", "a") == 40.0
    assert timeouts.timeout("train", "a") == 200.0
    assert timeouts.timeout("test", "a") == 3600.0


def test_a_timeout_is_bounded() -> None:
    timeouts = SiteTimeouts(1000.0, 5.0)
    for _ in range(3):
        timeouts.record("train", "fast", 0.5)
        timeouts.record("train", "slow", 900.0)
    assert timeouts.timeout("train", "fast") == 60.0
    assert timeouts.timeout("train", "slow") == 1000.0
    assert SiteTimeouts(None, 5.0).timeout("train", "fast") is None
    constant = SiteTimeouts(1000.0, 0.0)
    for _ in range(3):
        constant.record("train", "fast", 0.5)
    assert constant.timeout("train", "fast") == 1000.0


class SlowTransport:
    """Two sites answer at once; the second is silent from a round on, until it is released."""

    def __init__(self, silent_round: int) -> None:
        self.silent_round = silent_round
        self.messages: dict[str, SiteMessage] = {}
        self.held_messages: dict[str, SiteMessage] = {}
        self.sent_ids: list[str] = []
        self.collections_before_release = -1

    def online(self) -> dict[int, str]:
        return {1: "a", 2: "b"}

    def send(
        self, kind: str, payload: Payload, nodes: Sequence[int], seconds: float | None
    ) -> dict[str, int]:
        message_ids = {}
        for node in nodes:
            message_id = f"{kind}-{payload.round}-{node}"
            message_ids[message_id] = node
            header = {
                "kind": kind,
                "round": payload.round,
                "site": "abc"[node - 1],
                "num_samples": 3,
                "error": None,
                "observed": {},
                "seconds": 0.1,
            }
            is_silent = kind == "train" and node == 2 and payload.round >= self.silent_round
            messages = self.held_messages if is_silent else self.messages
            messages[message_id] = SiteMessage(message_id, header, {}, {})
        self.sent_ids += message_ids
        return message_ids

    def collect(self, message_ids: Sequence[str]) -> list[SiteMessage]:
        self.collections_before_release -= 1
        if self.collections_before_release == 0:
            self.messages |= self.held_messages
        ready_ids = [message_id for message_id in message_ids if message_id in self.messages]
        return [self.messages.pop(message_id) for message_id in ready_ids]


def test_a_site_that_stops_answering_costs_its_own_timeout_not_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    status = StatusObserver(tmp_path)
    timeouts = SiteTimeouts(3600.0, 1e-6, shortest=0.05)  # whatever the load of the machine
    engine = NetworkEngine(
        SlowTransport(3),
        ["a", "b"],
        deadline=3600.0,
        poll=0.001,
        observer=status,
        timeouts=timeouts,
    )
    for round_index in range(3):
        replies = list(engine.exchange(Payload(round_index, {})))
        assert [reply.error for reply in replies] == [None, None]
    replies = list(engine.exchange(Payload(3, {})))
    assert replies[0].error is None
    assert "no answer within 0." in str(replies[1].error)
    progress = read_status(tmp_path)
    assert progress is not None
    assert progress.sites["b"].timeout == pytest.approx(0.05)
    assert progress.sites["b"].usual is not None


class HesitantTransport(SlowTransport):
    """Site a connects, b has a problem of its own, c comes late; answers are not there at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(9)
        self.folder = folder
        self.num_collections = 0
        self.states: list[dict[str, str]] = []  # of the sites, whenever the engine looks

    def online(self) -> dict[int, str]:
        status = read_status(self.folder)
        if status is not None:
            self.states.append({name: site.state for name, site in status.sites.items()})
        late_sites = {3: "c"} if len(self.states) > 5 else {}
        return super().online() | late_sites

    def send(
        self, kind: str, payload: Payload, nodes: Sequence[int], seconds: float | None
    ) -> dict[str, int]:
        message_ids = super().send(kind, payload, nodes, seconds)
        problem = self.messages.get("hello-0-2")
        if problem is not None and problem.header is not None:
            problem.header["error"] = "the configuration cannot be used there"
        return message_ids

    def collect(self, message_ids: Sequence[str]) -> list[SiteMessage]:
        self.num_collections += 1
        return [] if self.num_collections == 1 else super().collect(message_ids)


def test_the_status_says_why_a_site_cannot_take_part(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    transport = HesitantTransport(tmp_path)
    status = StatusObserver(tmp_path)
    engine = NetworkEngine(transport, ["a", "b", "c"], deadline=600, poll=0.001, observer=status)
    replies = {reply.site: reply.error for reply in engine.exchange(Payload(0, {}))}
    reason = "the configuration cannot be used there"
    assert replies == {"a": None, "b": reason, "c": None}
    assert transport.states[0] == dict.fromkeys("abc", "awaited: connection")
    assert transport.states[5] == {
        "a": "connected",
        "b": f"cannot take part: {reason}",
        "c": "awaited: connection",
    }


def impatient_engine(transport: SlowTransport) -> NetworkEngine:
    """Both sites are needed, and a site has 0.03 s."""
    return NetworkEngine(
        transport,
        ["a", "b"],
        quorum=lambda sites: 2,
        deadline=600.0,
        poll=0.001,
        staleness=1,
        timeouts=SiteTimeouts(0.03, 0.0),
        patience=600.0,
        first_pause=0.001,
    )


def test_a_round_waits_for_a_late_update_that_its_quorum_needs() -> None:
    transport = SlowTransport(0)
    engine = impatient_engine(transport)
    engine.quorum = lambda sites: 1
    replies = list(engine.exchange(Payload(0, {})))
    assert [reply.site for reply in replies if reply.update is None] == ["b"]
    engine.quorum = lambda sites: 2
    transport.silent_round = 9
    transport.collections_before_release = 30
    replies = list(engine.exchange(Payload(1, {})))
    assert [reply.site for reply in replies] == ["a", "b"]
    late_to = replies[1].late_to
    assert late_to is not None and late_to.round == 0
    assert "train-1-2" not in transport.sent_ids, "a busy site is not asked"
    replies = list(engine.exchange(Payload(2, {})))
    assert [reply.late_to for reply in replies] == [None, None]


def test_a_repeated_round_is_not_sent_again_to_a_site_that_works_on_it() -> None:
    transport = SlowTransport(0)
    engine = impatient_engine(transport)
    engine.quorum = lambda sites: 1
    replies = list(engine.exchange(Payload(0, {})))
    assert replies[1].update is None
    assert engine.wait_for_quorum(0, "one of two")
    transport.collections_before_release = 3
    replies = list(engine.exchange(Payload(0, {})))
    assert [reply.error for reply in replies] == [None, None]
    assert replies[1].late_to is None, "it answers the round itself"
    assert transport.sent_ids.count("train-0-2") == 1


def test_only_the_sites_asked_get_the_message() -> None:
    engine = NetworkEngine(SlowTransport(9), ["a", "b"], poll=0.001)
    assert [reply.site for reply in engine.exchange(Payload(0, {}), ["b"])] == ["b"]


# ---- the report ----


def test_the_report_says_who_took_part(tmp_path: Path) -> None:
    config = toy_config(
        "fedavg",
        frozen=True,
        train__rounds=4,
        federation__sites_per_round=2,
        federation__simulated_lateness=0.3,
        federation__staleness=2,
    )
    run(config, tmp_path / "run")
    text = write_report(tmp_path / "run").read_text()
    assert "Rounds asked" in text
