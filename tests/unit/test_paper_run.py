"""`fedgsca table` on toy data: its files, interruptions, and runs from several machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fedgsca.grid.runner as runner
from fedgsca.cli import execute
from fedgsca.config import Config
from fedgsca.engine.base import RunObserver
from fedgsca.engine.rounds import run as real_run
from fedgsca.experiment.records import DataSetup, RoundRecord, RunResult, Setup, SiteSetup
from fedgsca.grid.runner import finished_cells, folder_of
from fedgsca.paper import render
from fedgsca.paper.collect_scores import METRICS, FinishedRun, collect, site_scores
from fedgsca.paper.request import read_request
from fedgsca.paper.table_result import TableResult, load
from tests import papers
from tests.toys import toy_npz, toy_weights

ROWS = "fedavg,fedprox,fedgsca"


def words(
    *more: str, name: Sequence[str] = ("table", "chaoyang"), rounds: int = 2, seeds: str = "2"
) -> list[str]:
    sets = (
        "model.name=cnn",
        "model.frozen=true",
        f"model.weights={toy_weights()}",
        "model.feature_size=16",
        "train.device=cpu",
    )
    arguments = [*name, "--scale", "mini", "--data", str(toy_npz())]
    arguments += ["--rounds", str(rounds), "--seeds", seeds]
    for item in sets:
        arguments += ["--set", item]
    return [*arguments, *more]


def table(out: Path, *more: str, **options: Any) -> TableResult:
    assert execute(words("--out", str(out), "--quiet", *more, **options)) == 0
    return load(out)


def content(out: Path) -> str:
    """table.json without the times."""
    tree = json.loads((out / "table.json").read_bytes())
    del tree["series"]["seconds"]
    return json.dumps(tree, sort_keys=True)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("full") / "t"
    table(out, "--methods", ROWS)
    return out


@pytest.fixture(autouse=True)
def skip_rendering(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first table is drawn in full; for the others its numbers are enough."""
    monkeypatch.setattr(render, "render", lambda result, out: [])


def test_a_table_has_the_papers_numbers_beside_ours(full: Path) -> None:
    result = load(full)
    assert (result.name, result.scale) == ("chaoyang", "mini")
    assert (result.columns, result.seeds) == (("real",), (0, 1))
    assert (result.finished_runs, result.total_runs) == (6, 6)
    assert [row.label for row in result.rows] == ["FedAvg", "FedProx", "FedGSCA"]
    for row in result.rows:
        assert set(row.paper["real"]) == set(row.ours["real"]) == {"f1", "recall", "precision"}
        assert list(row.ours["real"]["f1"].values) == ["0", "1"]
        path = full / "cells" / f"{row.key}-chaoyang-real-s1" / "result.json"
        assert row.ours["real"]["f1"].values["1"] == json.loads(path.read_bytes())["f1"]
        assert len(result.series.f1["real"][row.key]["0"]) == 2
        assert len(result.series.seconds["real"][row.key]["0"]) == 2
        assert sum(map(sum, result.series.confusion["real"][row.key])) == 30
    assert result.rows[0].paper["real"]["f1"].mean == 69.33
    assert result.rows[2].p_value == {"real": {"f1": None, "recall": None, "precision": None}}
    assert (full / "table.md").exists() and (full / "report.html").exists()


def test_the_notes_name_every_difference_from_the_paper(full: Path) -> None:
    notes = " ".join(load(full).notes)
    assert "Mini scale: " in notes and "instead of Chaoyang, frozen cnn, 2 rounds" in notes
    assert "Partial: 3 of 8 rows, 2 of 3 seeds" in notes
    assert "Real noise of Chaoyang is replaced by noise C11" in notes
    assert "easily mistaken for each other (noise C): the two most similar classes" in notes
    assert "No significance test: it needs at least 3 seeds" in notes
    assert "FedGSCA, real: the selection never ran with 2 seeds (0, 1)" in notes
    assert "fedgsca 5 → 1 rounds" in notes and "fednoro" not in notes
    assert "mini scale" in (full / "table.md").read_text(encoding="utf-8").lower()


def test_shards_in_one_folder_give_the_same_table(full: Path, tmp_path: Path) -> None:
    first = table(tmp_path / "t", "--methods", ROWS, "--shard", "1/2")
    assert (first.finished_runs, first.total_runs) == (3, 6)
    assert table(tmp_path / "t", "--methods", ROWS, "--shard", "2/2").finished_runs == 6
    assert content(tmp_path / "t") == content(full)


