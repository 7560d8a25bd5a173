"""The paper's experiments: valid comparisons, whose rows are those of the printed numbers."""

from __future__ import annotations

import pytest

from fedgsca.errors import ConfigError
from fedgsca.lab.paper import (
    DATASETS,
    EXPERIMENTS,
    MINI_ROUNDS,
    REAL,
    make_plan,
    printed_numbers,
    read_numbers,
    warmups,
)
from fedgsca.lab.plan import ComparisonPlan, default_methods
from fedgsca.lab.records import Comparison
from fedgsca.lab.report.comparison_columns import make_tables
from fedgsca.lab.report.comparison_rows import compare_rows, rank_agreement
from fedgsca.methods.base import paper_methods
from tests.toys import toy_npz


def mini_plan(name: str) -> ComparisonPlan:
    return make_plan(EXPERIMENTS[name], "mini", str(toy_npz()))


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_is_a_valid_comparison_and_survives_its_file(name: str) -> None:
    plan = mini_plan(name)
    cells = plan.cells()
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.config.train.rounds for cell in cells} == {MINI_ROUNDS}
    assert ComparisonPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("name", list(read_numbers()["experiments"]))
def test_printed_numbers_belong_to_rows_and_noises_of_their_experiment(name: str) -> None:
    numbers = printed_numbers(name)
    experiment = EXPERIMENTS[name]
    assert numbers is not None and set(numbers.rows) <= set(experiment.rows)
    for columns in numbers.rows.values():
        assert set(columns) <= set(experiment.noises)
        for scores in columns.values():
            assert all(0 < score.mean < 20_000 for score in scores.values())


def test_tables_of_methods_have_those_of_the_paper_and_the_default_one() -> None:
    rows = EXPERIMENTS["kvasir-types"].rows
    assert rows[:8] == paper_methods() and set(default_methods()) <= set(rows)


def test_variants_are_fedgsca_with_other_options() -> None:
    configs = {cell.row: cell.config for cell in mini_plan("ablation").cells()}
    assert {config.method for config in configs.values()} == {"fedgsca"}
    assert configs["no-rcl"].options["loss"] == "ce" != configs["full"].options["loss"]
    plan = mini_plan("sensitivity")
    assert plan.reference == "zeta-0.8" and plan.label_of("zeta-0.7") == "ζ₀ = 0.7"


def test_paper_scale_needs_the_papers_data() -> None:
    experiment = EXPERIMENTS["chaoyang"]
    for source in (None, "odir:x", str(toy_npz())):
        with pytest.raises(ConfigError) as caught:
            make_plan(experiment, "paper", source)
        assert caught.value.code == "table.missing-dataset"
    with pytest.raises(ConfigError) as caught:
        make_plan(experiment, "paper", "chaoyang:/images")
    assert caught.value.code == "table.weights-required"
    tree = {"model": {"weights": "none"}}
    plan = make_plan(experiment, "paper", "chaoyang:/images", tree=tree)
    assert any("random weights" in note for note in plan.notes)
    assert plan.noises == ("0",) and plan.tree["data"]["sites"] == DATASETS["chaoyang"].sites
    assert plan.tree["model"]["name"] == "resnet50" and len(plan.seeds) == 5
    assert plan.publication is not None and "0" in plan.publication.rows["fedavg"]


def test_real_labels_are_replaced_on_other_data() -> None:
    plan = mini_plan("chaoyang")
    assert REAL not in plan.noises and len(plan.noises) == 1
    assert plan.publication is not None and plan.noises[0] in plan.publication.rows["fedavg"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"tree": {"data": {"sites": 3}}}, "table.fixed-setting"),
        ({"tree": {"seed": 3}}, "table.fixed-setting"),
        ({"rows": ("fedmagic",)}, "table.unknown-part"),
        ({"noises": ("S99",)}, "table.unknown-part"),
    ],
)
def test_what_the_experiment_decides_cannot_be_set(options: dict[str, object], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(EXPERIMENTS["kvasir-types"], "mini", "synthetic", **options)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_warm_ups_are_shortened_in_proportion() -> None:
    full, half = warmups(100), warmups(50)
    assert full and half.keys() == full.keys()
    for name, options in full.items():
        assert half[name]["warmup"] == -(-options["warmup"] // 2)


def test_printed_numbers_and_the_agreement_of_orders_are_in_the_table() -> None:
    plan = mini_plan("kvasir-symmetric")
    assert plan.publication is not None
    cells = []
    for i, method in enumerate(plan.methods[:4]):
        cells.append({"method": method, "noise": "S40", "seed": 0, "f1": 50.0 + i})
    comparison = Comparison.from_json(
        {"noises": ["S40"], "cells": cells, "publication": plan.publication.to_json()}
    )
    (table,) = make_tables(comparison)
    assert list(table.head[:3]) == ["Method", "Macro F1", "Printed F1"]
    rho = rank_agreement(compare_rows(comparison))
    # in print: FedProx, FedAvg, FedCorr, FedRobust; here the reverse order of the table
    assert rho == pytest.approx(-0.6) and "rho" in table.note
    assert rank_agreement(compare_rows(comparison)[:2]) is None
