"""Comparisons: which cells there are, what becomes of their results, and what happens when one fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedgsca.grid.runner as cells
from fedgsca.engine.rounds import RunObserver, SilentObserver
from fedgsca.errors import ConfigError, QuorumError, RunFolderError
from fedgsca.grid.comparison import (
    ComparisonPlan,
    check_folder,
    collect,
    parse_methods,
    parse_noises,
    parse_seeds,
    read_plan,
    read_tuned,
    run_plan,
)
from fedgsca.grid.runner import GridCell

PLAN = ComparisonPlan(("fedavg", "fedgsca"), ("S40", "0-S40-P20-C20"), (0, 1), title="a test")


class Crowd:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self.errors: list[str] = []

    def observe(self, cell: GridCell) -> RunObserver:
        self.started.append(cell.name)
        return SilentObserver()

    def on_run_done(self, cell: GridCell, result: Mapping[str, Any]) -> None:
        self.ended.append(cell.name)

    def on_run_failed(self, cell: GridCell, error: Exception) -> None:
        self.errors.append(cell.name)


def result(f1: float) -> dict[str, Any]:
    return {
        "f1": f1,
        "recall": f1 + 1,
        "precision": f1 + 2,
        "best": {"round": 3, "f1": f1 + 3},
        "seconds": {"per_round": 0.5},
        "bytes_per_round": {"up": 10, "down": 20},
        "data": "toy",
    }


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Exception]:
    """An engine that trains nothing: F1 is 80 without wrong labels, 60 otherwise; cells named in the dictionary fail."""
    broken: dict[str, Exception] = {}

    def run(config: Any, out: Path, *, jobs: int, observer: RunObserver) -> dict[str, Any]:
        if out.name in broken:
            raise broken[out.name]
        out.mkdir(parents=True)
        made = result(80.0 if config.noise.oracle or config.noise.spec == "0" else 60.0)
        (out / "result.json").write_text(json.dumps(made))
        return made

    monkeypatch.setattr(cells, "run", run)
    return broken


def test_seeds_are_a_number_or_a_list() -> None:
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("1") == (0,)
    assert parse_seeds("4,0,4") == (4, 0)
    assert parse_seeds("5,") == (5,)


@pytest.mark.parametrize("text", ["", "0", "-1", "a", "1,b", ",", "1,-2", "2.5"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds"):
        parse_seeds(text)


def test_all_methods_start_with_the_baseline_and_end_with_ours() -> None:
    names = parse_methods("all")
    assert (names[0], names[-1]) == ("fedavg", "fedgsca")
    assert "fedprox" in names
    assert parse_methods(" FedAvg, fedgsca,fedavg,") == ("fedavg", "fedgsca")
    with pytest.raises(ConfigError, match="--methods"):
        parse_methods(" , ")


def test_a_noise_has_one_spelling() -> None:
    assert parse_noises(["s40%", "S40", "clean-S40-p20-C20", "0-S40-P20-C20"]) == (
        "S40",
        "0-S40-P20-C20",
    )
    with pytest.raises(ConfigError, match="X9"):
        parse_noises(["X9"])


def test_cells_are_methods_by_noises_by_seeds_with_a_ceiling_each() -> None:
    cells = PLAN.cells()
    names = [cell.name for cell in cells]
    assert len(names) == len(set(names)) == 2 * 2 * (2 + 1)
    assert names[:3] == ["fedavg-S40-s0", "fedgsca-S40-s0", "ceiling-S40-s0"]
    for cell in cells:
        assert cell.config.noise.oracle == (cell.role == "ceiling")
        assert (cell.config.noise.spec, cell.config.seed) == (cell.noise, cell.seed)
        assert cell.role == "method" or cell.config.method == "fedavg"


def test_no_ceiling_without_noise_or_without_the_baseline() -> None:
    roles = [cell.role for cell in ComparisonPlan(("fedavg",), ("0", "0-0-0-0"), (0,)).cells()]
    assert roles == ["method", "method"]
    assert {cell.role for cell in ComparisonPlan(("fedgsca",), ("S40",), (0,)).cells()} == {"method"}


def test_the_clean_reference_is_the_cell_of_noise_0() -> None:
    cells = ComparisonPlan(("fedavg",), ("0",), (7,), clean=True).cells()
    assert [cell.name for cell in cells] == ["fedavg-0-s7", "fedavg-0-s7"]
    assert cells[0].config == cells[1].config


def test_options_of_a_method_apply_to_it_alone() -> None:
    plan = ComparisonPlan(
        ("fedavg", "fedprox", "fedgsca"),
        ("S40",),
        (0,),
        {"fedprox": {"mu": 0.5}, "train": {"rounds": 3}},
    )
    found = {cell.config.method: cell.config for cell in plan.cells() if cell.role == "method"}
    assert found["fedprox"].options["mu"] == 0.5
    assert "mu" not in found["fedgsca"].options
    assert {config.train.rounds for config in found.values()} == {3}


def test_mistakes_are_found_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="did you mean fedgsca"):
        ComparisonPlan(("fedavg", "fedgcsa"), ("S40",), (0,)).cells()
    with pytest.raises(ConfigError, match="describes 2 sites"):
        ComparisonPlan(("fedavg",), ("S40", "0-S40"), (0,)).cells()


def test_a_plan_survives_its_file(tmp_path: Path, engine: dict[str, Exception]) -> None:
    assert read_plan(tmp_path) is None
    run_plan(PLAN, tmp_path, Crowd())
    assert read_plan(tmp_path) == PLAN
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(RunFolderError, match="damaged"):
        read_plan(tmp_path)


def test_compare_json_has_the_agreed_form(tmp_path: Path, engine: dict[str, Exception]) -> None:
    outcome = run_plan(
        ComparisonPlan(("fedavg", "fedgsca"), ("S40", "0"), (0, 2), clean=True, title="a test"),
        tmp_path,
        Crowd(),
    )
    found = json.loads((tmp_path / "compare.json").read_text())
    assert found == outcome.compare
    assert set(found) == {
        "title",
        "data",
        "noises",
        "methods",
        "seeds",
        "cells",
        "ceiling",
        "clean",
    }
    assert (found["title"], found["data"], found["seeds"]) == ("a test", "toy", [0, 2])
    assert found["ceiling"] == {"S40": {"0": 80.0, "2": 80.0}}
    assert found["clean"] == {"0": 80.0, "2": 80.0}
    assert len(found["cells"]) == 8
    assert found["cells"][1] == {
        "method": "fedgsca",
        "label": "FedGSCA",
        "noise": "S40",
        "seed": 0,
        "path": "cells/fedgsca-S40-s0",
        "f1": 60.0,
        "recall": 61.0,
        "precision": 62.0,
        "best_f1": 63.0,
        "seconds_per_round": 0.5,
        "bytes_up": 10,
        "bytes_down": 20,
    }


def test_a_failed_cell_does_not_stop_the_others(
    tmp_path: Path, engine: dict[str, Exception]
) -> None:
    engine["fedgsca-S40-s0"] = QuorumError("todo.test-compare-1", "too few sites", fix="mend them")
    engine["ceiling-S40-s1"] = RuntimeError("a bug")
    crowd = Crowd()
    outcome = run_plan(PLAN, tmp_path, crowd)
    assert outcome.failed == {
        "fedgsca-S40-s0": "too few sites",
        "ceiling-S40-s1": "RuntimeError: a bug",
    }
    assert crowd.errors == list(outcome.failed)
    assert len(outcome.compare["cells"]) == 7
    assert outcome.compare["ceiling"]["S40"] == {"0": 80.0}


def test_a_second_start_runs_only_what_is_missing(
    tmp_path: Path, engine: dict[str, Exception]
) -> None:
    engine["fedgsca-S40-s0"] = QuorumError("todo.test-compare-2", "too few sites", fix="mend them")
    run_plan(PLAN, tmp_path, Crowd())
    engine.clear()
    crowd = Crowd()
    outcome = run_plan(PLAN, tmp_path, crowd)
    assert crowd.started == crowd.ended == ["fedgsca-S40-s0"]
    assert len(outcome.compare["cells"]) == 8


def test_a_comparison_can_grow(tmp_path: Path, engine: dict[str, Exception]) -> None:
    run_plan(PLAN, tmp_path, Crowd())
    crowd = Crowd()
    outcome = run_plan(ComparisonPlan(PLAN.methods, PLAN.noises, (0, 1, 2)), tmp_path, crowd)
    assert all(name.endswith("-s2") for name in crowd.started)
    assert len(outcome.compare["cells"]) == 12


def test_other_methods_and_noises_join_what_the_folder_has(
    tmp_path: Path, engine: dict[str, Exception]
) -> None:
    run_plan(
        ComparisonPlan(("fedavg",), ("S40",), (0, 1), {"train": {"rounds": 3}}, title="a test"),
        tmp_path,
        Crowd(),
    )
    crowd = Crowd()
    run_plan(
        ComparisonPlan(("fedprox",), ("S20",), (1,), {"train": {"rounds": 3}, "fedprox": {"mu": 0.5}}),
        tmp_path,
        crowd,
    )
    assert crowd.started == ["fedprox-S20-s1"]
    found = json.loads((tmp_path / "compare.json").read_text())
    assert (found["title"], found["methods"], found["noises"]) == (
        "a test",
        ["fedavg", "fedprox"],
        ["S40", "S20"],
    )
    assert [cell["path"] for cell in found["cells"]] == [
        "cells/fedavg-S40-s0",
        "cells/fedavg-S40-s1",
        "cells/fedprox-S20-s1",
    ]
    assert found["ceiling"] == {"S40": {"0": 80.0, "1": 80.0}}


def test_a_comparison_with_other_settings_does_not_join(
    tmp_path: Path, engine: dict[str, Exception]
) -> None:
    run_plan(ComparisonPlan(("fedavg",), ("S40",), (0,), {"train": {"rounds": 3}}), tmp_path, Crowd())
    crowd = Crowd()
    for tree in (
        {"train": {"rounds": 4}},
        {"train": {"rounds": 3}, "fedavg": {}, "data": {"sites": 3}},
    ):
        with pytest.raises(
            RunFolderError, match=r"another comparison(.|\n)*(rounds|sites): [34] there, [34] here"
        ):
            run_plan(ComparisonPlan(("fedprox",), ("S40",), (0,), tree), tmp_path, crowd)
    assert crowd.started == []


def test_a_plan_file_that_is_damaged_is_replaced(
    tmp_path: Path, engine: dict[str, Exception]
) -> None:
    run_plan(PLAN, tmp_path, Crowd())
    (tmp_path / "plan.json").write_text("{")
    crowd = Crowd()
    assert len(run_plan(PLAN, tmp_path, crowd).compare["cells"]) == 8
    assert crowd.started == []
    assert read_plan(tmp_path) == PLAN


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunFolderError, match="not empty"):
        check_folder(PLAN.cells(), tmp_path)
    with pytest.raises(RunFolderError, match="is a file"):
        check_folder(PLAN.cells(), tmp_path / "thesis.txt")


def test_an_interrupted_comparison_keeps_its_numbers(
    tmp_path: Path, engine: dict[str, Exception]
) -> None:
    engine["ceiling-S40-s0"] = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        run_plan(PLAN, tmp_path, Crowd())
    assert len(json.loads((tmp_path / "compare.json").read_text())["cells"]) == 2
    assert collect(PLAN, PLAN.cells(), {})["cells"] == []


def test_tuned_settings_reach_their_method_and_fedavgs_references_only(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text(
        "[fedavg.train]\nlr = 0.003\n[fedgsca.train]\nlr = 0.03\n[fedgsca.fedgsca]\nwarmup = 20\n"
    )
    plan = ComparisonPlan(
        ("fedavg", "fedprox", "fedgsca"),
        ("S40",),
        (0,),
        {"train": {"lr": 0.5}},
        clean=True,
        tuned=read_tuned(path),
    )
    rates = {cell.name: cell.config.train.lr for cell in plan.cells()}
    assert rates == {
        "fedavg-S40-s0": 0.003, "fedprox-S40-s0": 0.5, "fedgsca-S40-s0": 0.03, "ceiling-S40-s0": 0.003, "fedavg-0-s0": 0.003,
    }  # fmt: skip
    assert [
        cell.config.options["warmup"] for cell in plan.cells() if cell.config.method == "fedgsca"
    ] == [20]


def test_a_tuned_file_for_an_unknown_method_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text("[fedmagic.train]\nlr = 1\n")
    with pytest.raises(ConfigError, match="fedmagic"):
        read_tuned(path)