def test_folders_of_two_machines_are_merged(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("1", "2"):
        table(tmp_path / part, "--methods", ROWS, "--shard", f"{part}/2")
    merged = table(
        tmp_path / "t",
        "--methods",
        ROWS,
        "--only-render",
        "--merge",
        str(tmp_path / "1"),
        "--merge",
        str(tmp_path / "2"),
    )
    assert merged.finished_runs == 6
    assert content(tmp_path / "t") == content(full)
    assert (
        execute(words("--out", str(tmp_path / "u"), "--merge", str(tmp_path / "1"), rounds=3)) == 7
    )
    assert "train.rounds: 2 there, 3 here" in capsys.readouterr().err


def test_rows_asked_for_later_join(full: Path, tmp_path: Path) -> None:
    assert [row.key for row in table(tmp_path / "t", "--methods", "fedgsca").rows] == ["fedgsca"]
    table(tmp_path / "t", "--methods", "fedprox,fedavg")
    assert content(tmp_path / "t") == content(full)


def stop_after(monkeypatch: pytest.MonkeyPatch, runs: int, rounds: int) -> None:
    """Ctrl-C in the given round of the run after so many."""

    class Impatient(RunObserver):
        def on_round_done(self, record: RoundRecord, seconds: float) -> None:
            if record.round + 1 >= rounds:
                raise KeyboardInterrupt

    folders: list[Path] = []

    def run(config: Config, out: Path, **options: Any) -> RunResult | None:
        folders.append(out)
        if len(folders) > runs:
            options["observer"] = Impatient()
        return real_run(config, out, **options)

    monkeypatch.setattr(runner, "run", run)


def test_an_interrupted_table_shows_what_it_has_and_can_be_resumed(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t"
    with monkeypatch.context() as patch:
        stop_after(patch, runs=2, rounds=1)
        assert execute(words("--out", str(out), "--methods", ROWS)) == 130
    assert "fedgsca resume" in capsys.readouterr().err
    assert load(out).finished_runs == 2
    assert not (out / "cells" / "fedavg-chaoyang-real-s0" / "checkpoint").exists()
    assert execute(["resume", str(out)]) == 0
    messages = capsys.readouterr().err
    assert "2 of 6 runs are done" in messages
    assert "round 1 of 2" in messages
    assert "4 runs to do, about" in messages
    assert content(out) == content(full)


def test_another_experiment_in_the_folder_is_refused(
    full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (full / "experiment.json").read_bytes()
    assert execute(words("--out", str(full), rounds=3)) == 7
    assert execute(words("--out", str(full), name=("stability",))) == 7
    errors = capsys.readouterr().err
    assert "[grid.other-settings]" in errors and "[table.other-experiment]" in errors
    assert (full / "experiment.json").read_bytes() == before


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("experiment.json", "table.damaged-request"),
        ("cells/*/result.json", "grid.damaged-run"),
        ("cells/*/setup.json", "grid.damaged-run"),
    ],
)
def test_damaged_files_are_named(
    pattern: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(tmp_path / "t", "--methods", "fedavg", seeds="1")
    next((tmp_path / "t").glob(pattern)).write_text("{")
    assert execute(words("--out", str(tmp_path / "t"), "--methods", "fedavg", seeds="1")) == 7
    assert f"[{code}]" in capsys.readouterr().err


def test_runs_on_different_data_do_not_mix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(tmp_path / "t", "--methods", "fedavg,fedprox", seeds="1")
    path = tmp_path / "t" / "cells" / "fedprox-chaoyang-real-s0" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data_fingerprint": "another"}))
    assert (
        execute(
            words("--out", str(tmp_path / "t"), "--methods", "fedavg", "--only-render", seeds="1")
        )
        == 7
    )
    assert "[table.mixed-data]" in capsys.readouterr().err


def test_time_to_the_peak_is_that_of_the_same_seed() -> None:
    def make_run(*f1: float) -> FinishedRun:
        seconds = tuple(60.0 * (i + 1) for i in range(len(f1)))
        return FinishedRun(RunResult.from_json({}), f1, (), seconds, (), (), "", {})

    fedavg = make_run(50.0, 70.0, 60.0)
    quick = make_run(71.0, 60.0, 90.0)
    slow = make_run(10.0, 20.0, 69.0)
    minutes = METRICS["minutes_to_peak"]
    assert [minutes(run, fedavg) for run in (fedavg, quick, slow)] == [2.0, 1.0, None]
    assert minutes(quick, None) is None
    assert METRICS["peak_f1"](quick, None) == 90.0


def test_efficiency_and_stability_have_their_metrics(tmp_path: Path) -> None:
    result = table(tmp_path / "e", name=("efficiency",), rounds=3, seeds="1")
    fedavg = next(row for row in result.rows if row.key == "fedavg").ours["0-S40-P20-C20"]
    total_seconds = 3 * fedavg["seconds_per_round"].mean
    assert fedavg["minutes_to_peak"].mean * 60 <= total_seconds * 1.001
    noise = "0-S10-P10-C10"
    rows = ("--methods", "css,fedgsca")
    result = table(tmp_path / "s", *rows, name=("stability",), seeds="1", rounds=6)
    assert all(row.ours[noise]["stability"].mean > 0 for row in result.rows)
    for key in ("css", "fedgsca"):
        assert len(result.series.stability[noise][key]["0"]) == 6


def test_the_request_and_its_cells_are_found_again(full: Path) -> None:
    request = read_request(full)
    assert request is not None
    assert len(finished_cells(request.cells(), full)) == 6
    assert all((folder_of(cell, full) / "metrics.jsonl").exists() for cell in request.cells())
    assert collect(request, full) == load(full)


def test_the_papers_own_data_and_its_choices_are_named(tmp_path: Path) -> None:
    root = papers.chaoyang(tmp_path / "chaoyang")
    out = tmp_path / "t"
    options = f"--no-weights --methods fedavg --seeds 1 --model cnn --rounds 1 --quiet --out {out}"
    options += f" --data chaoyang:{root} --set data.image_size=16 --set train.threads=1"
    assert execute(["table", "chaoyang", *options.split()]) == 0
    result = load(out)
    notes = " ".join(result.notes)
    assert (result.scale, result.finished_runs, result.total_runs) == ("paper", 1, 1)
    assert "No pretrained weights" in notes and "one pathologist per image" in notes
    assert "Partial: 1 of 8 rows, 1 of 5 seeds" in notes and "train.rounds = 1" in notes
    assert "Mini scale" not in notes and "replaced by" not in notes
    config = next((out / "cells").glob("*/config.toml")).read_text()
    assert "sites = 3" in config and 'spec = "0"' in config and "lr = 0.01" in config


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        ("table", 2, "table.no-name"),
        ("table chaoyang", 2, "table.weights-required"),
        ("table chaoyang --no-weights", 2, "table.missing-dataset"),
        ("table chaoyang --weights absent.torch --data chaoyang:x", 4, "weights.file-not-found"),
        ("ablation --scale mini", 2, "table.missing-data"),
        ("ablation --scale mini --no-weights --data synthetic", 2, "table.weights-at-mini-scale"),
        ("table chaoyang --scale mini --data absent.npz", 3, "data.npz-not-found"),
        ("table chaoyang --scale mini --data synthetic --set seed=3", 2, "table.fixed-setting"),
        (
            "table chaoyang --scale mini --data absent.npz --only-render --out absent",
            7,
            "table.nothing-to-render",
        ),
    ],
)
def test_mistakes_are_reported_before_anything_runs(
    arguments: str, exit_code: int, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments.split()) == exit_code
    assert f"[{code}]" in capsys.readouterr().err


