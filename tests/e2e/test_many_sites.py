"""The command line with some of many sites per round: log, report, and a run that is repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedgsca.cli import execute
from fedgsca.cli.run import _show_sites
from fedgsca.config import to_toml
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.lab.report.run_reader import read_run
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
    names = [f"site-{number}" for number in range(1, 21)]
    assert read_run(tmp_path / "run").sites == names  # by their numbers
    assert {len(record.asked_sites or ()) for record in read_rounds(tmp_path / "run")} == {5}
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Rounds asked" in report
    run(config, tmp_path / "again")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "again")


def test_two_ways_to_say_how_many_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    sets = ["--set", "federation.participation=0.5", "--set", "federation.sites_per_round=3"]
    assert execute(["run", *sets, "--json"]) == 2
    assert "config.two-participations" in capfd.readouterr().out


def test_a_summary_of_many_sites_is_bounded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tree: dict[str, dict[str, object]] = {"sites": {}}
    for number in range(1, 1001):
        noise = {"samples": 6, "rate": 0.5 if number % 2 else 0.0, "counts": [[3, 3], [0, 0]]}
        name = "S50" if number % 2 else "0"
        tree["sites"][f"site-{number}"] = {"num_samples": 6, "noise": name, "realised": noise}
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "setup.json").write_text(json.dumps(tree))
    _show_sites(read_run(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 32 and any("symmetric" in line and "50.0" in line for line in lines)
    assert "1000 sites" in lines[-1]
