"""Rounds that ask some of the sites, and updates that arrive late: for every method and engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedgsca.config import Config
from fedgsca.errors import QuorumError
from fedgsca.federation.records import RoundRecord
from fedgsca.federation.rounds import draw_sites, run
from fedgsca.federation.run_folder import read_lines, read_rounds, rewind
from fedgsca.methods.base import load_methods
from tests.toys import (
    SITES,
    FaultyEngine,
    RecordingObserver,
    finished_run,
    outcome,
    quick_options,
    toy_config,
)

METHODS = sorted(load_methods())
every_method = pytest.mark.parametrize("method", METHODS)
NAMES = tuple(f"site-{i + 1}" for i in range(SITES))
ROUNDS = 6


def partial_config(method: str, **sets: Any) -> Config:
    sets = {"federation__participation": 0.5, "train__rounds": ROUNDS, **sets}
    return toy_config(method, frozen=True, **sets)


def late_config(method: str, **sets: Any) -> Config:
    sets = {
        "federation__simulated_lateness": 0.4,
        "federation__staleness": 2,
        "train__rounds": 8,
        **sets,
    }
    return toy_config(method, frozen=True, **sets)


def run_over_grid(config: Config, folder: Path) -> None:
    pytest.importorskip("flwr")
    from tests.localgrid import LocalGrid, client_app, run_over_flower, simulated_sites

    grid = LocalGrid(client_app(simulated_sites(folder)), SITES)
    run_over_flower(config, grid, folder)


def assert_every_engine_agrees(config: Config, tmp_path: Path) -> None:
    """One process, stopped twice, and Flower's messages; two processes are tested once below."""
    for rounds in (2, 5, config.train.rounds):
        run(config, tmp_path / "stopped", stop_after=rounds)
    run_over_grid(config, tmp_path / "flower")
    for name in ("stopped", "flower"):
        assert outcome(tmp_path / name) == outcome(finished_run(config)), name


# ---- some of the sites ----


# engines do not know methods: a third of them is enough
@pytest.mark.parametrize("method", METHODS[::3])
def test_every_engine_asks_the_same_sites(method: str, tmp_path: Path) -> None:
    assert_every_engine_agrees(partial_config(method), tmp_path)


