"""The simulator of benchmarks.generalisation against the product, and the study of constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.generalisation.constants import list_constants
from benchmarks.generalisation.effects import (
    Baselines,
    Effect,
    RunResult,
    make_table,
    measure_setting,
    summarise_effect,
)
from benchmarks.generalisation.measure import measure_cell
from benchmarks.generalisation.plan import (
    BASELINE,
    CEILING,
    FROZEN,
    MIXED,
    OURS,
    QUICK,
    Cell,
    Dataset,
    Setting,
    cell_config,
    find_datasets,
)
from benchmarks.generalisation.simulate import parse_arguments
from benchmarks.generalisation.simulator import (
    Federation,
    Opinion,
    make_federation,
    run_fedavg,
    run_fedgsca,
    train_evidence,
)
from benchmarks.generalisation.sources import share_features
from benchmarks.generalisation.variants import (
    CONSTANTS,
    DEFAULT,
    MODULE,
    OPTIONS,
    Variant,
    list_constant_variants,
    list_option_variants,
)
from fedgsca.lab.demo_plan import has_pretrained_network
from fedgsca.methods.fedgsca_e import FedGSCAEOptions

needs_weights = pytest.mark.skipif(not has_pretrained_network(), reason="needs the extra [weights]")
SETTING = Setting("tiny", FROZEN, MIXED, "stratified")
NO_NOISE = Setting("tiny", FROZEN, "0", "stratified")


def tiny_dataset() -> Dataset:
    return find_datasets("validation", pathmnist=None, ham=None, quick=True)[0]


@pytest.fixture(scope="module")
def federation() -> Federation:
    config = cell_config(Cell(SETTING, OURS, "auto", 1), tiny_dataset(), QUICK)
    share_features(config)
    return make_federation(config)


@pytest.fixture(scope="module")
def opinions(federation: Federation) -> dict[int, list[Opinion]]:
    return train_evidence(federation)


# ---- the simulator ----


@needs_weights
def test_the_simulator_computes_what_the_product_does(
    federation: Federation, opinions: dict[int, list[Opinion]], tmp_path: Path
) -> None:
    f1 = {
        BASELINE: run_fedavg(federation),
        CEILING: run_fedavg(federation, is_ceiling=True),
        OURS: run_fedgsca(federation, opinions, FedGSCAEOptions()),
    }
    for method, value in f1.items():
        result = measure_cell(Cell(SETTING, method, "auto", 1), tiny_dataset(), QUICK, tmp_path)
        # one image of 48 may change sides by rounding
        assert value == pytest.approx(result.f1, abs=1.0), method


@needs_weights
def test_a_site_falls_back_to_its_labels_when_its_evidence_explains_less_than_before(
    federation: Federation, opinions: dict[int, list[Opinion]]
) -> None:
    weak_opinions = {
        round: [Opinion(opinion.posterior, 0.1, 0.2) for opinion in items]
        for round, items in opinions.items()
    }
    reversed_opinions = {
        round: [Opinion(opinion.posterior[:, ::-1], 0.1, 0.2) for opinion in items]
        for round, items in opinions.items()
    }
    options = FedGSCAEOptions()
    # a posterior that is not used cannot change anything
    assert run_fedgsca(federation, weak_opinions, options) == run_fedgsca(
        federation, reversed_opinions, options
    )


def test_evidence_may_decline_a_little() -> None:
    opinion = Opinion(np.eye(2), share_explained=0.19, plain_explained=0.2)
    assert not opinion.explains_less_than(0.01, 0.02)
    assert opinion.explains_less_than(0.01, 0.005)
    assert opinion.explains_less_than(0.3, 0.02)


# ---- the variants ----


def test_every_constant_of_the_evidence_is_halved_and_doubled() -> None:
    options = FedGSCAEOptions()
    for name, value in list_constants(MODULE).items():
        half, double = CONSTANTS[name]
        assert half == value / 2
        assert double == value * 2 or name == "MAX_RATE"
    for name in ("noise_level", "alpha"):
        assert OPTIONS[name] == (getattr(options, name) / 2, getattr(options, name) * 2)


def test_every_variant_is_listed_once_and_is_valid() -> None:
    variants = [*list_option_variants(), *list_constant_variants()]
    assert len({variant.folder for variant in variants}) == len(variants)
    for variant in variants:
        options = FedGSCAEOptions.model_validate(variant.option_values())
        is_option = variant.name in OPTIONS and variant.name != "train.lr"
        assert (options != FedGSCAEOptions()) == is_option


# ---- the table ----


def result_pair(
    f1: float, fedavg: tuple[float, float, float], ceiling: float
) -> tuple[RunResult, Baselines]:
    by_rate = dict(zip(("0.005", "auto", "0.5"), fedavg, strict=True))
    return RunResult(f1, [0.9], [0.8]), Baselines(by_rate, ceiling)


def test_a_row_has_recoveries_of_at_most_one_and_the_best_learning_rate_of_fedavg() -> None:
    other = Setting("other", FROZEN, MIXED, "stratified")
    effect = summarise_effect(
        {
            SETTING: [result_pair(54.0, (55.0, 50.0, 40.0), 60.0)],
            other: [result_pair(75.0, (50.0, 60.0, 40.0), 70.0)],
            NO_NOISE: [result_pair(69.0, (50.0, 70.0, 40.0), 70.0)],
        }
    )
    assert effect.recovery == pytest.approx((0.4 + 1.0) / 2)
    assert effect.low_recoveries == 1 and effect.worst_recovery == pytest.approx(0.4)
    assert effect.to_tuned == pytest.approx((-1.0 + 15.0) / 2) and effect.below_tuned == 1
    assert effect.worst_clean == pytest.approx(-1.0)


def test_a_conclusion_that_does_not_hold_is_named() -> None:
    default = Effect(60.0, 0.9, 0, 0.8, 2.0, 0, 0.0, 0.95, 0.9)
    assert default.failed_conclusions(default) == []
    other = Effect(60.0, 0.6, 0, 0.8, -0.1, 0, 0.0, 0.93, 0.9)
    assert other.failed_conclusions(default) == ["recovery", "tuned FedAvg", "AUROC"]


@needs_weights
def test_finished_runs_are_read_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = [DEFAULT, Variant("zeta", 0.4)]
    measure_setting(SETTING, tiny_dataset(), QUICK, 1, variants, tmp_path)
    table = make_table(tmp_path, [(SETTING, 1)], variants)
    assert [row[0] for row in table.rows] == ["(default)", "zeta"]

    def fail(*_: object) -> None:
        raise AssertionError("a finished run is repeated")

    monkeypatch.setattr("benchmarks.generalisation.effects.make_federation", fail)
    measure_setting(SETTING, tiny_dataset(), QUICK, 1, variants, tmp_path)
    assert make_table(tmp_path, [(SETTING, 1)], variants) == table
    # a variant without all runs has no row
    assert not make_table(tmp_path, [(SETTING, 1), (NO_NOISE, 1)], variants).rows


def test_the_command_has_no_part_with_test_images() -> None:
    options = parse_arguments(["--out", "x", "--seeds", "1"])
    assert not hasattr(options, "part")
