"""The command line with some of many sites per round: log, report, and a run that is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsca.cli import execute
from fedgsca.config import to_toml
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from tests.toys import outcome, toy_config, toy_npz


def test_a_run_that_asks_some_of_many_sites(tmp_path: Path) -> None:
    config = toy_config(
        "fedavg",
        frozen=True,
        source=toy_npz(240, 30, 12),
        data__sites=20,
        noise__spec="S40",
        train__rounds=4,
        federation__sites_per_round=5,
        federation__simulated_lateness=0.2,
        federation__staleness=1,
    )
    (tmp_path / "config.toml").write_text(to_toml(config))
    run(config, tmp_path / "run", stop_after=2)
    arguments = ["--config", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run")]
    assert execute(["run", *arguments, "--quiet"]) == 0
    assert {len(record.asked_sites or ()) for record in read_rounds(tmp_path / "run")} == {5}
    report = (tmp_path / "run" / "report.html").read_text()
    assert "A round asked 5 of 20 sites on average" in report
    run(config, tmp_path / "again")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "again")


def test_two_ways_to_say_how_many_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    sets = ["--set", "federation.participation=0.5", "--set", "federation.sites_per_round=3"]
    assert execute(["run", *sets, "--json"]) == 2
    assert "config.two-participations" in capfd.readouterr().out
