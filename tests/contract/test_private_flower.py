"""Privacy over Flower: a hospital's own noise, one answer per round, and nothing beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message

from fedgsca.config import Config
from fedgsca.federation.records import RoundRecord
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.federation.simulation import prepare
from fedgsca.hospital.answers import ResidentSite
from fedgsca.hospital.messages import MessageKind, decode, from_records, terms_of
from fedgsca.hospital.settings import SiteSettings
from fedgsca.wire import Arrays, Payload
from tests.helpers import needs_packages
from tests.localgrid import LocalGrid, client_app, run_over_flower
from tests.toys import SITES, outcome, toy_config

pytestmark = needs_packages("opacus")
CLIP = 0.2
SIMULATION_METRICS = {
    "noisy_precision",
    "noisy_recall",
    "noisy_auroc",
    "noisy_f1",
    "pseudo_count",
    "pseudo_accuracy",
}


class Exchange(NamedTuple):
    """A training message and the site's reply."""

    payload: Payload
    weights: Arrays
    extras: Arrays


def private_config(noise: float) -> Config:
    return toy_config(
        "fedgsca", frozen=True, train__rounds=2, privacy__clip=CLIP, privacy__noise=noise
    )


def hospital_settings(tmp_path: Path, name: str) -> SiteSettings:
    return SiteSettings(name=name, state=str(tmp_path / "homes" / name))


def hospital_places(tmp_path: Path) -> Callable[[Context], SiteSettings]:
    """A rehearsal: every hospital has a folder of its own, as in a deployment."""

    def find_settings(context: Context) -> SiteSettings:
        name = f"site-{int(context.node_config['partition-id']) + 1}"
        return hospital_settings(tmp_path, name)

    return find_settings


def distance(start: Arrays, end: Arrays) -> float:
    """L2 norm of the change of all floating-point arrays."""
    squares = 0.0
    for name, array in start.items():
        if array.dtype.kind == "f":
            squares += float(np.sum((end[name].astype(float) - array) ** 2))
    return float(np.sqrt(squares))


@pytest.fixture
def exchanges() -> list[Exchange]:
    return []


def run_twice_per_message(
    config: Config, tmp_path: Path, exchanges: list[Exchange]
) -> list[RoundRecord]:
    """Two rounds over Flower, every message delivered twice; training messages are recorded."""

    def deliver_twice(site: int, message: Message, deliver: Callable[[], Message]) -> Message:
        first_reply = decode(from_records("train", deliver().content))
        second_message = deliver()
        if message.metadata.message_type == "train":
            header, weights, extras = decode(from_records("train", message.content))
            second_reply = decode(from_records("train", second_message.content))
            payload = Payload(int(header["round"]), weights, extras)
            exchanges.append(Exchange(payload, second_reply[1], second_reply[2]))
            for name, array in first_reply[1].items():
                assert np.array_equal(array, second_reply[1][name]), "the same noise, or none"
        return second_message

    grid = LocalGrid(client_app(hospital_places(tmp_path)), SITES, deliver_twice)
    run_over_flower(config, grid, tmp_path / "run")
    return read_rounds(tmp_path / "run")


def model_digest(folder: Path) -> str:
    return outcome(folder)["model.safetensors"]


def test_clipping_alone_gives_the_bytes_of_the_simulation(
    tmp_path: Path, exchanges: list[Exchange]
) -> None:
    config = private_config(0.0)
    rounds = run_twice_per_message(config, tmp_path, exchanges)
    norms = [distance(item.payload.weights, item.weights) for item in exchanges]
    assert len(norms) == 2 * SITES
    assert 0.99 * CLIP < max(norms) <= CLIP * 1.0001, "the clip has an effect"
    assert all(set(item.extras) == {"selector"} for item in exchanges)
    assert all(record.privacy is None for record in rounds)
    run(config, tmp_path / "simulation")
    assert model_digest(tmp_path / "simulation") == model_digest(tmp_path / "run")


def test_noise_is_the_hospitals_own_and_the_budget_is_logged(
    tmp_path: Path, exchanges: list[Exchange]
) -> None:
    config = private_config(4.0)
    rounds = run_twice_per_message(config, tmp_path, exchanges)
    for item in exchanges:
        floats = [value for value in item.payload.weights.values() if value.dtype.kind == "f"]
        count = sum(value.size for value in floats)
        spread = distance(item.payload.weights, item.weights) / np.sqrt(count)
        assert 0.7 < spread / (4.0 * CLIP) < 1.3
    result = run(config, tmp_path / "simulation")
    simulation = read_rounds(tmp_path / "simulation")
    assert [record.privacy for record in rounds] == [record.privacy for record in simulation]
    assert result is not None
    assert result.privacy == rounds[-1].privacy is not None
    site, simulated_site = rounds[0].sites["site-1"], simulation[0].sites["site-1"]
    assert site.values["selector"] != simulated_site.values["selector"], "not from the public seed"
    assert model_digest(tmp_path / "simulation") != model_digest(tmp_path / "run")
    assert not any(record.refusals for record in rounds)
    assert set(site.values) <= {"selector", "coefficient", *SIMULATION_METRICS}


def test_a_crafted_request_is_not_answered(tmp_path: Path, exchanges: list[Exchange]) -> None:
    config = private_config(4.0)
    run_twice_per_message(config, tmp_path, exchanges)
    payload = exchanges[-1].payload
    settings = hospital_settings(tmp_path, "site-4")
    site = ResidentSite(lambda: settings)
    terms = terms_of(prepare(config))
    assert site.reply("train", terms, payload).update is not None
    crafted_weights = {name: value + 1 for name, value in payload.weights.items()}
    crafted = Payload(payload.round, crafted_weights, payload.extras)
    later = Payload(2, payload.weights, payload.extras)
    requests: list[tuple[MessageKind, Payload, str]] = [
        ("train", crafted, "another model"),
        ("train", later, "once"),
        ("test", payload, "exact counts"),
    ]
    for kind, request, reason in requests:
        reply = site.reply(kind, terms, request)
        assert reply.update is None
        assert reason in (reply.error or "")
