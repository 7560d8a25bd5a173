"""Comparisons: their runs, what becomes of the results, and what happens when a run fails."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedgsca.lab.runner as runner
from fedgsca.config import Config, Tree, build
from fedgsca.errors import ConfigError, FedgscaError, QuorumError, RunFolderError
from fedgsca.federation.base import RunObserver
from fedgsca.federation.records import RunResult
from fedgsca.federation.run_folder import read_config
from fedgsca.lab.comparison import (
    collect,
    compare,
    read_comparison,
    run_plan,
    write_tables,
)
from fedgsca.lab.plan import (
    ComparisonPlan,
    check_variation,
    choose_methods,
    default_methods,
    model_tree,
    parse_methods,
    parse_models,
    parse_noises,
    parse_rows,
    parse_seeds,
    parse_variation,
    read_plan,
    read_tuned,
)
from fedgsca.lab.report.comparison_columns import overview_table
from fedgsca.lab.report.comparison_rows import compare_rows
from fedgsca.lab.report.html_page import write_report
from fedgsca.lab.runner import GridCell, GridObserver, Shard
from fedgsca.lab.table import text_of
from fedgsca.methods.base import load_methods
from tests.ninth_method import ninth_method
from tests.toys import toy_npz

PLAN = ComparisonPlan(("fedavg", "fedgsca"), ("S40", "0-S40-P20-C20"), (0, 1), title="a test")


class RecordingObserver(GridObserver):
    """An observer that remembers."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self.errors: list[str] = []

    def observe(self, cell: GridCell) -> RunObserver:
        self.started.append(cell.name)
        return RunObserver()

    def on_run_done(self, cell: GridCell, result: RunResult) -> None:
        self.ended.append(cell.name)

    def on_run_failed(self, cell: GridCell, error: Exception) -> None:
        self.errors.append(cell.name)


def make_result(f1: float) -> RunResult:
    tree = {
        "f1": f1,
        "recall": f1 + 1,
        "precision": f1 + 2,
        "best": {"round": 3, "f1": f1 + 3},
        "seconds": {"per_round": 0.5},
        "bytes_per_round": {"up": 10, "down": 20},
        "data": "toy",
    }
    return RunResult.from_json(tree)


@pytest.fixture
def broken_runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseException]:
    """An engine that trains nothing: F1 is 80 without wrong labels, otherwise 60.

    A run that is named in the dictionary fails.
    """
    errors: dict[str, BaseException] = {}

    def run(config: Config, out: Path, *, jobs: int, observer: RunObserver) -> RunResult:
        if out.name in errors:
            raise errors[out.name]
        out.mkdir(parents=True)
        is_clean = config.noise.oracle or config.noise.spec == "0"
        result = make_result(80.0 if is_clean else 60.0)
        (out / "result.json").write_text(json.dumps(result.to_json()))
        return result

    monkeypatch.setattr(runner, "run", run)
    return errors


def error_of(kind: type[FedgscaError], function: Any, *arguments: Any) -> FedgscaError:
    with pytest.raises(kind) as error:
        function(*arguments)
    return error.value


# ---- what the user types ----


def test_seeds_are_a_number_or_a_list() -> None:
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("1") == (0,)
    assert parse_seeds("4,0,4") == (4, 0)
    assert parse_seeds("5,") == (5,)


@pytest.mark.parametrize("text", ["", "0", "-1", "a", "1,b", ",", "1,-2", "2.5"])
def test_other_seeds_are_refused(text: str) -> None:
    error = error_of(ConfigError, parse_seeds, text)
    assert error.code == "grid.invalid-seeds"
    assert repr(text) in error.message


def test_all_methods_are_in_the_order_of_the_papers_tables() -> None:
    names = parse_methods("all")
    assert names == tuple(load_methods())
    assert names[0] == "fedavg"
    assert "fedprox" in names
    paper = parse_methods("Paper")
    assert len(paper) == 8 and paper == names[:8] and paper[-1] == "fedgsca"
    assert parse_methods(" FedAvg, fedgsca,fedavg,") == ("fedavg", "fedgsca")
    assert error_of(ConfigError, parse_methods, " , ").code == "grid.empty-list"


