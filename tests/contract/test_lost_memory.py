"""A hospital that loses its state folder begins anew, and never in silence."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path

import pytest

from fedgsca.config import Config
from fedgsca.errors import RunFolderError
from fedgsca.federation.base import Reply
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds, rewind
from fedgsca.federation.simulation import prepare
from fedgsca.hospital.answers import ResidentSite, check_memory, record_memory
from fedgsca.hospital.messages import SiteMessage, read_message, terms_of
from fedgsca.hospital.settings import SiteSettings
from fedgsca.wire import Payload
from tests.toys import RecordingObserver, finished_run, outcome, toy_config

LOST = "site-2"
# every site remembers the opinions of the evidence heads
CONFIG = toy_config("fedgsca", frozen=True)  # a method whose sites remember something


class HospitalEngine:
    """Every site answers as in a deployment, from a folder of its own."""

    def __init__(self, config: Config, homes: Path) -> None:
        experiment = prepare(config)
        self.names = experiment.names
        self.terms = terms_of(experiment)
        self.homes = homes

    def exchange(self, payload: Payload, sites: Sequence[str] | None = None) -> Iterator[Reply]:
        for name in sites or self.names:
            settings = SiteSettings(name=name, state=str(self.homes / name))
            yield ResidentSite(partial(copy, settings)).reply("train", self.terms, payload)

    def folder(self, name: str) -> Path:
        return self.homes / name / self.terms.fingerprint[:16]

    def close(self) -> None:
        pass


@pytest.fixture
def engine(tmp_path: Path) -> HospitalEngine:
    return HospitalEngine(CONFIG, tmp_path / "homes")


def test_without_a_loss_nothing_is_noticed(engine: HospitalEngine, tmp_path: Path) -> None:
    for rounds in (1, 4, 6):
        run(CONFIG, tmp_path / "run", engine=engine, stop_after=rounds)
    rewind(tmp_path / "run", 5)
    run(CONFIG, tmp_path / "run", engine=engine)
    assert outcome(tmp_path / "run") == outcome(finished_run(CONFIG))
    assert not any(record.refusals for record in read_rounds(tmp_path / "run"))


def test_a_hospital_that_lost_its_folder_begins_anew_and_is_named(
    engine: HospitalEngine, tmp_path: Path
) -> None:
    observer = RecordingObserver()
    run(CONFIG, tmp_path / "run", engine=engine, stop_after=3)
    shutil.rmtree(engine.homes / LOST)
    run(CONFIG, tmp_path / "run", engine=engine, observer=observer)
    assert not any(record.refusals for record in observer.rounds)
    (message,) = [text for text in observer.messages if "state folder" in text]
    assert message.startswith(f"round 4: {LOST} begins anew")


def test_a_hospital_notices_that_a_part_of_its_folder_is_gone(
    engine: HospitalEngine, tmp_path: Path
) -> None:
    run(CONFIG, tmp_path / "run", engine=engine, stop_after=3)
    shutil.rmtree(engine.folder(LOST) / "store")
    run(CONFIG, tmp_path / "run", engine=engine, stop_after=4)
    refusals = read_rounds(tmp_path / "run")[-1].refusals
    assert list(refusals) == [LOST] and "its memory of round 3 is missing" in refusals[LOST]
    assert str(tmp_path) not in refusals[LOST], "no path leaves the hospital"


def test_a_coordinator_that_starts_over_finds_its_sites_in_order(
    engine: HospitalEngine, tmp_path: Path
) -> None:
    run(CONFIG, tmp_path / "run", engine=engine, stop_after=3)
    run(CONFIG, tmp_path / "again", engine=engine)
    assert not any(record.refusals for record in read_rounds(tmp_path / "again"))


def test_the_beginning_of_the_memory_travels_with_the_reply() -> None:
    header = {
        "kind": "train",
        "round": 4,
        "site": "a",
        "num_samples": 3,
        "error": None,
        "observed": {},
        "seconds": 1.0,
    }
    message = SiteMessage("1", {**header, "memory_since": 2}, {}, {})
    assert read_message(message, "a", "train", 4).memory_since == 2
    older_version = SiteMessage("1", header, {}, {})
    assert read_message(older_version, "a", "train", 4).memory_since is None
    odd = SiteMessage("1", {**header, "memory_since": "x"}, {}, {})
    assert read_message(odd, "a", "train", 4).update is None


@pytest.mark.parametrize("content", ["{", "[]", '{"since": 1}', '{"since": "x", "files": {}}'])
def test_a_damaged_record_is_an_error(content: str, tmp_path: Path) -> None:
    record_memory(tmp_path, 0, 3)
    assert check_memory(tmp_path, 4) == 0
    (tmp_path / "memory.json").write_text(content)
    with pytest.raises(RunFolderError) as error:
        check_memory(tmp_path, 4)
    assert error.value.code == "site.damaged-memory"
