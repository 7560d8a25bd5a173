"""The suite of benchmarks.generalisation: what is computed from runs, and how it continues."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.generalisation.__main__ import parse_settings
from benchmarks.generalisation.constants import list_constants
from benchmarks.generalisation.correction import correct_first_tenth
from benchmarks.generalisation.plan import (
    BASELINE,
    CEILING,
    CLEANLAB,
    FROZEN,
    FULL,
    MIXED,
    OURS,
    QUICK,
    Cell,
    Dataset,
    Rate,
    Setting,
    cell_config,
    filter_cells,
    find_datasets,
    plan_cells,
)
from benchmarks.generalisation.results import CellResult, RankingScore, ResultFolder, SiteAudit
from benchmarks.generalisation.sources import Recipe, choose_rows, open_suite_table
from benchmarks.generalisation.suite import Suite
from benchmarks.generalisation.summary import (
    AuditPair,
    collect_scores,
    rank_methods,
    summarise,
    summarise_audits,
    summarise_setting,
    tuned_lr,
)
from benchmarks.generalisation.tables import make_page, to_markdown
from fedgsca.errors import QuorumError
from fedgsca.lab.demo_plan import has_pretrained_network
from fedgsca.methods.base import load_methods

SETTING = Setting("ham10000", FROZEN, MIXED, "stratified")
METHODS = (BASELINE, "fedprox", OURS)


def result(
    method: str,
    f1: float,
    lr: Rate = "auto",
    seed: int = 1,
    val_f1: float | None = None,
    sites: tuple[SiteAudit, ...] = (),
) -> CellResult:
    return CellResult(Cell(SETTING, method, lr, seed), f1, val_f1, 1.0, "v", sites)


def audit(
    wrong: int, estimate: float, precision: float | None = None, labels: int = 100
) -> SiteAudit:
    auroc = None if wrong == 0 else 0.9
    return SiteAudit(
        "site-1", labels, wrong, estimate, estimate - 3, estimate + 3, True, auroc, precision
    )


# ---- scores ----


def test_equal_scores_share_a_rank() -> None:
    ranks = rank_methods({"a": 3.0, "b": 2.0, "c": 2.0, "d": 1.0})
    assert ranks == {"a": 1.0, "b": 2.5, "c": 2.5, "d": 4.0}


def test_fedavg_is_tuned_on_validation_and_compared_on_test() -> None:
    results = [
        result(BASELINE, 50.0, 0.005, val_f1=60.0),
        result(BASELINE, 55.0, "auto", val_f1=40.0),
        result(BASELINE, 30.0, 0.5, val_f1=30.0),
        result(OURS, 52.0, val_f1=50.0),
        result(CEILING, 65.0, val_f1=50.0),
    ]
    scores = collect_scores(results)
    val_scores = collect_scores(results, on_validation=True)
    assert tuned_lr(val_scores, SETTING) == 0.005
    row = summarise_setting(SETTING, scores, val_scores, METHODS)
    assert row.tuned == 50.0 and row.to_tuned == pytest.approx(2.0)
    assert row.recovery == pytest.approx(-0.3)


def test_a_learning_rate_that_is_not_finished_prevents_tuning() -> None:
    results = [result(BASELINE, 50.0, 0.005), result(BASELINE, 55.0, "auto")]
    assert tuned_lr(collect_scores(results), SETTING) is None


def test_a_row_uses_only_seeds_that_fedavg_fedgsca_and_the_ceiling_have() -> None:
    results = [
        result(BASELINE, 50.0, seed=1),
        result(BASELINE, 90.0, seed=2),
        result(OURS, 60.0, seed=1),
        result(CEILING, 70.0, seed=1),
        result(CEILING, 95.0, seed=2),
    ]
    scores = collect_scores(results)
    row = summarise_setting(SETTING, scores, scores, METHODS)
    assert (row.seeds, row.baseline, row.ours, row.ceiling) == (1, 50.0, 60.0, 70.0)


def test_the_overview_names_what_is_missed() -> None:
    results = [
        result(BASELINE, 50.0),
        result(BASELINE, 55.0, 0.005),
        result(BASELINE, 40.0, 0.5),
        result(OURS, 54.0),
        result(CEILING, 70.0),
        result("fedprox", 51.0),
    ]
    scores = collect_scores(results)
    overview = summarise([summarise_setting(SETTING, scores, scores, METHODS)])
    name = f"ham10000 {MIXED} stratified"
    assert overview.worst_recovery is not None
    assert overview.worst_recovery[0] == name
    assert overview.worst_recovery[1] == pytest.approx(0.2)
    assert overview.low_recoveries == (name,)
    assert overview.mean_recovery == overview.capped_recovery == pytest.approx(0.2)
    assert overview.below_tuned == (name,)
    assert overview.ranks == {BASELINE: 3.0, "fedprox": 2.0, OURS: 1.0}


# ---- the audit ----


def test_the_audit_is_compared_with_cleanlab_site_by_site() -> None:
    pairs = [
        AuditPair(SETTING, 1, audit(20, 24.0, 0.9), RankingScore(0.8, 0.6)),
        # one label of ten fewer, then three
        AuditPair(SETTING, 1, audit(20, 30.0, 0.5), RankingScore(0.8, 0.6)),
        AuditPair(SETTING, 1, audit(20, 20.0, 0.3), RankingScore(0.95, 0.6)),
        AuditPair(SETTING, 1, audit(0, 2.0), None),
        AuditPair(SETTING, 1, audit(0, 4.0), None),
    ]
    summary = summarise_audits(pairs)
    assert (summary.noisy_sites, summary.clean_sites, summary.pairs) == (3, 2, 3)
    assert summary.worse_precision == 2 and summary.much_worse_precision == 1
    assert summary.worse_auroc == 1
    assert summary.near_count == pytest.approx(2 / 3)
    assert summary.low_clean == pytest.approx(0.5)
    assert summary.coverage == pytest.approx(2 / 5)
    assert summary.ratio == pytest.approx((0.9 + 0.5 + 0.3) / 1.8)


# ---- the plan ----


def datasets() -> list[Dataset]:
    return find_datasets("test", pathmnist=Path("path.npz"), ham=Path("ham"))


def test_the_plan_covers_the_suite_and_every_cell_has_a_name_of_its_own() -> None:
    cells = plan_cells(datasets(), FULL, (201, 202, 203))
    assert len({cell.name for cell in cells}) == len(cells)
    settings = {cell.setting for cell in cells}
    assert {setting.data for setting in settings} == {
        "built-in",
        "built-in-long-tail",
        "pathmnist",
        "pathmnist-long-tail",
        "ham10000",
    }
    assert {setting.partition for setting in settings} == {"stratified", "dirichlet", "group"}
    assert {setting.noise for setting in settings} == {MIXED, "S40", "P20", "C20", "0"}
    assert {cell.method for cell in cells} - {CEILING, CLEANLAB} == set(load_methods())


def test_the_first_seed_of_the_main_methods_comes_first() -> None:
    cells = plan_cells(datasets(), FULL, (201, 202, 203))
    first_cells = cells[:10]
    assert {cell.seed for cell in first_cells} == {201}
    assert {cell.method for cell in first_cells} <= {BASELINE, OURS, CEILING}
    assert {cell.setting.noise for cell in first_cells} == {MIXED}


def test_only_filters_by_every_key() -> None:
    cells = plan_cells(datasets(), FULL, (201, 202, 203))
    part = filter_cells(cells, ["data=ham10000", "method=fedavg,fedgsca-e", "noise=S40"])
    assert part
    for cell in part:
        assert cell.setting.data == "ham10000" and cell.setting.noise == "S40"
        assert cell.method in (BASELINE, OURS)


def test_a_ceiling_leaves_out_wrong_labels_and_settings_apply_to_fedgsca_only() -> None:
    dataset = Dataset("tiny", "synthetic", True)
    setting = replace(SETTING, data="tiny")
    further_settings = parse_settings(["fedgsca-e.zeta=0.4"])
    ceiling = cell_config(Cell(setting, CEILING, 0.05, 1), dataset, QUICK, further_settings)
    ours = cell_config(Cell(setting, OURS, 0.05, 1), dataset, QUICK, further_settings)
    assert ceiling.noise.oracle and ceiling.method == BASELINE
    assert not ours.noise.oracle and ours.options["zeta"] == 0.4


# ---- the data ----


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


# ---- resumption and the page ----


def test_finished_cells_are_read_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [Cell(SETTING, method, "auto", 1) for method in (BASELINE, OURS, CEILING)]
    runs: list[str] = []

    def fake(cell: Cell, *_: object) -> CellResult:
        if len(runs) == 2:
            raise KeyboardInterrupt
        runs.append(cell.method)
        return result(cell.method, 50.0 + len(runs), sites=(audit(20, 22.0, 0.9),))

    monkeypatch.setattr("benchmarks.generalisation.suite.measure_cell", fake)
    ham = Dataset("ham10000", "suite:validation:ham10000:x", True)

    def suite() -> Suite:
        return Suite("validation", cells, [ham], FULL, tmp_path, say=lambda text: None)

    with pytest.raises(KeyboardInterrupt):
        suite().run(cells)
    assert runs == [BASELINE, OURS]
    runs.clear()
    suite().run(cells)
    assert runs == [CEILING]
    assert (tmp_path / "validation" / "summary.json").is_file()
    text = (tmp_path / "validation" / "table.md").read_text()
    assert "3 of 3 runs are finished" in text


def test_a_run_that_fails_is_reported_and_the_others_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [Cell(SETTING, method, "auto", 1) for method in (BASELINE, OURS)]

    def fake(cell: Cell, *_: object) -> CellResult:
        if cell.method == BASELINE:
            raise QuorumError("round.quorum-not-reached", "too few sites", fix="none")
        return result(cell.method, 50.0)

    monkeypatch.setattr("benchmarks.generalisation.suite.measure_cell", fake)
    ham = Dataset("ham10000", "suite:validation:ham10000:x", True)
    suite = Suite("validation", cells, [ham], FULL, tmp_path, say=lambda text: None)
    suite.run(cells)
    assert [suite.is_finished(cell) for cell in cells] == [False, True]
    text = (tmp_path / "validation" / "table.md").read_text()
    assert f"{cells[0].name} failed: [round.quorum-not-reached] too few sites" in text


def test_a_result_survives_the_disk(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    before = result(OURS, 61.5, val_f1=60.0, sites=(audit(20, 22.0, 0.9), audit(0, 1.0)))
    folder.write(before)
    assert folder.read(before.cell) == before
    assert folder.read(Cell(SETTING, OURS, 0.5, 1)) is None
    folder.write_cleanlab(SETTING, 1, {"site-1": RankingScore(0.9, None)})
    assert folder.read_cleanlab(SETTING, 1) == {"site-1": RankingScore(0.9, None)}


def test_the_page_shows_a_dash_for_what_is_not_finished() -> None:
    page = make_page("test", [result(BASELINE, 50.0), result(OURS, 60.0)], {}, METHODS, 9)
    text = to_markdown(page)
    assert "2 of 9 runs are finished" in text
    assert "| ham10000 | frozen | 0-S40-P20-C20 | stratified | – |" in text


# ---- correction and constants ----


def test_the_first_tenth_of_the_list_is_corrected() -> None:
    given = {"a": np.zeros(20, np.int64)}
    truth = {"a": np.ones(20, np.int64)}
    labels, marks = correct_first_tenth({"a": np.arange(20)[::-1]}, given, truth)
    assert labels["a"].sum() == 2 and labels["a"][-2:].tolist() == [1, 1]
    assert np.flatnonzero(marks["a"]).tolist() == [18, 19]
    assert given["a"].sum() == 0


def test_another_constant_applies_to_defaults_of_parameters() -> None:
    name, value = next(iter(list_constants("fedgsca.evidence").items()))
    code = (
        "from benchmarks.generalisation.constants import use_constant\n"
        f"use_constant('fedgsca.evidence', {name!r}, {value * 2!r})\n"
        "import inspect\n"
        "from fedgsca import evidence\n"
        "from fedgsca.evidence import train_heads\n"
        f"print(evidence.{name} == {value * 2!r}, train_heads is evidence.train_heads)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.split() == ["True", "True"]


@pytest.mark.skipif(not has_pretrained_network(), reason="needs the extra [weights]")
def test_the_smallest_suite_runs_and_writes_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.generalisation.__main__ import main

    arguments = ["--quick", "--out", str(tmp_path), "--only", "data=tiny", "partition=stratified"]
    main([*arguments, f"noise={MIXED}", "method=fedavg,fedgsca-e,ceiling", "lr=auto"])
    output = capsys.readouterr().out
    assert "3 of" in output and "| tiny | frozen |" in output
    main([*arguments, f"noise={MIXED}", "method=fedavg,fedgsca-e,ceiling", "lr=auto"])
    assert "3 of 3 runs are finished" in capsys.readouterr().out
