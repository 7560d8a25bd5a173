"""`fedgsca table` on toy data: what is written, what survives a stop, and that it does not matter who ran which cell."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests import papers
import pytest
from tests.toys import toy_npz, toy_weights

import fedgsca.grid.runner as cells
from fedgsca.cli import execute
from fedgsca.engine.rounds import SilentObserver
from fedgsca.engine.rounds import run as real_run
from fedgsca.grid.runner import finished_cells, folder_of
from fedgsca.paper import render
from fedgsca.paper.collect_scores import METRICS, FinishedRun, collect
from fedgsca.paper.request import read_request
from fedgsca.paper.table_result import TableResult, load

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
    return [
        *name, "--scale", "mini", "--data", str(toy_npz()), "--rounds", str(rounds), "--seeds", seeds,
        *(part for item in sets for part in ("--set", item)), *more,
    ]  # fmt: skip


def table(out: Path, *more: str, **options: Any) -> TableResult:
    assert execute(words("--out", str(out), "--quiet", *more, **options)) == 0
    return load(out)


def same(out: Path) -> str:
    """table.json without what a clock says."""
    tree = json.loads((out / "table.json").read_bytes())
    del tree["series"]["seconds"]
    return json.dumps(tree, sort_keys=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "t"
    table(out, "--methods", ROWS)
    return out


@pytest.fixture(autouse=True)
def plain(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first table is drawn in full; for the others its numbers are enough."""
    monkeypatch.setattr(render, "render", lambda result, out: [])


def test_a_table_has_the_papers_numbers_beside_ours(whole: Path) -> None:
    found = load(whole)
    assert (found.name, found.scale, found.columns, found.seeds) == (
        "chaoyang",
        "mini",
        ("real",),
        (0, 1),
    )
    assert (found.done, found.total) == (6, 6)
    assert [row.label for row in found.rows] == ["FedAvg", "FedProx", "FedGSCA"]
    for row in found.rows:
        assert set(row.paper["real"]) == set(row.ours["real"]) == {"f1", "recall", "precision"}
        assert list(row.ours["real"]["f1"].values) == ["0", "1"]
        result = json.loads(
            (whole / "cells" / f"{row.key}-chaoyang-real-s1" / "result.json").read_bytes()
        )
        assert row.ours["real"]["f1"].values["1"] == result["f1"]
        assert (
            len(found.series["f1"]["real"][row.key]["0"])
            == len(found.series["seconds"]["real"][row.key]["0"])
            == 2
        )
        assert sum(map(sum, found.series["confusion"]["real"][row.key])) == 30
    assert found.rows[0].paper["real"]["f1"].mean == 69.33
    assert found.rows[2].p_value == {"real": {"f1": None, "recall": None, "precision": None}}
    assert (whole / "table.md").exists() and (whole / "report.html").exists()


def test_what_is_not_the_papers_is_said(whole: Path) -> None:
    notes = " ".join(load(whole).notes)
    assert "Mini scale: " in notes and "instead of Chaoyang, frozen cnn, 2 rounds" in notes
    assert "Partial: 3 of 8 rows, 2 of 3 seeds" in notes
    assert "C11" in notes and "stood in for" in notes
    assert (
        "CK-asymmetric candidates: the two most similar classes, measured on clean cnn features"
        in notes
    )
    assert "paired two-sided t-test against FedGSCA over 2 seeds" in notes
    assert "fedgsca 5 → 1 rounds" in notes and "fednoro" not in notes
    assert "Mini scale" in (whole / "table.md").read_text(encoding="utf-8") or "mini scale" in (
        whole / "table.md"
    ).read_text("utf-8")


def test_shards_in_one_folder_give_the_same_table(whole: Path, tmp_path: Path) -> None:
    first = table(tmp_path / "t", "--methods", ROWS, "--shard", "1/2")
    assert (first.done, first.total) == (3, 6)
    assert table(tmp_path / "t", "--methods", ROWS, "--shard", "2/2").done == 6
    assert same(tmp_path / "t") == same(whole)