@every_method
def test_a_part_of_the_sites_is_asked_and_answers(method: str) -> None:
    config = partial_config(method)
    records = read_rounds(finished_run(config))
    for record in records:
        sites = NAMES
        if record.asked_sites is not None:
            assert record.asked_sites == draw_sites(config, NAMES, record.round)
            sites = record.asked_sites
        assert set(record.sites) == set(sites)
        assert not record.refusals
    partial_rounds = [record for record in records if record.asked_sites is not None]
    assert len(partial_rounds) >= ROUNDS // 2
    assert {len(record.asked_sites or ()) for record in partial_rounds} == {SITES // 2}
    full_rounds = [record for record in records if record.asked_sites is None]
    full_bytes = max(record.bytes_down for record in records)
    assert min(record.bytes_down for record in partial_rounds) < full_bytes or not full_rounds


@every_method
def test_a_site_that_was_away_for_many_rounds_takes_part_again(method: str, tmp_path: Path) -> None:
    """One site a round: each is away for many rounds, and some miss every change of stage."""
    fields = load_methods()[method].Options.model_fields
    usual_stages = {f"{method}__{name}": fields[name].default for name in quick_options(method)}
    config = toy_config(
        method, frozen=True, train__rounds=16, federation__sites_per_round=1, **usual_stages
    )
    engine = FaultyEngine(config, tmp_path / "run")
    run(config, tmp_path / "run", engine=engine)
    records = read_rounds(tmp_path / "run")
    assert not any(record.refusals for record in records)
    rounds_of_site = [
        [record.round for record in records if name in record.sites] for name in NAMES
    ]
    gaps = [int(np.diff(rounds).max()) for rounds in rounds_of_site if len(rounds) > 1]
    assert max(gaps) >= 5
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert all(np.isfinite(value).all() for value in model.values())
    assert max(record.f1 or 0.0 for record in records) > 30


def test_a_site_that_was_never_asked_before_gets_evidence_about_its_labels(tmp_path: Path) -> None:
    """The heads are trained until round 3; site-1 sees them for the first time in round 7."""
    config = partial_config("fedgsca-e", train__rounds=8)
    engine = LatecomerEngine(config, tmp_path / "run", "site-1", first_round=6)
    run(config, tmp_path / "run", engine=engine)
    memory = [
        load_file(path)
        for path in sorted((tmp_path / "run/store/site-1/evidence").glob("round-*.safetensors"))
    ]
    assert memory and "posterior" in memory[-1]


class LatecomerEngine(FaultyEngine):
    """All sites but one are asked in every round, and that one only from a round on."""

    def __init__(self, config: Config, folder: Path, latecomer: str, first_round: int) -> None:
        super().__init__(config, folder)
        self.latecomer = latecomer
        self.first_round = first_round

    def exchange(self, payload: Any, sites: Any = None) -> Iterator[Any]:
        names = [name for name in NAMES if name != self.latecomer]
        if payload.round >= self.first_round:
            names = [self.latecomer, *names]
        return super().exchange(payload, names)


def test_the_quorum_is_a_fraction_of_the_sites_asked(tmp_path: Path) -> None:
    config = partial_config("fedavg", federation__quorum=1.0)
    run(config, tmp_path / "run")
    engine = FaultyEngine(config, tmp_path / "absent", absent=dict.fromkeys(range(9), "site-2"))
    with pytest.raises(QuorumError) as error:
        run(config, tmp_path / "absent", engine=engine)
    assert "1 of 2 sites" in error.value.message


def test_with_full_participation_no_site_is_listed_as_asked(tmp_path: Path) -> None:
    config = toy_config("fedavg", frozen=True, train__rounds=2)
    run(config, tmp_path / "run")
    assert all("asked" not in line for line in read_lines(tmp_path / "run" / "metrics.jsonl"))


def test_a_repeated_round_asks_others() -> None:
    config = partial_config("fedavg", federation__participation=0.25)
    draws = {draw_sites(config, NAMES, 3, attempt=attempt) for attempt in range(8)}
    assert len(draws) > 1


# ---- late updates ----


def late_sites(records: list[RoundRecord]) -> list[tuple[int, str, float]]:
    rows = []
    for record in records:
        for name, site in record.sites.items():
            rounds = site.number("rounds_late")
            if rounds is not None:
                rows.append((record.round, name, rounds))
    return rows


@pytest.mark.parametrize("method", METHODS[1::3])
def test_every_engine_takes_the_same_late_updates(method: str, tmp_path: Path) -> None:
    assert_every_engine_agrees(late_config(method), tmp_path)


@every_method
def test_late_updates_count_where_the_method_tolerates_them(method: str) -> None:
    records = read_rounds(finished_run(late_config(method)))
    lateness = load_methods()[method].late
    assert len(lateness.reason) > 10, "a person reads why"
    reasons = " ".join(str(dict(record.refusals)) for record in records)
    assert "did not answer in time" in reasons
    if lateness.is_tolerated:
        rows = late_sites(records)
        assert rows
        assert {rounds for _, _, rounds in rows} <= {1.0, 2.0}
    else:
        assert not late_sites(records)
        assert lateness.reason[:40] in reasons


def test_two_processes_give_the_same_bytes(tmp_path: Path, cheap_processes: None) -> None:
    config = late_config("fedgsca", federation__participation=0.5, train__rounds=6)
    run(config, tmp_path / "one")
    run(config, tmp_path / "two", jobs=2)
    assert outcome(tmp_path / "one") == outcome(tmp_path / "two")


def test_late_updates_survive_going_back(tmp_path: Path) -> None:
    config = late_config("fedavg")
    run(config, tmp_path / "run")
    expected = outcome(tmp_path / "run")
    rewind(tmp_path / "run", 6)
    run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == expected


def test_without_staleness_a_late_update_is_lost(tmp_path: Path) -> None:
    config = late_config("fedavg", federation__staleness=0)
    run(config, tmp_path / "run")
    records = read_rounds(tmp_path / "run")
    assert any("in time" in str(record.refusals) for record in records)
    assert not late_sites(records)
    assert all(path.stat().st_size == 0 for path in (tmp_path / "run/late").rglob("*.safetensors"))


def test_more_updates_count_where_late_ones_do(tmp_path: Path) -> None:
    """The sites are equally slow in both runs; more updates count where late ones do."""
    num_updates = []
    for staleness in (0, 3):
        config = late_config(
            "fedavg",
            federation__staleness=staleness,
            federation__quorum=0.0,
            data__sites=8,
            noise__spec="0",
        )
        run(config, tmp_path / str(staleness))
        records = read_rounds(tmp_path / str(staleness))
        num_updates.append(sum(len(record.sites) for record in records))
    assert num_updates[1] > num_updates[0]


# ---- late updates over the network ----


def delayed_grid(folder: Path, late_round: int, arrival: int) -> Any:
    """A grid on which the answer of site-2 for one round arrives in a later round."""
    pytest.importorskip("flwr")
    from tests.localgrid import LocalGrid, client_app, simulated_sites

    held_messages: list[Any] = []
    grid = LocalGrid(client_app(simulated_sites(folder)), SITES)

    def delay(site: int, message: Any, deliver: Callable[[], Any]) -> Any:
        if message.metadata.message_type != "train":
            return deliver()
        round_index = int(message.metadata.group_id)
        if site == 2 and round_index == late_round:
            held_messages.append(deliver())
            return None
        if held_messages and round_index == arrival:
            held_message = held_messages.pop()
            grid.replies[held_message.metadata.reply_to_message_id] = held_message
        return deliver()

    grid.intercept = delay
    return grid


def run_delayed(folder: Path, staleness: int, arrival: int) -> tuple[list[RoundRecord], list[str]]:
    from tests.localgrid import run_over_flower

    config = toy_config(
        "fedavg",
        frozen=True,
        train__rounds=5,
        federation__deadline=0.3,
        federation__staleness=staleness,
    )
    observer = RecordingObserver()
    run_over_flower(config, delayed_grid(folder, 1, arrival), folder, observer)
    return read_rounds(folder), observer.messages


def test_over_the_network_a_late_update_counts(tmp_path: Path) -> None:
    records, messages = run_delayed(tmp_path, staleness=2, arrival=3)
    assert "no answer within" in records[1].refusals["site-2"]
    assert "still busy with round 2" in records[2].refusals["site-2"]
    assert late_sites(records) == [(3, "site-2", 2.0)]
    assert "site-2" in records[4].sites
    assert not records[4].refusals
    assert any("site-2 for round 2 counts with a smaller weight" in text for text in messages)


def test_over_the_network_a_site_beyond_the_bound_is_asked_again(tmp_path: Path) -> None:
    records, messages = run_delayed(tmp_path, staleness=1, arrival=3)
    assert "still busy" in records[2].refusals["site-2"]
    assert not late_sites(records)
    assert "site-2" in records[3].sites
    assert any("answered too late" in text for text in messages)
