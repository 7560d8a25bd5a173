"""Comparing runs that exist, more rounds for a finished run, and what the terminal explains."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedgsca.cli import execute
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.lab.comparison import read_comparison
from tests.toys import toy_config


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run(toy_config("fedavg", train__rounds=2), folder / "a")
    run(toy_config("fedgsca", train__rounds=2), folder / "b")
    return folder


def test_existing_runs_become_a_comparison(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "both"
    assert execute(["report", str(runs / "a"), str(runs / "b"), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "FedAvg" in printed and "selection never ran" in printed
    comparison = read_comparison(out)
    assert [cell.method for cell in comparison.cells] == ["fedavg", "fedgsca"]
    assert (out / comparison.cells[0].path / "result.json").is_file()
    latex = (out / "compare.tex").read_text()
    assert latex.count(r"\\") == 4 and r"\toprule" in latex and "FedGSCA" in latex
    page = (out / "report.html").read_text()
    assert f'href="{comparison.cells[1].path}/"' in page
    assert "<details" in page.partition('id="confusion"')[2].partition("<table")[0]


def test_runs_with_the_same_name_are_rows_of_their_own(runs: Path, tmp_path: Path) -> None:
    run(toy_config("fedavg", train__rounds=3), tmp_path / "longer")
    out = tmp_path / "x"
    assert execute(["report", str(runs / "a"), str(tmp_path / "longer"), "--out", str(out)]) == 0
    assert [cell.method for cell in read_comparison(out).cells] == ["a", "longer"]


def test_a_finished_run_is_trained_longer(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in (runs / "a").rglob("*") if path.is_file()}
    out = tmp_path / "a-4"
    assert execute(["resume", str(runs / "a"), "--rounds", "4", "--out", str(out)]) == 0
    old, new = read_rounds(runs / "a"), read_rounds(out)
    assert [record.round for record in new] == [0, 1, 2, 3]
    assert [record.f1 for record in new[:2]] == [record.f1 for record in old]
    assert all(path.read_bytes() == content for path, content in before.items())
    capsys.readouterr()
    assert execute(["resume", str(runs / "a"), "--rounds", "2"]) == 2
    assert "run.rounds-not-more" in capsys.readouterr().err


def test_config_explains_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["config"]) == 0
    text = capsys.readouterr().out
    tree = tomllib.loads(text)
    assert tree["train"]["rounds"] == 40
    assert "# number of communication rounds" in text
    bare = [line for line in text.splitlines() if " = " in line and "#" not in line]
    assert bare == []


def test_device_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["config", "--device", "cpu"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["train"]["device"] == "cpu"
    assert execute(["run", "--gpu"]) == 2
    text = capsys.readouterr().err
    assert "--out" not in text
    assert "use --device cuda" in text
    assert execute(["review", "--gpu"]) == 2  # a command without --device
    assert "--device" not in capsys.readouterr().err
