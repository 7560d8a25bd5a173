"""The suite of benchmarks.generalisation: settings, what is computed from runs, and resumption."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.generalisation.__main__ import main
from benchmarks.generalisation.measure import Ranking, Result, SiteResult
from benchmarks.generalisation.page import agreements, audit_table, make_page, recoveries
from benchmarks.generalisation.plan import (
    GRADES,
    HABITS,
    MIXED,
    ONE_SOURCE,
    REAL,
    SHIFTED,
    Dataset,
    Setting,
    choose_settings,
    make_config,
    noise_spec,
    plan_settings,
)
from benchmarks.generalisation.sources import Recipe, choose_rows, open_suite_table

DATASETS = [
    Dataset("built-in", "synthetic"),
    Dataset("deepdrid", "folder", GRADES, has_real_sites=True, groups=True),
]


def make_result(
    seed: int = 1, noise: str = "S40", ours: float = 60.0, share: float = 0.3
) -> Result:
    """A setting with one noisy site of a hundred labels, 30 of them wrong."""
    ranking = Ranking(0.9, 0.8, 100 * share, 100 * share - 5, 100 * share + 5, True)
    rankings = {"run": ranking, "alone": Ranking(0.7, 0.5), "cleanlab": Ranking(0.8, 0.4)}
    f1 = {"fedavg": 50.0, "fedgsca-e": ours, "ceiling": 70.0}
    setting = Setting("built-in", SHIFTED, noise, 4, "stratified", seed)
    site = SiteResult("site-1", noise, 100, 30, rankings)
    return Result(setting, f1, (site,), 1.0, "abc", 0.02, 0.25)


# ---- settings ----


def test_the_plan_has_all_kinds_of_sites_and_every_setting_a_name_of_its_own() -> None:
    settings = plan_settings(DATASETS, (1, 2))
    assert len({setting.name for setting in settings}) == len(settings)
    assert {setting.sites for setting in settings} == {0, 4, 20, 50}
    real = choose_settings(settings, [f"kind={REAL}"])
    assert {setting.data for setting in real} == {"deepdrid"}
    assert {setting.partition for setting in real} == {"column"}
    # a suite that is not finished has all kinds of sites with one seed first
    assert {setting.kind for setting in settings[:7]} == {ONE_SOURCE, SHIFTED, HABITS, REAL}
    assert [setting.seed for setting in settings if setting.partition != "group"] == sorted(
        setting.seed for setting in settings if setting.partition != "group"
    )


def test_habits_take_the_place_of_the_noise_of_two_sites_of_four() -> None:
    plain, graded = DATASETS
    mixed = Setting("built-in", HABITS, MIXED, 4, "stratified", 1)
    assert noise_spec(mixed, plain) == "U1-S40-U2-C20*"
    assert noise_spec(mixed, graded) == "H30-S40-U2-C20*"
    single = Setting("built-in", HABITS, "S40", 20, "dirichlet", 1)
    assert noise_spec(single, plain) == "U1-S40-U2-S40*"


def test_only_sites_that_differ_are_shifted_and_all_methods_have_one_balance() -> None:
    configs = {}
    for kind in (ONE_SOURCE, SHIFTED, HABITS):
        setting = Setting("deepdrid", kind, MIXED, 4, "stratified", 1)
        configs[kind] = make_config(setting, DATASETS[1], 8, "fedgsca-e")
    assert [config.data.shift for config in configs.values()] == ["none", "strong", "strong"]
    setting = Setting("deepdrid", REAL, MIXED, 0, "column", 1)
    ceiling = make_config(setting, DATASETS[1], 8, "fedavg", is_ceiling=True)
    assert ceiling.noise.oracle and ceiling.data.order == GRADES
    assert ceiling.train.class_balance == configs[SHIFTED].train.class_balance


def test_the_validation_part_cannot_see_test_images() -> None:
    labels = np.array([0, 0, 1, 1, 0, 1])
    split = np.array(["train", "val", "train", "val", "test", "test"])
    rows, names = choose_rows(labels, split, "validation", Recipe())
    assert rows.tolist() == [0, 1, 2, 3]
    assert names.tolist() == ["train", "test", "train", "test"]
    rows, names = choose_rows(labels, split, "test", Recipe())
    assert rows.tolist() == [0, 1, 2, 3, 4, 5] and names.tolist() == split.tolist()


def test_validation_slides_are_not_trained_on_and_both_parts_train_on_the_same_images() -> None:
    tables = {
        part: open_suite_table(f"{part}:tiny-long-tail:").table for part in ("validation", "test")
    }
    train_ids = {}
    for part, table in tables.items():
        assert table.groups is not None
        train = table.rows("train")
        train_ids[part] = table.ids[train].tolist()
        assert not set(table.groups[train]) & set(table.groups[table.rows("test")])
        counts = np.bincount(table.labels[train], minlength=table.num_classes)
        assert counts.max() / counts.min() == pytest.approx(10, rel=0.3)
    assert train_ids["validation"] == train_ids["test"]
    assert set(tables["validation"].ids[tables["validation"].rows("test")]) == set(
        tables["test"].ids[tables["test"].rows("val")]
    )
    assert not any(name.startswith("test/") for name in tables["validation"].ids)


# ---- the page ----


def test_recovery_is_of_means_over_seeds() -> None:
    results = [make_result(1, ours=60), make_result(2, ours=64), make_result(1, "P20", ours=50)]
    assert recoveries(results) == pytest.approx([0.6, 0.0])


def test_an_interval_holds_for_other_seeds_or_does_not() -> None:
    assert agreements([make_result(1), make_result(2, share=0.33)]) == [1, 1]
    assert agreements([make_result(1), make_result(2, share=0.4)]) == [0, 0]
    assert agreements([make_result(1)]) == []


def test_the_audit_is_compared_with_cleanlab_and_the_site_alone() -> None:
    line = audit_table({"all": [make_result()]})[-1]
    assert line == ("| all | 1 | 0.900, 0.700, 0.800 | 0.800, 0.500, 0.400 | 2.00 | 0, 0 |")


def test_a_result_survives_the_disk_and_the_page_has_every_setting() -> None:
    result = make_result()
    assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result
    page = make_page("validation", [result], 10)
    assert "1 of 10 settings" in page and "built-in, shifted, S40, 4 stratified" in page


def test_finished_settings_are_read_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[Setting] = []

    def measure(setting: Setting, dataset: Dataset, rounds: int) -> Result:
        calls.append(setting)
        return make_result(setting.seed)

    monkeypatch.setattr("benchmarks.generalisation.__main__.measure_setting", measure)
    page = tmp_path / "page.md"
    arguments = ["--quick", "--out", str(tmp_path), "--only", "noise=S40", "sites=4", "seed=1"]
    main(arguments)
    count = len(calls)
    main([*arguments, "--write", str(page)])
    assert len(calls) == count > 1
    assert page.read_bytes() == (tmp_path / "validation" / "page.md").read_bytes()
    assert (tmp_path / "validation" / "sites.csv").exists()
    main(["--quick", "--out", str(tmp_path), "--only", "noise=P20", "seed=1", "--minutes", "1e-9"])
    assert len(calls) == count
    assert "the time is over" in capsys.readouterr().out
