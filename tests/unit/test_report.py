"""The report tells what happened, needs no other file, and copes with whatever a run contains."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from subprocess import run as run_process
from typing import Any

import numpy as np
import pytest

from fedgsca.errors import RunFolderError
from fedgsca.federation.records import RoundRecord, SiteRecord
from fedgsca.lab.comparison import write_tables
from fedgsca.lab.records import Comparison
from fedgsca.lab.report import run_page
from fedgsca.lab.report.comparison_columns import explain_numbers, make_tables
from fedgsca.lab.report.comparison_rows import compare_rows, recovery
from fedgsca.lab.report.html_page import write_report
from fedgsca.lab.report.plots import NUM_COLOURS, method_slot, slot_line_style
from fedgsca.lab.report.run_facts import (
    describe_noises,
    flagged_labels,
    flagged_share,
    method_title,
    noise_title,
)
from fedgsca.lab.report.run_reader import read_run
from fedgsca.lab.table import Cell, to_csv, to_markdown
from fedgsca.rng import stream

CLASSES = [
    "normal",
    "tumour <b>grade 2</b> & $\\alpha$",
    "a class with quite a long name for a table",
]
CONFIG = """seed = 0
method = "{method}"

[data]
source = "synthetic"

[noise]
spec = "0-S40"

[train]
rounds = {rounds}

