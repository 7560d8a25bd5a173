"""The search for a learning rate without clean labels: the choice, the runs, the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedgsca.cli import execute
from fedgsca.errors import ConfigError
from fedgsca.experiment.records import RoundRecord
from fedgsca.experiment.result_summary import choose_unseen
from fedgsca.grid.rate_search import Candidate, SearchPlan, choose_candidate


def candidates_of(**scores: float) -> list[Candidate]:
    """`fedgsca_05=70.0` is FedGSCA with learning rate 0.05."""
    candidates = []
    for key, score in scores.items():
        method, _, digits = key.partition("_")
        lr = float(f"0.{digits}")
        candidates.append(Candidate(f"{method}-lr-{lr:g}", method, lr, score, 50.0))
    return candidates


def test_the_configured_rate_stays_unless_another_is_clearly_better() -> None:
    close = choose_candidate(candidates_of(fedgsca_05=70.0, fedgsca_005=70.9), {"fedgsca": 0.05})
    assert close.lr == 0.05
    assert "the configured learning rate stays" in close.reason
    clear = choose_candidate(candidates_of(fedgsca_05=70.0, fedgsca_005=71.1), {"fedgsca": 0.05})
    assert clear.lr == 0.005
    assert "fedgsca-lr-0.05, has 70.0" in clear.reason


def test_fedavg_wins_where_selection_hurts() -> None:
    defaults = {"fedgsca": 0.05, "fedavg": 0.05}
    scores = candidates_of(fedgsca_05=40.0, fedgsca_005=39.0, fedavg_05=45.0, fedavg_005=44.0)
    search = choose_candidate(scores, defaults)
    assert (search.method, search.lr) == ("fedavg", 0.05)
    scores = candidates_of(fedgsca_05=45.0, fedavg_05=45.0)
    assert choose_candidate(scores, defaults).method == "fedgsca"


def record(round_index: int, expected_f1: float | None, f1: float) -> RoundRecord:
    return RoundRecord(round_index, 0.05, None, 0, 0, {}, {}, f1=f1, expected_f1=expected_f1)


def test_the_score_of_a_round_is_in_the_next_record() -> None:
    scores = [None, None, 50.0, 60.0, 60.0, 60.0, 60.0, 60.0, 40.0, 30.0]
    rounds = [record(i, score, float(i)) for i, score in enumerate(scores)]
    choice = choose_unseen(rounds)
    assert choice is not None
    assert (choice.round, choice.expected_f1) == (6, 60.0)
    assert choice.f1 == 4.0  # mean of rounds 2 to 6
    assert choice.last == 50.0  # of rounds 4 to 8
    assert choose_unseen(rounds[:4]) is None


def test_a_search_needs_evidence() -> None:
    tree = {"data": {"source": "synthetic"}, "train": {"rounds": 4}}
    with pytest.raises(ConfigError) as error:
        SearchPlan(("fedavg",), (0.1,), tree).cells()
    assert error.value.code == "tune.no-evidence"


def test_the_command_chooses_can_be_resumed_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "search"
    arguments = ["tune", "--data", "synthetic", "--model", "cnn", "--rounds", "12"]
    arguments += ["--methods", "fedavg", "--lr", "0.01", "--holdout", "0.4", "--out", str(out)]
    arguments += ["--set", "data.train=240", "--set", "data.test=40", "--set", "data.image_size=16"]
    arguments += ["--set", "train.lr=0.05", "--noise", "S20", "--sites", "2"]
    assert execute([*arguments, "--json"]) == 0
    search = json.loads(capsys.readouterr().out)
    assert {item["lr"] for item in search["candidates"]} == {0.01, 0.05}
    assert search["lr"] in (0.01, 0.05)
    times = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/result.json")}
    assert len(times) == 2
    assert execute(["resume", str(out)]) == 0
    text = capsys.readouterr().out
    assert f"chosen  fedavg with learning rate {search['lr']:g}" in text
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_rates_must_be_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["tune", "--lr", "fast"]) != 0
    assert "tune.invalid-rates" in capsys.readouterr().err


@pytest.mark.parametrize("rounds", [6, 8])
def test_too_few_rounds_are_refused_before_training(
    rounds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "search"
    arguments = ["tune", "--data", "synthetic", "--model", "cnn", "--rounds", str(rounds)]
    assert execute([*arguments, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "tune.too-few-rounds" in error and "--rounds 9" in error
    assert not out.exists()


def test_the_fewest_rounds_have_a_score(tmp_path: Path) -> None:
    arguments = ["tune", "--data", "synthetic", "--model", "cnn", "--rounds", "9", "--quiet"]
    arguments += ["--methods", "fedavg", "--lr", "0.05", "--set", "train.lr=0.05"]
    arguments += ["--set", "data.train=120", "--set", "data.test=20", "--set", "data.image_size=16"]
    arguments += ["--noise", "S20", "--sites", "2", "--holdout", "0.4"]
    assert execute([*arguments, "--out", str(tmp_path / "search")]) == 0


def test_sites_that_hold_out_too_few_images_are_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "search"
    arguments = ["tune", "--data", "synthetic", "--model", "cnn", "--rounds", "9", "--sites", "4"]
    arguments += ["--set", "data.train=80", "--set", "data.test=20", "--set", "data.image_size=16"]
    assert execute([*arguments, "--noise", "S20", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "tune.small-holdout" in error and "20 training images" in error
    assert "at least 25 images" in error
    assert not (out / "cells").exists()