def test_folders_of_two_machines_are_merged(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert merged.done == 6
    assert same(tmp_path / "t") == same(whole)
    assert (
        execute(words("--out", str(tmp_path / "u"), "--merge", str(tmp_path / "1"), rounds=3)) == 7
    )
    assert "train.rounds: 2 there, 3 here" in capsys.readouterr().err


def test_rows_asked_for_later_join(whole: Path, tmp_path: Path) -> None:
    assert [row.key for row in table(tmp_path / "t", "--methods", "fedgsca").rows] == ["fedgsca"]
    table(tmp_path / "t", "--methods", "fedprox,fedavg")
    assert same(tmp_path / "t") == same(whole)


def stop_after(monkeypatch: pytest.MonkeyPatch, runs: int, rounds: int) -> None:
    """Ctrl-C in the given round of the run after so many."""

    class Impatient(SilentObserver):
        def on_round_done(self, line: dict[str, Any], seconds: float) -> None:
            if line["round"] + 1 >= rounds:
                raise KeyboardInterrupt

    done: list[Path] = []

    def run(config: Any, out: Path, **more: Any) -> dict[str, Any]:
        done.append(out)
        return real_run(
            config, out, **(more | ({"observer": Impatient()} if len(done) > runs else {}))
        )

    monkeypatch.setattr(cells, "run", run)


def test_a_stopped_table_shows_what_it_has_and_goes_on(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t"
    with monkeypatch.context() as patch:
        stop_after(patch, runs=2, rounds=1)
        assert execute(words("--out", str(out), "--methods", ROWS)) == 130
    assert "fedgsca resume" in capsys.readouterr().err
    assert load(out).done == 2
    assert not (out / "cells" / "fedavg-chaoyang-real-s0" / "checkpoint").exists()
    assert execute(["resume", str(out)]) == 0
    said = capsys.readouterr().err
    assert (
        "2 of 6 runs are done" in said
        and "going on after round 1 of 2" in said
        and "4 runs to do, about" in said
    )
    assert same(out) == same(whole)


def test_another_experiment_in_the_folder_is_refused(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (whole / "experiment.json").read_bytes()
    assert execute(words("--out", str(whole), rounds=3)) == 7
    assert execute(words("--out", str(whole), name=("stability",))) == 7
    assert "holds another experiment" in capsys.readouterr().err
    assert (whole / "experiment.json").read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda out: (out / "experiment.json").write_text("{"), "experiment.json is damaged"),
        (
            lambda out: next(out.glob("cells/*/result.json")).write_text(""),
            "result.json is damaged",
        ),
        (lambda out: next(out.glob("cells/*/setup.json")).unlink(), "is damaged"),
    ],
)
def test_damaged_files_are_named(
    damage: Callable[[Path], object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(tmp_path / "t", "--methods", "fedavg", seeds="1")
    damage(tmp_path / "t")
    assert execute(words("--out", str(tmp_path / "t"), "--methods", "fedavg", seeds="1")) == 7
    assert said in capsys.readouterr().err


def test_cells_that_saw_other_data_do_not_mix(
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
    assert "different data" in capsys.readouterr().err


def test_time_to_the_peak_is_that_of_the_same_seed() -> None:
    def made(*f1: float) -> FinishedRun:
        return FinishedRun({}, f1, (), tuple(60.0 * (i + 1) for i in range(len(f1))), (), ())

    fedavg, quick, slow = made(50.0, 70.0, 60.0), made(71.0, 60.0, 90.0), made(10.0, 20.0, 69.0)
    minutes = METRICS["minutes_to_peak"]
    assert [minutes(run, fedavg) for run in (fedavg, quick, slow)] == [2.0, 1.0, None]
    assert minutes(quick, None) is None
    assert METRICS["peak_f1"](quick, None) == 90.0


def test_efficiency_and_stability_have_their_metrics(tmp_path: Path) -> None:
    found = table(tmp_path / "e", name=("efficiency",), rounds=3, seeds="1")
    scores = {row.key: row.ours["0-S40-P20-C20"] for row in found.rows}
    assert (
        scores["fedavg"]["minutes_to_peak"].mean * 60
        <= 3 * scores["fedavg"]["seconds_per_round"].mean * 1.001
    )
    found = table(
        tmp_path / "s", "--methods", "css,fedgsca", name=("stability",), seeds="1", rounds=6
    )
    assert all(row.ours["0-S10-P10-C10"]["stability"].mean > 0 for row in found.rows)
    assert [
        len(found.series["stability"]["0-S10-P10-C10"][key]["0"]) for key in ("css", "fedgsca")
    ] == [6, 6]


def test_the_request_and_its_cells_are_found_again(whole: Path) -> None:
    request = read_request(whole)
    assert request is not None
    assert len(finished_cells(request.cells(), whole)) == 6
    assert all((folder_of(cell, whole) / "metrics.jsonl").exists() for cell in request.cells())
    assert collect(request, whole) == load(whole)


def test_the_papers_own_data_and_its_choices_are_named(tmp_path: Path) -> None:
    root = papers.chaoyang(tmp_path / "chaoyang")
    asked = (
        "--data",
        f"chaoyang:{root}",
        "--no-weights",
        "--methods",
        "fedavg",
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "t"),
    )
    small = (
        "--model",
        "cnn",
        "--rounds",
        "1",
        "--set",
        "data.image_size=16",
        "--set",
        "train.threads=1",
        "--quiet",
    )
    assert execute(["table", "chaoyang", *asked, *small]) == 0
    found = load(tmp_path / "t")
    notes = " ".join(found.notes)
    assert (found.scale, found.done, found.total) == ("paper", 1, 1)
    assert "No pretrained weights" in notes and "label drawn: one pathologist per image" in notes
    assert "Partial: 1 of 8 rows, 1 of 5 seeds" in notes and "train.rounds = 1" in notes
    assert "Mini scale" not in notes and "stood in for" not in notes
    config = next((tmp_path / "t" / "cells").glob("*/config.toml")).read_text()
    assert "sites = 3" in config and 'spec = "0"' in config and "lr = 0.01" in config


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["table"], 2, "which table?"),
        (["table", "chaoyang"], 2, "--no-weights"),
        (["table", "chaoyang", "--no-weights"], 2, "chaoyang:ROOT"),
        (
            ["table", "chaoyang", "--weights", "absent.torch", "--data", "chaoyang:x"],
            4,
            "does not exist",
        ),
        (["ablation", "--scale", "mini"], 2, "needs data"),
        (
            ["ablation", "--scale", "mini", "--no-weights", "--data", "synthetic"],
            2,
            "--scale paper",
        ),
        (["table", "chaoyang", "--scale", "mini", "--data", "absent.npz"], 3, "absent.npz"),
        (
            ["table", "chaoyang", "--scale", "mini", "--data", "synthetic", "--set", "seed=3"],
            2,
            "varies or fixes",
        ),
        (
            [
                "table",
                "chaoyang",
                "--scale",
                "mini",
                "--data",
                "absent.npz",
                "--only-render",
                "--out",
                "absent",
            ],
            7,
            "no experiment",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    args: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(args) == code
    assert said in capsys.readouterr().err


def test_the_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["table", "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["experiments"]
    assert len(found) == 11
    assert found[0]["runs"] == {"paper": 80, "mini": 48}
    assert execute(["table", "--list"]) == 0
    assert "fedgsca table kvasir-pairflip-ck" in capsys.readouterr().out
