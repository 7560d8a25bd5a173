"""The paper's experiments as data: complete, and what they say they are."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedgsca.errors import ConfigError
from fedgsca.paper import printed_numbers as numbers
from fedgsca.paper.experiments import DATASETS, GRIDS, METHODS, SCORES, TABLES
from fedgsca.paper.request import Request, check_settings, choose
from fedgsca.paper.run_time import PASSES, paper_hours, seconds_left
from fedgsca.paper.scales import MINI_ROUNDS, warmups
from fedgsca.paper.table_result import Scale

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "paper" / "tables.json"
ROOTS = tuple(f"{name}:ROOT" for name in DATASETS)
grids = pytest.mark.parametrize("name", list(GRIDS))


def request(name: str, scale: Scale = "paper", **tree: Any) -> Request:
    grid = GRIDS[name]
    rows, columns = (
        tuple(line.key for line in grid.lines),
        tuple(column.key for column in grid.columns),
    )
    return Request(
        name, scale, ROOTS, rows, columns, (0, 1, 2, 3, 4) if scale == "paper" else (0, 1, 2), tree
    )


@grids
def test_every_printed_number_has_its_place(name: str) -> None:
    grid, found = GRIDS[name], numbers.printed(name)
    lines, columns = (
        {line.key: line for line in grid.lines},
        {column.key: column for column in grid.columns},
    )
    for row, scores in found.rows.items():
        for column, metrics in scores.items():
            assert grid.runs(lines[row], columns[column])
            assert set(metrics) <= set(grid.metrics)
    if name in TABLES:
        assert all(
            set(found.rows[row][column]) == set(SCORES) for row in METHODS for column in columns
        )
    assert grid.reference in lines
    assert len(lines) == len(grid.lines) and len(columns) == len(grid.columns)


def test_no_experiment_is_without_numbers_entry() -> None:
    assert set(numbers.names()) == set(GRIDS)
    assert len(TABLES) == 7
    assert "2507.10611" in numbers.source()


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the paper's numbers are not here")
def test_numbers_are_the_published_ones() -> None:
    """Every number of the reference file occurs in ours exactly as often, derived ones apart."""
    reference = json.loads(PUBLISHED.read_text())

    def leaves(tree: Any) -> list[float]:
        if isinstance(tree, dict):
            return [
                value for key, part in tree.items() if "drops" not in key for value in leaves(part)
            ]
        if isinstance(tree, list):
            return [value for part in tree for value in leaves(part)]
        return [float(tree)] if isinstance(tree, int | float) else []

    ours: list[float] = []
    for name in numbers.names():
        known = numbers.printed(name)
        for row, columns in known.rows.items():
            for column, metrics in columns.items():
                for metric, score in metrics.items():
                    if (row, column, metric) not in known.derived:
                        ours += [score.mean] if score.std is None else [score.mean, score.std]
    assert Counter(ours) == Counter(leaves(reference))
    first = reference["tables"]["kvasir_hetero_type"]["results"]["FedGSCA"]["0-S40-P20-C20"]["f1"]
    assert (
        numbers.printed("kvasir-types").rows["fedgsca"]["0-S40-P20-C20"]["f1"].mean == first["mean"]
    )


def test_derived_numbers_follow_from_what_they_name() -> None:
    known = numbers.printed("ablation")
    for (row, column, metric), how in known.derived.items():
        parts = [float(part) for part in how.split(" - ")] if " - " in how else [76.92]
        assert known.rows[row][column][metric].mean == pytest.approx(parts[0] - sum(parts[1:]))


@grids
def test_cells_follow_the_papers_protocol(name: str) -> None:
    cells = request(name).cells()
    noises = {column.key: column.noise for column in GRIDS[name].columns}
    assert len(cells) == len({cell.name for cell in cells}) == 5 * GRIDS[name].size
    for cell in cells:
        train, config = cell.config.train, cell.config
        assert (train.rounds, train.epochs, train.batch_size, train.lr, train.weight_decay) == (
            100,
            1,
            128,
            0.01,
            1e-6,
        )
        assert (train.momentum, train.lr_steps, config.data.image_size, config.model.name) == (
            0.0,
            (0.7, 0.9),
            224,
            "resnet50",
        )
        assert config.data.sites == (3 if config.data.source == "chaoyang:ROOT" else 4)
        assert config.noise.spec == (
            "0" if config.data.source == "chaoyang:ROOT" else noises[cell.column]
        )


@grids
def test_mini_has_the_same_grid_and_reaches_every_stage(name: str) -> None:
    paper, mini = request(name).cells(), request(name, "mini").cells()
    assert {(cell.row, cell.column) for cell in mini} == {(cell.row, cell.column) for cell in paper}
    for cell in mini:
        assert cell.config.model.frozen
        assert cell.config.train.rounds == MINI_ROUNDS
        warmup = cell.config.options.get("warmup", 0)
        assert warmup <= 0.2 * (MINI_ROUNDS if isinstance(warmup, int) else 1)


def test_warmups_keep_their_share_of_the_rounds() -> None:
    assert warmups(100) == {"fedfixer": (10, 10), "fedgsca": (5, 5), "fednoro": (10, 10)}
    assert warmups(30) == {"fedfixer": (10, 3), "fedgsca": (5, 2), "fednoro": (10, 3)}
    assert warmups(400)["fednoro"] == (10, 10)


def test_ablations_remove_one_part_after_the_other() -> None:
    cells = {
        cell.row: cell.config.options
        for cell in request("ablation").cells()
        if cell.column == "kvasir 0-S10-P10-C10"
    }
    full = cells["fedgsca"]
    changed = {
        row: {key for key in full if options[key] != full[key]} for row, options in cells.items()
    }
    assert changed["fedgsca-no-rcl"] == {"loss"}
    assert changed["fedgsca-no-rcl-atp"] == {"loss", "thresholds", "zeta"}
    assert changed["fedgsca-no-rcl-atp-gss"] == {"loss", "thresholds", "zeta", "selector"}
    assert cells["fedgsca-no-rcl-atp-gss"]["selector"] == full["selector"] | {"scope": "own"}
    levels = {cell.row for cell in request("ablation").cells() if cell.column == "kvasir S40"}
    assert levels == {"fedgsca", "fedgsca-ucl"}


def test_the_default_is_run_once_in_the_study_of_hyper_parameters() -> None:
    assert len(GRIDS["sensitivity"].lines) == 9
    cells = request("sensitivity").cells()
    assert len(cells) == 8 * 5
    assert len({cell.config.fingerprint() for cell in cells}) == 8 * 5


def test_experiments_share_cells_of_the_same_name() -> None:
    types = {cell.name: cell.config for cell in request("kvasir-types").cells()}
    for other in ("ablation", "stability", "efficiency"):
        shared = [cell for cell in request(other).cells() if cell.name in types]
        assert shared
        assert all(types[cell.name] == cell.config for cell in shared)


def test_what_the_user_sets_beats_the_scale_but_not_the_grid() -> None:
    cells = request("sensitivity", train={"lr": 0.5}, fedgsca={"zeta": 0.6, "alpha": 0.1}).cells()
    found = {cell.row: cell.config for cell in cells}
    assert found["fedgsca-zeta-0.9"].options["zeta"] == 0.9
    assert found["fedgsca"].options["zeta"] == 0.6
    assert {(config.train.lr, config.options["alpha"]) for config in found.values()} == {(0.5, 0.1)}
    check_settings({"train": {"lr": 0.5}, "noise": {"candidates": "x.toml"}})
    for tree in ({"seed": 3}, {"noise": {"spec": "S40"}}, {"data": {"source": "x"}}):
        with pytest.raises(ConfigError, match="varies or fixes"):
            check_settings(tree)


def test_rows_and_columns_are_chosen_by_name() -> None:
    assert choose("--methods", None, METHODS) == tuple(METHODS)
    assert choose("--methods", "FedGSCA, fedavg,", METHODS) == ("fedgsca", "fedavg")
    for text in ("", ",", "fedavg,nix"):
        with pytest.raises(ConfigError, match="--methods"):
            choose("--methods", text, METHODS)


def test_missing_data_is_told_with_the_way_out() -> None:
    asked = request("ablation")
    with pytest.raises(ConfigError, match="Chaoyang") as error:
        Request(asked.name, "paper", ("kvasir:ROOT",), asked.rows, asked.columns, (0,)).cells()
    assert "--scale mini" in error.value.fix


def test_cost_grows_with_the_grid() -> None:
    assert set(PASSES) == set(METHODS)
    assert paper_hours(GRIDS["kvasir-rates"]) == pytest.approx(
        2 * paper_hours(GRIDS["kvasir-symmetric"])
    )
    assert paper_hours(GRIDS["efficiency"], seeds=1) == pytest.approx(
        (133 + 133 * 4.2 / 3) * 100 / 3600
    )


def test_time_left_follows_the_finished_cells() -> None:
    cells = request("efficiency").cells()
    assert seconds_left(cells, {}) is None
    one = {cells[0].name: {"seconds": {"total": 30.0}}}
    assert cells[0].row == "fedavg"
    assert seconds_left(cells, one) == pytest.approx(
        4 * 30 + 5 * 30 * PASSES["fedgsca"] / PASSES["fedavg"]
    )
    assert seconds_left(cells, {cell.name: {"seconds": {"total": 1.0}} for cell in cells}) == 0