[{method}]
noise_level = 0.1
"""
SIZE = 200
WARMUP = 2
LogLine = dict[str, Any]


def site_line(rng: np.random.Generator, classes: int, rate: float, number: int) -> LogLine:
    """What FedGSCA logs of a site: zeros in warm-up; later it flags 5 % more than is wrong."""
    if number < WARMUP:
        return {
            "num_samples": SIZE,
            "selector": [None] * 6,
            "delta": 0.0,
            "clean": SIZE,
            "pseudo": 0,
            "thresholds": [0.0] * classes,
            "tau": 0.7,
            "guard": 0,
        }
    num_flags = int(SIZE * (rate + 0.05) + 0.5)
    hits = 0.9 * rate * SIZE
    return {
        "num_samples": SIZE,
        "selector": [0.2, 4.0, 0.3, 2.0, 0.7, 0.3],
        "delta": num_flags / SIZE,
        "tau": 0.8,
        "guard": 0,
        "clean": SIZE - num_flags,
        "pseudo": num_flags // 2,
        "thresholds": rng.uniform(0.2, 0.8, classes).tolist(),
        "noisy_precision": hits / num_flags,
        "noisy_recall": 0.9 if rate else None,
        "noisy_auroc": 0.95 if rate else None,
        "pseudo_count": num_flags / 2,
        "pseudo_accuracy": 0.8,
    }


def write_setup(path: Path, classes: list[str], rates: dict[str, float], truth: bool) -> None:
    c = len(classes)
    sites: dict[str, Any] = {}
    for name, rate in rates.items():
        sites[name] = {
            "num_samples": SIZE,
            "given_per_class": [SIZE // c] * c,
            "noise": f"S{rate * 100:.0f}" if rate else "0",
        }
        if truth:
            counts = SIZE / c * (np.eye(c) * (1 - rate) + (1 - np.eye(c)) * rate / (c - 1))
            sites[name]["realised"] = {
                "samples": SIZE,
                "rate": rate,
                "counts": counts.round().astype(int).tolist(),
            }
    setup = {
        "data": {
            "name": "tissue",
            "fingerprint": "d" * 64,
            "classes": classes,
            "shape": [500, 32, 32, 3],
        },
        "test": 100,
        "sites": sites,
        "warnings": ["two <groups> are on both sides"],
        "version": "0.1.0",
        "fingerprint": "c" * 64,
    }
    (path / "setup.json").write_text(json.dumps(setup))


def write_losses(
    path: Path, rates: dict[str, float], number: int, rng: np.random.Generator, truth: bool
) -> None:
    path.mkdir()
    for name, rate in rates.items():
        wrong = rng.random(SIZE) < rate
        losses = np.where(wrong, rng.normal(4, 1.2, SIZE), rng.exponential(0.3, SIZE))
        arrays: dict[str, Any] = {
            "losses": losses,
            "clean": losses < 2,
            "clean_probability": (losses < 2) * 1.0,
            "cut": np.array(0.8),
            "selector": np.array([0.2, 4.0, 0.3, 2.0, 0.7, 0.3]),
            "round": np.array(number),
        }
        if truth:
            arrays["wrong"] = wrong
        np.savez(path / f"{name}.npz", **arrays)


def round_line(number: int, rounds: int, f1: float, classes: int) -> LogLine:
    """A line of metrics.jsonl, without its sites."""
    return {
        "round": number,
        "lr": 0.02 if number < 0.7 * rounds else 0.002,
        "stability": 0.5**number,
        "f1": f1,
        "recall": f1 - 1,
        "precision": f1 + 1,
        "loss": 0.4,
        "confusion": (np.eye(classes) * 30 + 2).astype(int).tolist(),
        "bytes_up": 4000,
        "bytes_down": 4000,
        "refused": {},
    }


def without_truth(line: LogLine) -> LogLine:
    """What a site logs outside of a simulation."""
    return {k: v for k, v in line.items() if not k.startswith(("noisy_", "pseudo_"))}


def make_run(
    path: Path,
    *,
    method: str = "fedgsca",
    rounds: int = 8,
    num_finished: int | None = None,
    sites: int = 2,
    classes: list[str] = CLASSES,
    f1: float = 80.4,
    truth: bool = True,
    seed: int = 0,
) -> Path:
    """A run folder like the engine's; every second site has 40 % wrong labels.

    The mean F1 of the last five rounds is `f1`.
    """
    path.mkdir(parents=True)
    rng = stream(seed, "report", method)
    num_finished = rounds if num_finished is None else num_finished
    rates = {f"site-{i + 1}": 0.4 * (i % 2) if truth else 0.0 for i in range(sites)}
    (path / "config.toml").write_text(CONFIG.format(method=method, rounds=rounds))
    write_setup(path, classes, rates, truth)
    metrics = []
    timing = []
    for t in range(num_finished):
        # ..., f1 - 2, f1 - 1, f1, f1 + 1, f1 + 2
        line = round_line(t, rounds, f1 + max(2 - (num_finished - 1 - t), -10), len(classes))
        line["sites"] = {}
        for name, rate in rates.items():
            site: LogLine = {"num_samples": SIZE}
            if method == "fedgsca":
                site = site_line(rng, len(classes), rate, t)
            line["sites"][name] = site if truth else without_truth(site)
        metrics.append(line)
        seconds = {"sites": dict.fromkeys(rates, 0.5), "exchange": 1.0, "evaluate": 0.2}
        timing.append({"round": t, **seconds, "save": 0.01})
    for name, lines in (("metrics", metrics), ("timing", timing)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if method == "fedgsca" and num_finished > WARMUP:
        write_losses(path / "losses", rates, num_finished - 1, rng, truth)
    if num_finished == rounds:
        scores = {"f1": f1, "recall": f1 - 1, "precision": f1 + 1}
        result = scores | {"method": method, "data": "tissue", "rounds": rounds}
        (path / "result.json").write_text(json.dumps(result))
    return path


def edit_metrics(path: Path, change: Callable[[LogLine], None]) -> None:
    """Apply `change` to every line of a run's log."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        change(line)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def page(path: Path) -> str:
    return write_report(path).read_text(encoding="utf-8")


def sections(text: str) -> list[str]:
    return re.findall(r'<section id="([^"]+)"', text)


def words(text: str) -> str:
    """What a reader sees, without mark-up, style and drawings."""
    text = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", text, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))