def test_a_noise_has_one_spelling() -> None:
    assert parse_noises(["s40%", "S40", "clean-S40-p20-C20", "0-S40-P20-C20"]) == (
        "S40",
        "0-S40-P20-C20",
    )
    assert "X9" in error_of(ConfigError, parse_noises, ["X9"]).message


# ---- plans ----


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
    cells = ComparisonPlan(("fedgsca",), ("S40",), (0,)).cells()
    assert {cell.role for cell in cells} == {"method"}


def test_the_clean_reference_is_the_cell_of_noise_0() -> None:
    cells = ComparisonPlan(("fedavg",), ("0",), (7,), clean=True).cells()
    assert [cell.name for cell in cells] == ["fedavg-0-s7", "fedavg-0-s7"]
    assert cells[0].config == cells[1].config


def test_options_of_a_method_apply_only_to_it() -> None:
    tree = {"fedprox": {"mu": 0.5}, "train": {"rounds": 3}}
    plan = ComparisonPlan(("fedavg", "fedprox", "fedgsca"), ("S40",), (0,), tree)
    configs = {cell.config.method: cell.config for cell in plan.cells() if cell.role == "method"}
    assert configs["fedprox"].options["mu"] == 0.5
    assert "mu" not in configs["fedgsca"].options
    assert {config.train.rounds for config in configs.values()} == {3}


def test_mistakes_are_reported_before_anything_runs() -> None:
    misspelt = ComparisonPlan(("fedavg", "fedgcsa"), ("S40",), (0,))
    assert "did you mean" in str(error_of(ConfigError, misspelt.cells))
    other_sites = ComparisonPlan(("fedavg",), ("S40", "0-S40"), (0,))
    assert error_of(ConfigError, other_sites.cells).code == "noise.wrong-number-of-parts"


def test_a_plan_survives_its_file(tmp_path: Path, broken_runs: dict[str, BaseException]) -> None:
    assert read_plan(tmp_path) is None
    plan = replace(PLAN, method_settings={"fedavg": {"train": {"lr": 0.5}}})
    run_plan(plan, tmp_path, RecordingObserver())
    assert read_plan(tmp_path) == plan
    keys = {"methods", "noises", "seeds", "title", "method_settings"}
    assert set(json.loads((tmp_path / "plan.json").read_text())) == keys
    (tmp_path / "plan.json").write_text("{")
    assert error_of(RunFolderError, read_plan, tmp_path).code == "grid.damaged-plan"


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
        method_settings=read_tuned(path),
    )
    configs = {cell.name: cell.config for cell in plan.cells()}
    assert {name: config.train.lr for name, config in configs.items()} == {
        "fedavg-S40-s0": 0.003,
        "fedprox-S40-s0": 0.5,
        "fedgsca-S40-s0": 0.03,
        "ceiling-S40-s0": 0.003,
        "fedavg-0-s0": 0.003,
    }
    assert configs["fedgsca-S40-s0"].options["warmup"] == 20


def test_a_tuned_file_for_an_unknown_method_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text("[fedmagic.train]\nlr = 1\n")
    error = error_of(ConfigError, read_tuned, path)
    assert error.code == "grid.unknown-tuned-method"
    assert "fedmagic" in error.message


# ---- results ----