def test_the_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["table", "--list", "--json"]) == 0
    experiments = json.loads(capsys.readouterr().out)["experiments"]
    assert len(experiments) == 11
    assert experiments[0]["runs"] == {"paper": 80, "mini": 48}
    assert execute(["table", "--list"]) == 0
    assert "fedgsca table kvasir-pairflip-ck" in capsys.readouterr().out


def test_scores_per_site_weigh_the_classes_as_the_site_does() -> None:
    setup = read_setup(
        {
            "a": SiteSetup(num_samples=10, given_per_class=(5, 5, 0)),
            "b": SiteSetup(num_samples=10, given_per_class=(0, 10, 0)),
            "c": SiteSetup(),
        }
    )
    # class 0 is always right, class 1 half of the time, class 2 never
    scores = site_scores([[10, 0, 0], [5, 5, 0], [0, 10, 0]], setup)
    assert set(scores) == {"a", "b"}, "nothing is known about a site elsewhere"
    assert scores["a"] == pytest.approx(100 * (2 * 5 / (5 + 7.5) + 2 * 2.5 / (5 + 2.5)) / 2)
    assert scores["b"] == pytest.approx(100 * 2 * 5 / (10 + 5))


def read_setup(sites: dict[str, SiteSetup]) -> Setup:
    data = DataSetup("x", "f", ("k", "l", "m"), (1, 1, 1, 3), None)
    return Setup(data, 1, sites, (), "f", "s", None, "v")