@pytest.fixture(scope="module")
def gsca(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a finished FedGSCA run."""
    return page(make_run(tmp_path_factory.mktemp("runs") / "gsca"))


@pytest.fixture
def sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are built but not written out, for tests that read only words: half the time."""
    from matplotlib.figure import Figure

    def blank(self: Figure, file: io.StringIO, **_: object) -> None:
        file.write('<svg viewBox="0 0 1 1"><g /></svg>')

    monkeypatch.setattr(Figure, "savefig", blank)


def test_page_needs_nothing_but_itself(gsca: str) -> None:
    assert "://" not in gsca  # neither links nor XML namespaces
    assert not re.search(r"<(script|link|iframe|img|object)\b|@import|url\((?!#)|\bsrc=", gsca)
    assert set(re.findall(r'href="(.)', gsca)) == {"#"}
    assert len(re.findall("<svg", gsca)) > 8


def test_every_reference_within_the_page_has_its_target_and_ids_are_unique(gsca: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', gsca)
    assert len(ids) == len(set(ids))
    assert {*re.findall(r'href="#([^"]+)"', gsca), *re.findall(r"url\(#([^)]+)\)", gsca)} <= set(
        ids
    )


def test_headline_is_the_mean_of_the_last_five_rounds(gsca: str) -> None:
    text_of_page = words(gsca)
    assert (
        "reached a macro F1 of 80.4 % on the test set, averaged over its last five rounds"
        in text_of_page
    )
    assert "The best round was round 8 with 82.4; the last round reached 82.4." in text_of_page


def test_summary_compares_wrong_and_flagged_labels(gsca: str) -> None:
    text_of_page = words(gsca)
    assert (
        "20 % were made wrong on purpose: none at site-1 and 40 % at site-2 (symmetric)"
        in text_of_page
    )
    # 0.9 of the 80 wrong labels among 10 + 90 of 400; the 10 are below the level of Eq. 13
    text = text_of_page[text_of_page.index("22 % of the given labels") :]
    assert "90 % of the wrong" in text and "72 % of those" in text


def test_labels_not_trained_on_as_given_are_counted_in_one_place() -> None:
    def site(**values: float) -> SiteRecord:
        return SiteRecord(100, {"clean": 80, "delta": 0.2, **values})

    assert flagged_share(site(), 0.1) == pytest.approx(0.2)
    assert flagged_share(site(), 0.3) == 0.0  # below the level of Eq. 13 all labels are kept
    assert flagged_share(site(guard=1), 0.1) == flagged_share(site(fallback=1), 0.1) == 0.0
    assert flagged_share(SiteRecord(100, {"delta": 0.2}), 0.1) is None
    rounds = [
        RoundRecord.from_json({"sites": {"a": {"num_samples": 100, "clean": 50, "delta": 0.5}}}),
        RoundRecord.from_json({"sites": {"b": {"num_samples": 300, "clean": 300, "delta": 0.0}}}),
    ]
    assert flagged_labels(rounds, 0.1) == pytest.approx(50 / 400)


def test_all_sections_of_a_complete_run_are_there(gsca: str) -> None:
    expected = [
        "learning",
        "classes",
        "sites",
        "selection",
        "quality",
        "cost",
        "events",
        "configuration",
    ]
    assert [name for name in sections(gsca) if name in expected] == expected
    assert "c" * 64 in gsca and "d" * 64 in gsca
    assert "noise_level = 0.1" in gsca and "warm-up" in gsca


def test_names_are_escaped_everywhere(gsca: str) -> None:
    assert "<b>grade" not in gsca
    assert "tumour &lt;b&gt;grade 2&lt;/b&gt; &amp; $\\alpha$" in gsca
    assert "two &lt;groups&gt; are" in gsca


def test_pictures_have_a_text_and_tables_have_headers(gsca: str) -> None:
    assert all(alt.strip() for alt in re.findall(r'role="img" aria-label="([^"]*)"', gsca))
    assert gsca.count('role="img"') == gsca.count("<figure>")
    for table in re.findall(r"<table.*?</table>", gsca, flags=re.S):
        assert "<caption>" in table and 'scope="col"' in table and 'scope="row"' in table


def test_drawings_take_their_colours_from_the_page(gsca: str) -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", gsca, flags=re.S))
    assert not re.search(r"#[0-9a-f]{6}\b", drawings)
    css = gsca[: gsca.index("</style>")]
    tokens = set(re.findall(r"var\((--[\w-]+)", gsca)) - {"--v", "--n", "--h"}
    assert all(f"{token}:" in css for token in tokens)
    assert "prefers-color-scheme: dark" in css and "@media print" in css


@pytest.mark.usefixtures("sketch")
def test_method_without_selector_has_no_selector_sections(tmp_path: Path) -> None:
    text = page(make_run(tmp_path / "a", method="fedavg"))
    assert not {"selection", "quality"} & set(sections(text))
    assert "selector" not in words(text) and "warm-up" not in text
    assert "20 % were made wrong on purpose" in words(text)


@pytest.mark.usefixtures("sketch")
def test_without_the_truth_nothing_is_claimed_about_it(tmp_path: Path) -> None:
    text = page(make_run(tmp_path / "a", truth=False))
    assert not {"quality"} & set(sections(text))
    assert "how many of the given labels are wrong is not known" in words(text)
    assert "really wrong" not in text
    assert "taken as clean" in text


def test_unfinished_run_says_how_far_it_is(tmp_path: Path, gsca: str) -> None:
    text = page(make_run(tmp_path / "a", rounds=40, num_finished=12))
    assert "Unfinished: 12 of 40 rounds" in text
    assert "macro F1 of 80.4 %" in words(text)
    assert "Unfinished" not in gsca


@pytest.mark.usefixtures("sketch")
def test_run_that_has_only_begun(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", num_finished=0)
    for name in ("metrics.jsonl", "timing.jsonl"):
        (path / name).unlink()
    text = page(path)
    assert "Unfinished: 0 of 8 rounds" in text and "no round has been evaluated yet" in text
    assert "learning" not in sections(text) and "sites" in sections(text)


@pytest.mark.usefixtures("sketch")
def test_missing_and_damaged_files_cost_only_their_own_section(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a")
    (path / "setup.json").write_text("{ half a file")
    (path / "timing.jsonl").unlink()
    (path / "losses" / "site-1.npz").write_bytes(b"PK damaged")
    with open(path / "metrics.jsonl", "a") as log:
        log.write('{"round": 8, "f1": 8')  # cut short by a crash
    text = page(path)
    assert "macro F1 of 80.4 %" in words(text)
    assert not {"sites"} & set(sections(text))
    assert "site-2: " in text[text.index('id="selection"') :] and "class 0" in text


def test_events_and_refused_updates_are_named_and_drawn(tmp_path: Path) -> None:
    def trouble(line: LogLine) -> None:
        line["sites"]["site-2"]["guard"] = int(line["round"] in (3, 4, 6))
        if line["round"] == 5:
            line["refused"] = {"site-1": "conv1 is <not> finite"}
            del line["sites"]["site-1"]

    path = make_run(tmp_path / "a")
    edit_metrics(path, trouble)
    text_of_page = words(page(path))
    assert (
        "The collapse guard stepped in 3 times and 1 update of site-1 was left out." in text_of_page
    )
    assert (
        "site-2 the collapse guard stepped in 4–5, 7 3" in text_of_page
    )  # rounds from 1, then how many
    assert "site-1 left out: conv1 is <not> finite 6" in text_of_page
    # in the legend of the learning curve
    assert (
        "the collapse guard stepped in" in text_of_page and "an update was left out" in text_of_page
    )


def refuse_site_1(line: LogLine) -> None:
    line["refused"] = {"site-1": "it claims too much"}
    del line["sites"]["site-1"]


def test_a_site_that_never_contributed_does_not_count(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", sites=4)
    honest_page = words(page(path))
    assert "trained one model on 4 sites (800 training images" in honest_page
    assert "No round used" not in honest_page
    edit_metrics(path, refuse_site_1)
    text = words(page(path))
    assert "trained one model on 3 of 4 sites (600 training images" in text
    assert "No round used an update of site-1." in text
    assert "8 updates of site-1 were left out." in text


def test_many_sites_that_never_contributed_are_counted(tmp_path: Path) -> None:
    def leave_one(line: LogLine) -> None:
        line["sites"] = {"site-9": line["sites"]["site-9"]}
        line["refused"] = {f"site-{i}": "no reply" for i in range(1, 9)}

    path = make_run(tmp_path / "a", sites=9, rounds=2)
    edit_metrics(path, leave_one)
    text = words(page(path))
    assert "trained one model on 1 of 9 sites (200 training images" in text
    assert "No round used an update of 8 of the 9 sites." in text
    assert "16 updates of 8 sites were left out." in text


def test_the_expected_score_is_a_curve_beside_the_true_one(tmp_path: Path) -> None:
    def score(line: LogLine) -> None:
        if line["round"] >= 3:
            line["expected_f1"] = 61.5

    path = make_run(tmp_path / "a")
    assert "expected without a true label" not in words(page(path))
    edit_metrics(path, score)
    text_of_page = words(page(path))
    assert "expected without a true label" in text_of_page


def test_validation_and_rounds_without_evaluation(tmp_path: Path) -> None:
    def thin(line: LogLine) -> None:
        line["val_f1"] = line["f1"] - 3
        if line["round"] % 2 == 0:
            for key in ("f1", "recall", "precision", "loss", "confusion", "val_f1"):
                del line[key]

    path = make_run(tmp_path / "a")
    edit_metrics(path, thin)
    assert "validation set" in words(page(path))


@pytest.mark.usefixtures("sketch")
def test_the_truth_is_claimed_only_where_it_is_known(tmp_path: Path) -> None:
    assert "The test labels are not corrupted by the run" in words(page(make_run(tmp_path / "a")))
    run_folder = make_run(tmp_path / "b", truth=False)
    assert "The test labels are not corrupted by the run" in words(page(run_folder)), (
        "the built-in images"
    )
    (run_folder / "config.toml").write_text(
        (run_folder / "config.toml").read_text().replace('"synthetic"', '"my_images"')
    )
    text = words(page(run_folder))
    assert (
        "The test labels are taken as given" in text
        and "corrupted" not in text
        and "truly" not in text
    )


@pytest.mark.usefixtures("sketch")
def test_selector_that_never_started(tmp_path: Path) -> None:
    text = page(make_run(tmp_path / "a", rounds=WARMUP))
    assert "The selector has not started" in words(text)
    assert not {"quality"} & set(sections(text))


@pytest.mark.usefixtures("sketch")
def test_many_sites_and_classes_stay_bounded(tmp_path: Path) -> None:
    names = [f"diagnosis {i} with a long and winding description" for i in range(20)]
    text = page(make_run(tmp_path / "a", sites=40, classes=names, rounds=6))
    drawings = re.findall(
        r"<figure>", text[text.index('id="selection"') : text.index('id="quality"')]
    )
    assert len(drawings) == 12 and "12 of 40 sites" in words(text)
    assert all(f"site-{i + 1}" in words(text) for i in range(40))
    assert len(text) < 1_500_000


def test_report_is_the_same_bytes_again(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a")
    assert page(path) == page(path)


def test_folder_that_is_not_a_run_is_refused_with_a_code(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError) as error:
        write_report(tmp_path)
    assert error.value.code == "run.not-a-run-folder"
    with pytest.raises(RunFolderError) as error:
        write_report(tmp_path / "nowhere")
    assert error.value.code == "run.folder-not-found"
    (tmp_path / "compare.json").write_text("[")
    with pytest.raises(RunFolderError) as error:
        write_report(tmp_path)
    assert error.value.code == "grid.damaged-comparison"
    assert not (tmp_path / "report.html").exists()


# ---- comparisons ----

SCORES = {"fedavg": (70.0, 72.0), "fedprox": (71.0, 72.0), "fedgsca": (78.0, 79.0)}  # by seed


def make_compare(
    path: Path, *, runs: bool = True, scores: dict[str, tuple[float, float]] = SCORES
) -> Path:
    path.mkdir(parents=True)
    cells = []
    for method, values in scores.items():
        for seed, f1 in enumerate(values):
            name = f"{method}-0-S40-s{seed}"
            if runs:
                make_run(path / "cells" / name, method=method, f1=f1, seed=seed)
            cost = {
                "seconds_per_round": 2.0 if method == "fedgsca" else 1.6,
                "bytes_up": 4000,
                "bytes_down": 4000,
            }
            score = {"f1": f1, "recall": f1 - 1, "precision": f1 + 1, "best_f1": f1 + 2}
            cells.append(
                {
                    "method": method,
                    "label": method.title(),
                    "noise": "0-S40",
                    "seed": seed,
                    "path": f"cells/{name}",
                }
                | score
                | cost
            )
    plan = {
        "title": "",
        "data": "tissue",
        "noises": ["0-S40"],
        "methods": list(scores),
        "seeds": [0, 1],
    }
    compare = plan | {"cells": cells, "ceiling": {"0-S40": {"0": 80.0, "1": 82.0}}}
    (path / "compare.json").write_text(json.dumps(compare))
    return path


def read_comparison(path: Path) -> Comparison:
    return Comparison.from_json(json.loads((path / "compare.json").read_text()))


def test_rows_have_mean_deviation_and_recovery_of_the_printed_means(tmp_path: Path) -> None:
    rows = compare_rows(read_comparison(make_compare(tmp_path / "c", runs=False)))
    assert [row.method for row in rows] == ["fedavg", "fedprox", "fedgsca", "ceiling"]
    by_name = {row.method: row for row in rows}
    ours, base = by_name["fedgsca"], by_name["fedavg"]
    assert ours.f1 is not None and ours.f1.mean == 78.5 and ours.f1.std == pytest.approx(0.5**0.5)
    assert ours.recovery == pytest.approx((78.5 - 71.0) / (81.0 - 71.0))
    assert base.recovery == 0.0
    assert by_name["ceiling"].is_reference
    assert not any(row.is_winner for row in rows)  # nobody has compared the runs yet


def test_recovery_is_undefined_below_one_point() -> None:
    assert recovery(75.0, 70.0, 80.0) == pytest.approx(0.5)
    assert recovery(70.96, 70.04, 71.04) == pytest.approx(1.0)  # 71.0, 70.0 and 71.0 in print
    assert recovery(75.0, 70.0, 70.9) is None
    assert recovery(75.0, 70.0, 60.0) is None


def test_no_recovery_where_noise_costs_nothing_and_no_deviation_of_one_seed() -> None:
    cells = [
        {"method": m, "noise": "S10", "seed": 0, "f1": f1}
        for m, f1 in (("fedavg", 80.0), ("fedgsca", 80.2))
    ]
    tree = {
        "noises": ["S10"],
        "methods": ["fedavg", "fedgsca"],
        "cells": cells,
        "ceiling": {"S10": {"0": 80.3}},
    }
    comparison = Comparison.from_json(tree)
    rows = compare_rows(comparison)
    assert all(row.recovery is None for row in rows)
    assert rows[0].f1 is not None and rows[0].f1.std is None
    (table,) = make_tables(comparison)
    assert "Recovery" not in table.head and "recovery" in table.note
    assert compare_rows(Comparison.from_json({"cells": []})) == []


def test_markdown_and_csv_contain_the_same_rows(tmp_path: Path) -> None:
    tables = make_tables(read_comparison(make_compare(tmp_path / "c", runs=False)))
    text = to_markdown(tables)
    assert "| Fedgsca | 78.5 ± 0.7 |" in text and "| 0.75 |" in text
    table = list(csv.DictReader(io.StringIO(to_csv(tables))))
    assert [float(row["f1_mean"]) for row in table] == [71.0, 71.5, 78.5, 81.0]
    assert table[3]["recall_mean"] == "" and float(table[2]["recovery"]) == pytest.approx(0.75)
    assert {row["noise"] for row in table} == {"0-S40"}


def test_what_touched_a_number_is_a_footnote_of_its_row(tmp_path: Path) -> None:
    path = make_compare(tmp_path / "c", runs=False)
    tree = json.loads((path / "compare.json").read_text())
    for cell in tree["cells"]:
        cell["notes"] = ["learning rate 0.05 (auto)"]
    tree["cells"][2]["notes"].append("2 updates of site-1 left out")
    (table,) = make_tables(Comparison.from_json(tree))
    assert list(table.footnotes) == ["2 updates of site-1 left out (seed 0)."]
    cells = [row[0] for row in table.rows]
    assert [isinstance(cell, Cell) and bool(cell.notes) for cell in cells] == [
        False,
        True,
        False,
        False,
    ]
    assert table.note.startswith("Learning rate 0.05 (auto).")  # all rows share it


def test_comparison_page(tmp_path: Path) -> None:
    text = page(make_compare(tmp_path / "c"))
    expected = ["result", "learning", "confusion", "runs"]
    assert sections(text) == expected
    assert "78.5 ± 0.7" in text and "<strong>78.5" not in text  # nobody has won
    assert "://" not in text and "<b>grade" not in text and "Unfinished" not in text
    assert text.count('<table class="heat') == 3


def test_figures_are_vector_files_with_their_fonts_and_numbers(tmp_path: Path) -> None:
    folder = make_compare(tmp_path / "c")
    write_report(folder, with_figures=True)
    names = {path.name for path in (folder / "figures").iterdir()}
    for stem in ("scores", "learning-1"):
        forms = {f"{stem}-{width}in.{form}" for width in ("3.5", "7") for form in ("pdf", "svg")}
        assert forms | {f"{stem}.csv"} <= names
    assert "report-learning-1.svg" in names
    pdf = (folder / "figures" / "scores-3.5in.pdf").read_bytes()
    assert b"FontFile2" in pdf and b"/Type3" not in pdf
    assert b"MediaBox [ 0 0 252 " in pdf  # 3.5 inches of 72 points
    svg = (folder / "figures" / "learning-1-7in.svg").read_text("utf-8")
    assert "<text" not in svg and 'width="504pt"' in svg
    table = list(csv.DictReader((folder / "figures" / "scores.csv").open()))
    assert [row["method"] for row in table] == ["fedavg", "fedprox", "fedgsca", "ceiling"]
    assert float(table[2]["f1_mean"]) == 78.5
    before = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    write_report(folder, with_figures=True)
    assert before == {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    run = folder / "cells" / "fedgsca-0-S40-s0"
    write_report(run, with_figures=True)
    assert {"learning-3.5in.pdf", "confusion-7in.svg", "confusion.csv"} <= {
        path.name for path in (run / "figures").iterdir()
    }


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no LaTeX")
def test_tables_and_figures_fit_into_a_page_of_two_columns(tmp_path: Path) -> None:
    folder = make_compare(tmp_path / "c")
    write_tables(folder, read_comparison(folder))
    write_report(folder, with_figures=True)
    (tmp_path / "page.tex").write_text(
        r"""\documentclass[twocolumn]{article}\usepackage{booktabs,graphicx}
        \setlength{\columnwidth}{3.5in}\begin{document}
        \begin{figure}\includegraphics{c/figures/scores-3.5in.pdf}\end{figure}
        \begin{table*}\input{c/compare.tex}\end{table*}\end{document}"""
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:]


def test_means_over_different_seeds_are_not_ranked(tmp_path: Path) -> None:
    path = make_compare(tmp_path / "c", scores={"fedavg": (70.0, 90.0), "fedgsca": (78.0, 99.0)})
    tree = json.loads((path / "compare.json").read_text())
    tree["cells"] = [cell for cell in tree["cells"] if cell["path"] != "cells/fedgsca-0-S40-s1"]
    comparison = Comparison.from_json(tree)
    assert not any(row.is_winner for row in compare_rows(comparison))
    (table,) = make_tables(comparison)
    assert "common seeds" in table.note


def test_the_meaning_of_the_numbers_is_explained(tmp_path: Path) -> None:
    comparison = read_comparison(make_compare(tmp_path / "c", runs=False))
    assert len(explain_numbers(comparison)) == 4


@pytest.mark.usefixtures("sketch")
def test_comparison_without_run_folders_keeps_its_table(tmp_path: Path) -> None:
    path = make_compare(tmp_path / "c")
    shutil.rmtree(path / "cells")
    assert sections(page(path)) == ["result", "runs"]


@pytest.mark.usefixtures("sketch")
def test_unfinished_comparison_says_so(tmp_path: Path) -> None:
    path = make_compare(tmp_path / "c", runs=False)
    compare = json.loads((path / "compare.json").read_text())
    compare["cells"] = compare["cells"][:4]
    (path / "compare.json").write_text(json.dumps(compare))
    assert "Unfinished: 4 of 6 runs" in page(path)


def test_tables_are_light_enough_for_the_command_line() -> None:
    code = (
        "import sys, fedgsca.lab.report.comparison_columns; "
        "print([m for m in ('torch', 'matplotlib', 'jinja2') if m in sys.modules])"
    )
    process = run_process([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


# ---- extension points ----


def test_the_documented_example_of_a_plot_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code in the docstring of run_page, as somebody would copy it."""
    lines = (run_page.__doc__ or "").split("For example:")[1].splitlines()
    names: dict[str, Any] = {}
    exec(textwrap.dedent("\n".join(lines)), names)
    first, *others = run_page.SECTIONS
    monkeypatch.setattr(run_page, "SECTIONS", (first, names["loss_section"], *others))
    text = page(make_run(tmp_path / "a"))
    assert sections(text)[:3] == ["learning", "loss", "classes"]
    assert "Mean loss" in text and "Lower is better." in words(text)


def test_colours_of_the_paper_are_fixed_and_other_methods_get_their_own() -> None:
    paper = ["fedgsca", "fedavg", "fedprox", "fedcorr", "fednoro", "fedgp", "fedrobust", "fedfixer"]
    assert [method_slot(name) for name in paper] == list(range(NUM_COLOURS))
    slot = method_slot("a-method-of-somebody-else")
    assert slot >= NUM_COLOURS and slot == method_slot("a-method-of-somebody-else")
    styles = {slot_line_style(index) for index in (slot % NUM_COLOURS, slot)}
    assert len(styles) == 2, "where a colour is used again, the dash differs"


def test_names_come_from_the_registries() -> None:
    assert method_title("fednoro") == "FedNoRo" and method_title("unheard-of") == "unheard-of"
    assert noise_title("S40") == "symmetric 40\N{NO-BREAK SPACE}%" and noise_title("0") == "none"
    assert noise_title("Z9") == "Z9"


def test_a_run_of_another_version_can_be_read(tmp_path: Path) -> None:
    """Keys that are missing, unknown or of another type cost nothing else."""
    path = make_run(tmp_path / "a")

    def change(line: LogLine) -> None:
        line["novelty"] = {"a": [1, 2]}
        line["stability"] = "calm"
        del line["bytes_up"]

    edit_metrics(path, change)
    run = read_run(path)
    assert len(run.metrics) == 8 and run.metrics[-1].f1 == pytest.approx(82.4)
    assert run.metrics[-1].stability is None
    assert "learning" in sections(page(path))


def test_noise_specifications_are_explained() -> None:
    assert describe_noises(["S40", "P20"]).replace("\xa0", " ") == (
        "Noise S40: symmetric 40 %; P20: pairflip 20 %."
    )
    assert describe_noises(["0-S40"]).endswith("one part for each site.")