def test_compare_json_has_the_documented_form(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    plan = ComparisonPlan(("fedavg", "fedgsca"), ("S40", "0"), (0, 2), clean=True, title="a test")
    result = run_plan(plan, tmp_path, RecordingObserver())
    tree = json.loads((tmp_path / "compare.json").read_text())
    assert read_comparison(tmp_path) == result.comparison
    keys = {"title", "data", "noises", "methods", "seeds", "cells", "ceiling", "clean", "notes"}
    assert set(tree) == keys
    assert (tree["title"], tree["data"], tree["seeds"]) == ("a test", "toy", [0, 2])
    assert tree["ceiling"] == {"S40": {"0": 80.0, "2": 80.0}}
    assert tree["clean"] == {"0": 80.0, "2": 80.0}
    assert len(tree["cells"]) == 8
    cell = tree["cells"][1]
    assert any("class balance" in note for note in cell.pop("notes"))
    assert cell == {
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
        "class_recall": {},
        "bytes_up": 10,
        "bytes_down": 20,
    }


def test_a_damaged_comparison_is_named(tmp_path: Path) -> None:
    assert error_of(RunFolderError, read_comparison, tmp_path).code == "grid.damaged-comparison"


@pytest.mark.parametrize("content", ["", "{}", '{"f1": null}'])
def test_a_damaged_result_is_named(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "cells" / PLAN.cells()[0].name
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(content)
    error = error_of(RunFolderError, runner.finished_cells, PLAN.cells(), tmp_path)
    assert error.code == "grid.damaged-run"
    assert str(folder) in error.fix


def test_a_failed_run_does_not_stop_the_others(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    broken_runs["fedgsca-S40-s0"] = QuorumError("round.test", "too few sites", fix="wait")
    broken_runs["ceiling-S40-s1"] = RuntimeError("a bug")
    observer = RecordingObserver()
    result = run_plan(PLAN, tmp_path, observer)
    assert result.failures == {
        "fedgsca-S40-s0": "too few sites",
        "ceiling-S40-s1": "RuntimeError: a bug",
    }
    assert observer.errors == list(result.failures)
    assert len(result.comparison.cells) == 7
    assert result.comparison.ceiling["S40"] == {"0": 80.0}


def test_a_second_start_runs_only_what_is_missing(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    broken_runs["fedgsca-S40-s0"] = QuorumError("round.test", "too few sites", fix="wait")
    run_plan(PLAN, tmp_path, RecordingObserver())
    broken_runs.clear()
    observer = RecordingObserver()
    result = run_plan(PLAN, tmp_path, observer)
    assert observer.started == observer.ended == ["fedgsca-S40-s0"]
    assert len(result.comparison.cells) == 8


def test_an_interrupted_comparison_keeps_its_numbers(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    broken_runs["ceiling-S40-s0"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_plan(PLAN, tmp_path, RecordingObserver())
    assert len(read_comparison(tmp_path).cells) == 2
    assert collect(PLAN, PLAN.cells(), {}, tmp_path).cells == ()


# ---- folders ----


def test_a_comparison_can_grow(tmp_path: Path, broken_runs: dict[str, BaseException]) -> None:
    run_plan(PLAN, tmp_path, RecordingObserver())
    observer = RecordingObserver()
    plan = ComparisonPlan(PLAN.methods, PLAN.noises, (0, 1, 2))
    result = run_plan(plan, tmp_path, observer)
    assert all(name.endswith("-s2") for name in observer.started)
    assert len(result.comparison.cells) == 12


def test_other_methods_and_noises_join_what_the_folder_has(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    tree = {"train": {"rounds": 3}}
    plan = ComparisonPlan(("fedavg",), ("S40",), (0, 1), tree, title="a test")
    run_plan(plan, tmp_path, RecordingObserver())
    observer = RecordingObserver()
    later = ComparisonPlan(("fedprox",), ("S20",), (1,), {**tree, "fedprox": {"mu": 0.5}})
    run_plan(later, tmp_path, observer)
    assert observer.started == ["fedprox-S20-s1"]
    comparison = read_comparison(tmp_path)
    assert comparison.title == "a test"
    assert comparison.methods == ("fedavg", "fedprox")
    assert comparison.noises == ("S40", "S20")
    assert [cell.path for cell in comparison.cells] == [
        "cells/fedavg-S40-s0",
        "cells/fedavg-S40-s1",
        "cells/fedprox-S20-s1",
    ]
    assert comparison.ceiling == {"S40": {"0": 80.0, "1": 80.0}}


@pytest.mark.parametrize(
    ("tree", "change"),
    [
        ({"train": {"rounds": 4}}, "train.rounds: 3 there, 4 here"),
        ({"train": {"rounds": 3}, "data": {"sites": 3}}, "data.sites: 4 there, 3 here"),
    ],
)
def test_a_comparison_with_other_settings_does_not_join(
    tree: dict[str, Any], change: str, tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    plan = ComparisonPlan(("fedavg",), ("S40",), (0,), {"train": {"rounds": 3}})
    run_plan(plan, tmp_path, RecordingObserver())
    observer = RecordingObserver()
    other = ComparisonPlan(("fedprox",), ("S40",), (0,), tree)
    error = error_of(RunFolderError, run_plan, other, tmp_path, observer)
    assert error.code == "grid.other-settings"
    assert change in error.message
    assert observer.started == []
    assert not (tmp_path / "out").exists()


def test_a_damaged_plan_file_is_replaced(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    run_plan(PLAN, tmp_path, RecordingObserver())
    (tmp_path / "plan.json").write_text("{")
    observer = RecordingObserver()
    assert len(run_plan(PLAN, tmp_path, observer).comparison.cells) == 8
    assert observer.started == []
    assert not (tmp_path / "out").exists()
    assert read_plan(tmp_path) == PLAN


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    error = error_of(RunFolderError, runner.check_folder, PLAN.cells(), tmp_path)
    assert error.code == "grid.folder-not-empty"
    error = error_of(RunFolderError, runner.check_folder, PLAN.cells(), tmp_path / "thesis.txt")
    assert error.code == "grid.out-is-a-file"


# ---- the Python API ----


def test_compare_from_python(tmp_path: Path, broken_runs: dict[str, BaseException]) -> None:
    config = build({"noise": {"spec": "S40"}, "train": {"rounds": 3}, "fedprox": {"mu": 0.5}})
    result = compare(["fedavg", "fedprox"], config, seeds=2, out=tmp_path / "c")
    assert [(row.method, row.noise, row.seeds) for row in result.rows] == [
        ("fedavg", "S40", (0, 1)),
        ("fedprox", "S40", (0, 1)),
        ("ceiling", "S40", (0, 1)),
    ]
    row = result.row("fedprox")
    assert row.f1 is not None
    assert (row.f1.mean, row.f1.std, row.recovery) == (60.0, 0.0, 0.0)
    with pytest.raises(KeyError):
        result.row("fedavg", "S50")
    files = {path.name for path in (tmp_path / "c").iterdir()}
    assert files >= {"compare.json", "compare.md", "compare.csv", "plan.json", "cells"}


def test_compare_uses_the_settings_of_the_config(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    config = build({"method": "fedprox", "fedprox": {"mu": 0.5}, "train": {"rounds": 3}})
    noises = ["s40%", "0"]
    result = compare(["fedprox", "fedgsca"], config, noises=noises, seeds=[4], out=tmp_path)
    assert result.comparison.noises == ("S40", "0")
    assert result.comparison.seeds == (4,)
    plan = read_plan(tmp_path)
    assert plan is not None
    configs = {cell.config.method: cell.config for cell in plan.cells()}
    assert configs["fedprox"].options["mu"] == 0.5
    assert configs["fedgsca"].train.rounds == 3


def test_compare_raises_after_the_other_runs(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    broken_runs["fedavg-S40-s0"] = RuntimeError("a bug")
    config = build({"noise": {"spec": "S40"}})
    with pytest.raises(FedgscaError) as error:
        compare(["fedavg", "fedgsca"], config, seeds=1, out=tmp_path)
    assert error.value.code == "grid.failed-runs"
    assert "fedavg-S40-s0" in error.value.message
    assert [cell.method for cell in read_comparison(tmp_path).cells] == ["fedgsca"]


def test_a_ninth_method_is_compared_under_its_title(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    with ninth_method():
        config = build({"noise": {"spec": "S40"}})
        result = compare(["fedavg", "fednine"], config, seeds=1, out=tmp_path, ceiling=False)
        assert "fednine" in parse_methods("all")
    assert [row.label for row in result.rows] == ["FedAvg", "Nine Lives"]
    assert result.comparison.title == "FedAvg and Nine Lives on toy"


def test_the_default_methods_come_from_the_registry() -> None:
    names = default_methods()
    assert names[:2] == ("fedavg", "fedgsca") and build({}).method in names
    assert set(names) <= set(load_methods())


def test_a_variant_of_a_method_is_a_row_of_its_own(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text('[plain]\nmethod = "fedgsca"\n[plain.fedgsca]\nloss = "ce"\n')
    plan = ComparisonPlan(("fedgsca", "plain"), ("S40",), (0,), method_settings=read_tuned(path))
    cells = {cell.row: cell.config for cell in plan.cells()}
    assert cells["plain"].method == "fedgsca" and cells["plain"].options["loss"] == "ce"
    assert cells["fedgsca"].options["loss"] != "ce"
    result = run_plan(plan, tmp_path / "out", RecordingObserver())
    assert [row.label for row in result.rows] == ["FedGSCA", "plain"]


# ---- networks as rows ----


def test_networks_are_rows_with_their_own_ranks_and_ceilings(tmp_path: Path) -> None:
    models = ("cnn", "tests.own_networks:build")
    tree: Tree = {
        "data": {"source": str(toy_npz())},
        "train": {"rounds": 1, "batch_size": 16, "threads": 1},
    }
    plan = ComparisonPlan(("fedavg", "fedprox"), ("S40",), (0,), tree, models=models)
    assert ComparisonPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    result = run_plan(plan, tmp_path, GridObserver())
    assert not result.failures
    conditions = [f"S40 with {model}" for model in models]
    rows = [(row.noise, row.method) for row in result.rows]
    methods = ("fedavg", "fedprox", "ceiling")
    assert rows == [(condition, method) for condition in conditions for method in methods]
    write_tables(tmp_path, result.comparison)
    table = (tmp_path / "compare.md").read_text()
    assert table.count("| FedProx") == 5  # overview, scores and class recall
    assert (tmp_path / "compare.csv").read_text().startswith("noise,network,method,")
    overview = overview_table(result.comparison)
    assert overview is not None and list(overview.head[1:]) == conditions
    write_report(tmp_path)
    other = ComparisonPlan(("fedavg",), ("S40",), (0,), tree)
    with pytest.raises(RunFolderError) as caught:
        run_plan(other, tmp_path, GridObserver())
    assert caught.value.code == "grid.other-variation"


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("cnn=absent.pth", "weights.file-not-found"),
        ("resnet18+frozen", "weights.missing-for-frozen-model"),
    ],
)
def test_absent_weights_of_one_network_stop_a_comparison_before_any_run(
    tmp_path: Path, model: str, code: str
) -> None:
    tree: Tree = {"data": {"source": str(toy_npz())}, "train": {"rounds": 1}}
    plan = ComparisonPlan(("fedavg",), ("0",), (0,), tree, models=("cnn", model))
    observer = RecordingObserver()
    with pytest.raises(FedgscaError) as caught:
        run_plan(plan, tmp_path / "out", observer)
    assert caught.value.code == code
    assert observer.started == []
    assert not (tmp_path / "out").exists()


def test_networks_of_a_comparison_are_checked_before_any_run() -> None:
    assert model_tree("resnet18+frozen=a.pth") == {
        "model": {"name": "resnet18", "frozen": True, "weights": "a.pth"}
    }
    assert parse_models(" cnn, cnn ,resnet18") == ("cnn", "resnet18")
    for text, code in (
        ("", "grid.empty-list"),
        ("cnn+cold", "grid.invalid-model"),
        ("cnn=", "grid.invalid-model"),
        ("cmn", "model.unknown"),
        ("cnn=a/b,cnn=a-b", "grid.similar-names"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_models(text)
        assert caught.value.code == code, text


# ---- settings as rows ----

SMALL_TREE: Tree = {
    "data": {"source": str(toy_npz())},
    "train": {"rounds": 1, "batch_size": 16, "threads": 1},
}


def test_varied_settings_are_rows_with_their_own_ranks_and_ceilings(tmp_path: Path) -> None:
    vary = {"data.sites": (2, 4), "federation.participation": (0.5, 1.0)}
    plan = ComparisonPlan(("fedavg",), ("S40",), (0,), SMALL_TREE, vary=vary)
    assert ComparisonPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    result = run_plan(plan, tmp_path, GridObserver())
    assert not result.failures
    conditions = []
    for sites in (2, 4):
        for share in (0.5, 1.0):
            conditions.append(f"S40 with sites={sites}, participation={share}")
    rows = [(row.noise, row.method) for row in result.rows]
    assert rows == [(name, method) for name in conditions for method in ("fedavg", "ceiling")]
    for cell in result.comparison.cells:
        assert cell.settings is not None
        config = read_config(tmp_path / cell.path)
        assert config.data.sites == cell.settings["data.sites"]
        assert config.federation.participation == cell.settings["federation.participation"]
    write_tables(tmp_path, result.comparison)
    assert read_comparison(tmp_path).conditions == tuple(conditions)
    overview = overview_table(result.comparison)
    assert overview is not None and list(overview.head[1:]) == conditions
    assert [text_of(row[0]) for row in overview.rows] == ["FedAvg", "Ceiling"]
    assert (tmp_path / "compare.csv").read_text().startswith("noise,sites,participation,method,")
    assert "Noise S40 with sites=2, participation=1.0" in (tmp_path / "compare.tex").read_text()
    write_report(tmp_path)


def test_a_comparison_of_settings_continues_whatever_their_order(tmp_path: Path) -> None:
    """plan.json has sorted keys: names of runs must not depend on the order of the flags."""
    vary = {"data.sites": (2,), "data.partition": ("stratified", "dirichlet")}
    plan = ComparisonPlan(("fedavg",), ("S40",), (0,), SMALL_TREE, vary=vary)
    result = run_plan(plan, tmp_path, GridObserver())
    write_tables(tmp_path, result.comparison)
    saved_plan = read_plan(tmp_path)
    assert saved_plan is not None
    other_order = replace(plan, vary=dict(reversed(vary.items())))
    for later_plan in (saved_plan, plan, other_order):
        observer = RecordingObserver()
        later_result = run_plan(later_plan, tmp_path, observer)
        assert observer.started == []
        assert later_result.rows == result.rows
    assert compare_rows(read_comparison(tmp_path)) == result.rows


def test_a_comparison_of_settings_takes_more_values_but_no_other_key(tmp_path: Path) -> None:
    plan = ComparisonPlan(("fedavg",), ("0",), (0,), SMALL_TREE, vary={"data.sites": (2,)})
    run_plan(plan, tmp_path, GridObserver())
    observer = RecordingObserver()
    run_plan(replace(plan, vary={"data.sites": (4,)}), tmp_path, observer)
    assert observer.ended == ["fedavg-0-sites-4-s0"]
    joint_plan = read_plan(tmp_path)
    assert joint_plan is not None
    assert joint_plan.vary == {"data.sites": (2, 4)}
    for vary in ({}, {"data.sites": (2,), "train.epochs": (1,)}):
        with pytest.raises(RunFolderError) as caught:
            run_plan(replace(plan, vary=vary), tmp_path, GridObserver())
        assert caught.value.code == "grid.other-variation"


def test_varied_settings_are_checked_before_any_run() -> None:
    assert parse_variation(["data.sites=4, 10,4", "train.augment=none,flips"]) == {
        "data.sites": (4, 10),
        "train.augment": ("none", "flips"),
    }
    for items, code in (
        (["data.sites"], "grid.invalid-variation"),
        (["data.sites=,"], "grid.invalid-variation"),
        (["data.sites=2", "data.sites=4"], "grid.repeated-variation"),
        (["data.labels=a/b,a-b"], "grid.similar-names"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_variation(items)
        assert caught.value.code == code, items
    for vary, code in (
        ({"seed": (0, 1)}, "grid.variation-has-a-flag"),
        ({"noise.oracle": (False, True)}, "grid.variation-has-a-flag"),
        ({"data.source": ("a", "b")}, "grid.varied-and-set"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_variation(vary, SMALL_TREE)
        assert caught.value.code == code, vary
    for key, values in (("data.sitse", (2, 4)), ("data.sites", ("many", 4))):
        with pytest.raises(ConfigError, match=key):
            ComparisonPlan(("fedavg",), ("0",), (0,), SMALL_TREE, vary={key: values}).cells()
    # four kinds of noise for four sites
    with pytest.raises(ConfigError):
        ComparisonPlan(("fedavg",), ("0-S40-P20-C20",), (0,), vary={"data.sites": (4, 10)}).cells()


def test_every_varied_value_of_a_comparison_from_python_is_trained(tmp_path: Path) -> None:
    result = compare(
        ["fedavg"],
        build(SMALL_TREE),
        noises=["0"],
        vary={"data.partition": ["stratified", "dirichlet"]},
        seeds=1,
        out=tmp_path,
    )
    names = [row.noise for row in result.rows]
    assert names == ["0 with partition=stratified", "0 with partition=dirichlet"]
    with pytest.raises(ConfigError) as caught:
        compare(["fedavg"], build(SMALL_TREE), vary={"data.sites": []}, out=tmp_path / "other")
    assert caught.value.code == "grid.empty-variation"


def test_a_row_is_a_method_with_settings_under_a_name_of_ones_own(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    rows = parse_rows(["FedGSCA literal=fedgsca,preset=paper", "Slow=FedAvg,lr=0.001,epochs=2"])
    assert choose_methods(None, rows) == ("fedavg", "fedgsca-literal", "slow")
    assert choose_methods("fedprox", rows) == ("fedprox", "fedgsca-literal", "slow")
    assert rows["slow"].tree == {"method": "fedavg", "train": {"lr": 0.001, "epochs": 2}}
    (row,) = parse_rows(["x=fedgsca,zeta=0.7,data.sites=3"]).values()
    assert row.tree == {"method": "fedgsca", "fedgsca": {"zeta": 0.7}, "data": {"sites": 3}}
    plan = ComparisonPlan(
        choose_methods(None, rows),
        ("S40",),
        (0,),
        SMALL_TREE,
        method_settings={name: one.tree for name, one in rows.items()},
        labels={name: one.label for name, one in rows.items()},
    )
    result = run_plan(plan, tmp_path, GridObserver())
    labels = [row.label for row in result.rows]
    assert labels == ["FedAvg", "FedGSCA literal", "Slow", "Ceiling"]
    literal = next(cell.config for cell in plan.cells() if cell.row == "fedgsca-literal")
    assert literal.preset == "paper" and literal.options["warmup"] == 0


@pytest.mark.parametrize(
    ("items", "code"),
    [
        (["no sign"], "grid.invalid-row"),
        (["x=fedgsca,zeta"], "grid.invalid-row"),
        (["=fedgsca"], "grid.invalid-row"),
        (["fedavg=fedgsca"], "grid.repeated-row"),
        (["ceiling=fedgsca"], "grid.repeated-row"),
        (["a=fedgsca", "A=fedprox"], "grid.repeated-row"),
    ],
)
def test_a_wrong_row_is_explained(items: list[str], code: str) -> None:
    assert error_of(ConfigError, parse_rows, items).code == code


def test_parts_of_a_comparison_share_a_folder(
    tmp_path: Path, broken_runs: dict[str, BaseException]
) -> None:
    """Whoever ends last writes the numbers of all."""
    plan = ComparisonPlan(("fedavg", "fedprox"), ("S40",), (0, 1), SMALL_TREE)
    for index in (1, 2, 3):
        result = run_plan(plan, tmp_path, GridObserver(), shard=Shard(index, 3))
    assert len(result.comparison.cells) == 4 and len(result.comparison.ceiling["S40"]) == 2
