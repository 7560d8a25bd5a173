"""The paper's experiments as data: complete, and consistent with the paper."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgsca.errors import ConfigError
from fedgsca.experiment.records import RunResult
from fedgsca.paper import printed_numbers as numbers
from fedgsca.paper.experiments import DATASETS, GRIDS, SCORES, TABLES
from fedgsca.paper.request import Request, check_settings, choose, choose_rows
from fedgsca.paper.run_time import paper_hours, passes_of, seconds_left
from fedgsca.paper.scales import MINI_ROUNDS, warmups
from fedgsca.paper.table_result import Scale
from tests.ninth_method import ninth_method

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "paper" / "tables.json"
ROOTS = tuple(f"{name}:ROOT" for name in DATASETS)
# the methods of the paper, in the order of its tables
METHODS = tuple(numbers.printed("kvasir-symmetric").rows)
grids = pytest.mark.parametrize("name", list(GRIDS))


def make_request(name: str, scale: Scale = "paper", **tree: Any) -> Request:
    grid = GRIDS[name]
    rows = tuple(row.key for row in grid.rows)
    columns = tuple(column.key for column in grid.columns)
    seeds = (0, 1, 2, 3, 4) if scale == "paper" else (0, 1, 2)
    return Request(name, scale, ROOTS, rows, columns, seeds, tree)


def result_after(seconds: float) -> RunResult:
    return RunResult.from_json({"seconds": {"total": seconds}})


@grids
def test_every_printed_number_has_its_place(name: str) -> None:
    grid = GRIDS[name]
    paper = numbers.printed(name)
    rows = {row.key: row for row in grid.rows}
    columns = {column.key: column for column in grid.columns}
    for row, scores in paper.rows.items():
        for column, metrics in scores.items():
            assert grid.includes(rows[row], columns[column])
            assert set(metrics) <= set(grid.metrics)
            assert name not in TABLES or set(metrics) == set(SCORES)
    assert grid.reference in rows
    assert len(rows) == len(grid.rows) and len(columns) == len(grid.columns)


@pytest.mark.parametrize("name", TABLES)
def test_the_paper_prints_all_its_methods_under_every_column(name: str) -> None:
    grid = GRIDS[name]
    paper = numbers.printed(name)
    assert tuple(paper.rows) == METHODS == tuple(row.key for row in grid.rows)
    for scores in paper.rows.values():
        assert set(scores) == {column.key for column in grid.columns}


def test_every_experiment_has_an_entry_in_the_numbers() -> None:
    assert set(numbers.names()) == set(GRIDS)
    assert len(TABLES) == 7
    assert "2507.10611" in numbers.source()


def leaves(tree: Any) -> list[float]:
    """All numbers of a JSON tree; the differences that the paper calls drops are left out."""
    if isinstance(tree, dict):
        branches = [branch for key, branch in tree.items() if "drops" not in key]
    elif isinstance(tree, list):
        branches = tree
    else:
        return [float(tree)] if isinstance(tree, int | float) else []
    values: list[float] = []
    for branch in branches:
        values += leaves(branch)
    return values


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the paper's numbers are not available")
def test_numbers_are_the_published_ones() -> None:
    """Every number of the reference file occurs in ours exactly as often, except derived ones."""
    reference = json.loads(PUBLISHED.read_text())
    ours: list[float] = []
    for name in numbers.names():
        paper = numbers.printed(name)
        for row, columns in paper.rows.items():
            for column, metrics in columns.items():
                for metric, score in metrics.items():
                    if (row, column, metric) not in paper.derivations:
                        ours += [score.mean] if score.std is None else [score.mean, score.std]
    assert Counter(ours) == Counter(leaves(reference))
    first = reference["tables"]["kvasir_hetero_type"]["results"]["FedGSCA"]["0-S40-P20-C20"]["f1"]
    ours_first = numbers.printed("kvasir-types").rows["fedgsca"]["0-S40-P20-C20"]["f1"]
    assert ours_first.mean == first["mean"]


def test_derived_numbers_follow_from_what_they_name() -> None:
    paper = numbers.printed("ablation")
    for (row, column, metric), calculation in paper.derivations.items():
        parts = [76.92]
        if " - " in calculation:
            parts = [float(part) for part in calculation.split(" - ")]
        mean = paper.rows[row][column][metric].mean
        assert mean == pytest.approx(parts[0] - sum(parts[1:]))


@grids
def test_cells_follow_the_papers_protocol(name: str) -> None:
    cells = make_request(name).cells()
    noises = {column.key: column.noise for column in GRIDS[name].columns}
    assert len(cells) == len({cell.name for cell in cells}) == 5 * GRIDS[name].size
    for cell in cells:
        config = cell.config
        train = config.train
        assert (train.rounds, train.epochs, train.batch_size) == (100, 1, 128)
        assert (train.lr, train.weight_decay, train.momentum) == (0.01, 1e-6, 0.0)
        assert train.lr_steps == (0.7, 0.9)
        assert (config.data.image_size, config.model.name) == (224, "resnet50")
        has_real_noise = config.data.source == "chaoyang:ROOT"
        assert config.data.sites == (3 if has_real_noise else 4)
        assert config.noise.spec == ("0" if has_real_noise else noises[cell.column])


@grids
def test_mini_has_the_same_grid_and_reaches_every_stage(name: str) -> None:
    paper = make_request(name).cells()
    mini = make_request(name, "mini").cells()
    assert {(cell.row, cell.column) for cell in mini} == {(cell.row, cell.column) for cell in paper}
    for cell in mini:
        assert cell.config.model.frozen
        assert cell.config.train.rounds == MINI_ROUNDS
        warmup = cell.config.options.get("warmup", 0)
        assert warmup <= 0.2 * (MINI_ROUNDS if isinstance(warmup, int) else 1)


def test_warmups_keep_their_share_of_the_rounds() -> None:
    ten = ("fedelc", "fedfixer", "fednoro", "maskedoptim")
    five = ("feddiv", "fedgsca")
    assert warmups(100) == dict.fromkeys(ten, (10, 10)) | dict.fromkeys(five, (5, 5))
    assert warmups(30) == dict.fromkeys(ten, (10, 3)) | dict.fromkeys(five, (5, 2))
    assert warmups(400)["fednoro"] == (10, 10)


def test_mini_scale_leaves_the_warm_up_of_the_preset_alone() -> None:
    assert "fedgsca" not in warmups(50, "paper") and "fednoro" in warmups(50, "paper")
    cells = make_request("kvasir-symmetric", "mini", preset="paper").cells()
    values = {cell.config.method: cell.config.options.get("warmup") for cell in cells}
    assert values["fedgsca"] == 0 and values["fednoro"] == 5


def test_ablations_remove_one_part_after_the_other() -> None:
    cells = make_request("ablation").cells()
    options = {}
    for cell in cells:
        if cell.column == "kvasir 0-S10-P10-C10":
            options[cell.row] = cell.config.options
    full = options["fedgsca"]

    def changed_keys(row: str) -> set[str]:
        return {key for key in full if options[row][key] != full[key]}

    assert changed_keys("fedgsca-no-rcl") == {"loss"}
    assert changed_keys("fedgsca-no-rcl-atp") == {"loss", "thresholds", "zeta"}
    all_parts = {"loss", "thresholds", "zeta", "scope"}
    assert changed_keys("fedgsca-no-rcl-atp-gss") == all_parts
    assert options["fedgsca-no-rcl-atp-gss"]["scope"] == "own"
    levels = {cell.row for cell in cells if cell.column == "kvasir S40"}
    assert levels == {"fedgsca", "fedgsca-ucl"}


def test_the_default_is_run_once_in_the_study_of_hyper_parameters() -> None:
    assert len(GRIDS["sensitivity"].rows) == 9
    cells = make_request("sensitivity").cells()
    assert len(cells) == 8 * 5
    assert len({cell.config.fingerprint() for cell in cells}) == 8 * 5


def test_experiments_share_cells_of_the_same_name() -> None:
    types = {cell.name: cell.config for cell in make_request("kvasir-types").cells()}
    for other in ("ablation", "stability", "efficiency"):
        shared = [cell for cell in make_request(other).cells() if cell.name in types]
        assert shared
        assert all(types[cell.name] == cell.config for cell in shared)


def test_user_settings_override_the_scale_but_not_the_grid() -> None:
    request = make_request("sensitivity", train={"lr": 0.5}, fedgsca={"zeta": 0.6, "alpha": 0.1})
    configs = {cell.row: cell.config for cell in request.cells()}
    assert configs["fedgsca-zeta-0.9"].options["zeta"] == 0.9
    assert configs["fedgsca"].options["zeta"] == 0.6
    for config in configs.values():
        assert (config.train.lr, config.options["alpha"]) == (0.5, 0.1)
    check_settings({"train": {"lr": 0.5}, "noise": {"candidates": "x.toml"}})
    for tree in ({"seed": 3}, {"noise": {"spec": "S40"}}, {"data": {"source": "x"}}):
        with pytest.raises(ConfigError) as error:
            check_settings(tree)
        assert error.value.code == "table.fixed-setting"


def test_rows_and_columns_are_chosen_by_name() -> None:
    assert choose("--methods", None, METHODS) == tuple(METHODS)
    assert choose("--methods", "FedGSCA, fedavg,", METHODS) == ("fedgsca", "fedavg")
    for text in ("", ",", "fedavg,nix"):
        with pytest.raises(ConfigError) as error:
            choose("--methods", text, METHODS)
        assert error.value.code == "table.unknown-part"
        assert "--methods" in error.value.message


def test_missing_data_is_reported_with_the_way_out() -> None:
    full = make_request("ablation")
    request = Request(full.name, "paper", ("kvasir:ROOT",), full.rows, full.columns, (0,))
    with pytest.raises(ConfigError) as error:
        request.cells()
    assert error.value.code == "table.missing-dataset"
    assert "Chaoyang" in error.value.message
    assert "--scale mini" in error.value.fix


def test_cost_grows_with_the_grid() -> None:
    hours = paper_hours(GRIDS["kvasir-rates"])
    assert hours == pytest.approx(2 * paper_hours(GRIDS["kvasir-symmetric"]))
    seconds = (133 + 133 * 4.2 / 3) * 100
    assert paper_hours(GRIDS["efficiency"], seeds=1) == pytest.approx(seconds / 3600)


def test_time_left_follows_the_finished_cells() -> None:
    cells = make_request("efficiency").cells()
    assert seconds_left(cells, {}) is None
    assert cells[0].row == "fedavg"
    ratio = passes_of("fedgsca") / passes_of("fedavg")
    left = seconds_left(cells, {cells[0].name: result_after(30.0)})
    assert left == pytest.approx(4 * 30 + 5 * 30 * ratio)
    assert seconds_left(cells, {cell.name: result_after(1.0) for cell in cells}) == 0


def test_a_table_has_the_papers_methods_unless_told_otherwise() -> None:
    grid = GRIDS["kvasir-symmetric"]
    assert choose_rows(grid, None) == choose_rows(grid, "paper") == METHODS
    everything = choose_rows(grid, "all")
    assert everything[:8] == METHODS and "feddiv" in everything
    assert choose_rows(grid, "FedDiv,fedavg") == ("feddiv", "fedavg")
    request = replace(make_request("kvasir-symmetric"), rows=("feddiv",))
    assert {cell.row for cell in request.cells()} == {"feddiv"}
    with pytest.raises(ConfigError):
        choose_rows(grid, "fedsomething")
    prescribed_rows = tuple(row.key for row in GRIDS["stability"].rows)
    assert choose_rows(GRIDS["stability"], "paper") == prescribed_rows


def test_a_ninth_method_is_a_row_of_every_table() -> None:
    grid = GRIDS["kvasir-symmetric"]
    size = grid.size
    hours = paper_hours(grid)
    with ninth_method() as method:
        assert [row.label for row in grid.rows][-1] == method.card.title
        assert grid.size == size + 2
        fedavg_hours = hours * 3.0 / sum(passes_of(name) for name in METHODS)
        assert paper_hours(grid) == pytest.approx(hours + method.card.passes / 3.0 * fedavg_hours)
        names = [cell.name for cell in make_request("kvasir-symmetric").cells()]
        assert "fednine-kvasir-S40-s0" in names
        assert len(GRIDS["stability"].rows) == 4  # the paper prescribes these
