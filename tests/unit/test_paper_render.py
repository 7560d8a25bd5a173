"""A reproduced table has the same content in every format: marks, gaps or ranks, and its data."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedgsca.paper.figures import draw_figures
from fedgsca.paper.figures_time import time_to_peak
from fedgsca.paper.html_table import to_html
from fedgsca.paper.latex_table import to_latex
from fedgsca.paper.ranking import panels, score_group, spearman
from fedgsca.paper.render import print_result, render
from fedgsca.paper.table_result import Scale, Score, TableResult, TableRow, TableSeries
from fedgsca.paper.text_tables import to_csv, to_markdown
from fedgsca.support.latex import escape
from tests.paper_results import METHODS, confusion, curves, table, unfinished

NOISE = "0-S10-P10-C10"
CLASSES = ("normal", "adenoma <b>&</b>", "a class with quite a long name")


def simple(
    paper: Mapping[str, float | None], ours: Mapping[str, float | None], scale: Scale = "mini"
) -> TableResult:
    """One column, one metric: key -> number."""
    rows = []
    for key in dict.fromkeys([*paper, *ours]):
        paper_value = paper.get(key)
        our_value = ours.get(key)
        paper_scores = {} if paper_value is None else {"S40": {"f1": Score(paper_value)}}
        our_scores = {}
        if our_value is not None:
            our_scores = {"S40": {"f1": Score(our_value, None, {"0": our_value})}}
        rows.append(TableRow(key, key, paper_scores, our_scores, {}))
    base = table(columns=("S40",), metrics=("f1",), seeds=1, scale=scale)
    return replace(base, rows=tuple(rows), reference=rows[-1].key)


@pytest.fixture(scope="module")
def experiments() -> dict[str, TableResult]:
    """One of every kind."""
    keys = [name.lower() for name in METHODS]
    matrices = {"real": {key: confusion(3, 0.5 + 0.05 * i, key) for i, key in enumerate(keys)}}
    sensitivity = {
        "zeta-0.7": "ζ₀ = 0.7",
        "zeta-0.8": "ζ₀ = 0.8",
        "beta-linear": "β linear 0.75 → 0.55",
        "beta-0.55": "β cosine",
    }
    steady = {"fedavg": "FedAvg", "fedgp": "FedGP", "css": "FedGSCA (CSS)", "fedgsca": "FedGSCA"}
    racers = {"fedavg": "FedAvg", "fedgsca": "FedGSCA"}
    return {
        "comparison": table(),
        "real thing": table(scale="paper", shift=-0.4, seeds=5),
        "chaoyang": table(
            name="chaoyang", columns=("real",), series=TableSeries(CLASSES, matrices)
        ),
        "ablation": ablation(),
        "sensitivity": table(
            name="sensitivity", columns=(NOISE,), reference="zeta-0.8", labels=sensitivity
        ),
        "stability": table(
            name="stability",
            columns=(NOISE,),
            metrics=("stability", "f1"),
            labels=steady,
            paper={},
            series=curves((NOISE,), list(steady)),
        ),
        "efficiency": table(
            name="efficiency",
            columns=(NOISE,),
            metrics=("seconds_per_round", "peak_f1", "minutes_to_peak", "f1"),
            labels=racers,
            reference="fedavg",
            series=curves((NOISE,), list(racers)),
        ),
    }


def ablation() -> TableResult:
    """Parts are removed under one noise; UCL is run under others, without numbers of the paper."""
    labels = {
        "full": "FedGSCA",
        "no-rcl": "without RCL",
        "no-rcl-atp": "without RCL, ATP (fixed 0.7)",
        "ucl": "UCL instead of RCL",
    }
    parts, levels = ("kvasir " + NOISE,), ("kvasir S10", "kvasir S40")
    full = table(
        name="ablation",
        columns=(*parts, *levels),
        labels=labels,
        reference="full",
        paper={"full": 90.0, "no-rcl": 88.5},
    )
    rows = []
    for row in full.rows:
        columns = {"full": full.columns, "ucl": levels}.get(row.key, parts)
        paper = {c: v for c, v in row.paper.items() if c in parts}
        ours = {c: v for c, v in row.ours.items() if c in columns}
        p_value = {c: v for c, v in row.p_value.items() if c in columns}
        rows.append(TableRow(row.key, row.label, paper, ours, p_value))
    return replace(full, rows=tuple(rows))


# ---- marks ----


def test_best_and_second_are_marked_among_the_papers_numbers_and_among_ours() -> None:
    group = score_group(
        simple({"a": 80.0, "b": 79.0, "c": 70.0}, {"a": 60.0, "b": 61.0, "c": 62.0}), "S40", "f1"
    )
    assert [entry.paper_mark for entry in group.entries] == ["best", "second", ""]
    assert [entry.our_mark for entry in group.entries] == ["", "second", "best"]
    assert [(entry.paper_rank, entry.our_rank) for entry in group.entries] == [
        (1, 3),
        (2, 2),
        (3, 1),
    ]


def test_equal_as_printed_is_equal_and_leaves_no_second() -> None:
    group = score_group(simple({}, {"a": 80.001, "b": 79.999, "c": 70.0}), "S40", "f1")
    assert [entry.our_mark for entry in group.entries] == ["best", "best", ""]
    group = score_group(simple({}, {"a": 80.0, "b": 70.0, "c": 70.0}), "S40", "f1")
    assert [entry.our_mark for entry in group.entries] == ["best", "second", "second"]


def test_a_missing_number_is_never_marked_and_has_no_rank() -> None:
    group = score_group(
        simple({"a": 80.0, "b": 79.0, "c": 70.0}, {"a": None, "b": 61.0, "c": 62.0}), "S40", "f1"
    )
    assert [entry.our_mark for entry in group.entries] == ["", "second", "best"]
    assert [(entry.paper_rank, entry.our_rank) for entry in group.entries] == [
        (None, None),
        (1, 2),
        (2, 1),
    ]
    alone = score_group(simple({}, {"a": 80.0, "b": None}), "S40", "f1")
    assert [entry.our_mark for entry in alone.entries] == ["", ""]


def test_less_is_better_where_it_is_a_cost() -> None:
    result = table(columns=("S40",), metrics=("seconds_per_round",))
    entries = score_group(result, "S40", "seconds_per_round").entries
    fastest = min(entries, key=lambda entry: entry.ours.mean if entry.ours else 0.0)
    assert fastest.our_mark == "best" and fastest.our_rank == 1


def test_numbers_that_are_no_percentages_keep_three_digits_whatever_their_size() -> None:
    scores = {"a": 0.001234, "b": 27.12, "c": 133.0}
    rows = tuple(
        TableRow(key, key, {}, {"S40": {"stability": Score(value, value / 10)}}, {})
        for key, value in scores.items()
    )
    text = to_markdown(replace(table(columns=("S40",), metrics=("stability",)), rows=rows))
    assert "**0.00123** ± 0.00012" in text and "<u>27.1</u> ± 2.7" in text and "| 133 ± 13" in text


def test_a_subset_without_the_reference_has_no_differences_to_draw() -> None:
    full = ablation()
    rows = tuple(row for row in full.rows if row.key != full.reference)
    result = replace(full, rows=rows)
    assert [drawing.name for drawing in draw_figures(result)] == ["rcl-ucl"]
    assert "UCL instead of RCL" in to_markdown(result) and "UCL instead of RCL" in to_latex(result)


@pytest.mark.parametrize(
    ("a", "b", "rho"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 - 6 * 4 / (5 * 24)
        ([1, 2, 2, 3], [1, 2, 2, 3], 1.0),
        ([1, 2], [1, 2], None),
        ([1, 1, 1], [1, 2, 3], None),
    ],
)
def test_spearman(a: list[float], b: list[float], rho: float | None) -> None:
    assert spearman(a, b) == (None if rho is None else pytest.approx(rho))


def test_a_variant_of_other_columns_is_not_shown_as_unfinished() -> None:
    shown = {panel.title: [row.key for row in panel.rows] for panel in panels(ablation())}
    assert shown["kvasir " + NOISE] == ["full", "no-rcl", "no-rcl-atp"]
    assert shown["kvasir S40"] == ["full", "ucl"]


def test_time_to_peak_is_the_first_round_that_reaches_fedavgs_best_of_the_same_seed() -> None:
    f1 = {
        "fedavg": {"0": [50.0, 70.0, 60.0], "1": [50.0, 60.0, 80.0]},
        "fedgsca": {"0": [70.0, 75.0, 80.0], "1": [70.0, 75.0, 79.0]},
    }
    clock = {key: {"0": [1.0, 2.0, 3.0], "1": [10.0, 20.0, 30.0]} for key in f1}
    assert time_to_peak(f1, clock, "fedavg") == [2.0, 30.0]
    assert time_to_peak(f1, clock, "fedgsca") == [1.0, None]


# ---- formats ----


def test_markdown_marks_numbers_and_shows_gaps_at_paper_scale_only() -> None:
    result = simple(
        {"a": 80.0, "b": 79.0, "c": 70.0}, {"a": 60.0, "b": 61.0, "c": 62.0}, scale="paper"
    )
    text = to_markdown(result)
    assert "| a | **80.00** | 60.00 | −20.00 |" in text
    assert "| b | <u>79.00</u> | <u>61.00</u> | −18.00 |" in text
    mini = to_markdown(replace(result, scale="mini"))
    assert "| a | **80.00** | 60.00 | 1 → 3 |" in mini and "−20.00" not in mini


def test_csv_has_every_number_once() -> None:
    result = unfinished(table(seeds=3))
    lines = list(csv.DictReader(io.StringIO(to_csv(result))))
    assert len(lines) == len(result.rows) * len(result.columns) * len(result.metrics)
    by_place = {(line["row"], line["column"], line["metric"]): line for line in lines}
    for row in result.rows:
        for column in result.columns:
            for metric in result.metrics:
                line = by_place[row.key, column, metric]
                ours = row.ours.get(column, {}).get(metric)
                assert float(line["paper_mean"]) == row.paper[column][metric].mean
                assert line["ours_mean"] == ("" if ours is None else str(ours.mean))
                by_seed = dict(part.split(":") for part in line["ours_by_seed"].split())
                assert {seed: float(value) for seed, value in by_seed.items()} == (
                    {} if ours is None else ours.values
                )
                assert (line["scale"], line["data"], line["gap"]) == ("mini", "pathmnist_small", "")
    real = csv.DictReader(io.StringIO(to_csv(table(scale="paper"))))
    assert all(
        float(line["gap"]) == float(line["ours_mean"]) - float(line["paper_mean"]) for line in real
    )


def test_terminal_shows_marks_also_without_styles(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(unfinished(table()))
    text = capsys.readouterr().out
    assert "mini scale on pathmnist_small" in text and "Unfinished: 24 of 48 runs are done." in text
    assert "▲" in text and "△" in text and "[1/3]" in text
    best = max(table().rows, key=lambda row: row.paper["S40"]["f1"].mean)
    assert re.search(rf"{best.label} +▲{best.paper['S40']['f1'].mean:.2f}", text)


def test_latex_escapes_everything() -> None:
    assert escape(r"50% of a_b & {x} #1 $2 ~ ^ \ < β₀ → 0.5 − 1") == (
        r"50\% of a\_b \& \{x\} \#1 \$2 \textasciitilde{} \textasciicircum{} \textbackslash{} "
        r"$<$ $\beta$$_0$ $\rightarrow$ 0.5 $-$ 1"
    )
    assert escape("漢") == "?" and escape("two\nlines, p\N{NO-BREAK SPACE}<") == "two lines, p~$<$"


def test_latex_is_balanced_and_every_line_has_the_declared_cells(
    experiments: dict[str, TableResult],
) -> None:
    for result in [*experiments.values(), *map(unfinished, experiments.values())]:
        text = to_latex(result)
        bare = re.sub(r"\\[{}]", "", text[text.index(r"\begin") :])
        assert bare.count("{") == bare.count("}") and bare.replace(r"\$", "").count("$") % 2 == 0
        for name in ("table*", "tabular"):
            assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1
        spec = re.search(r"\\begin\{tabular\}\{(.*)\}\n", text)
        assert spec is not None
        declared_cells = len(re.sub(r"@\{(?:[^{}]|\{[^{}]*\})*\}|\{30mm\}", "", spec[1]))
        body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
        for line in body.splitlines():
            if line.endswith(r"\\"):
                spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
                cells = len(re.split(r"(?<!\\)&", line)) - len(spans) + sum(spans)
                assert cells <= declared_cells
                assert cells == declared_cells or len(result.metrics) % 3, line


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(experiments: dict[str, TableResult], tmp_path: Path) -> None:
    tables = "\n".join(to_latex(result) for result in [*experiments.values(), unfinished(table())])
    head = (
        r"\documentclass{article}\usepackage[a4paper,margin=20mm]{geometry}"
        r"\usepackage{booktabs}\begin{document}"
    )
    (tmp_path / "all.tex").write_text(f"{head}\n{tables}\n\\end{{document}}\n", encoding="utf-8")
    process = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stdout[-2000:]
    assert "Overfull" not in process.stdout


# ---- everything together ----


@pytest.fixture(scope="module")
def rendered(
    experiments: dict[str, TableResult], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Path]]:
    out = tmp_path_factory.mktemp("rendered")
    return {name: render(result, out / name) for name, result in experiments.items()}


def test_every_experiment_writes_every_format_labelled_and_alone(
    experiments: dict[str, TableResult], rendered: dict[str, list[Path]]
) -> None:
    figure_names = {
        "comparison": {"order"},
        "real thing": {"scores"},
        "chaoyang": {"order", "confusion-real", "confusion-real-all"},
        "ablation": {"ablation", "rcl-ucl"},
        "sensitivity": {"sensitivity"},
        "stability": {"stability"},
        "efficiency": {"efficiency"},
    }
    for name, result in experiments.items():
        paths = rendered[name]
        out = paths[0].parent
        names = {path.relative_to(out).as_posix() for path in paths}
        pictures = set()
        for figure in figure_names[name]:
            pictures |= {f"figures/{figure}.png", f"figures/{figure}.svg"}
        assert names == {"table.md", "table.csv", "table.tex", "report.html"} | pictures
        page = (out / "report.html").read_text()
        assert "http" not in page and "<script" not in page and "@import" not in page
        scale = result.scale
        for path in paths:
            if path.suffix == ".png":
                continue
            text = path.read_text()
            if path.suffix == ".svg":
                ElementTree.fromstring(text)
                assert "<text" in text
            assert f"{scale} scale" in text.lower() or f"{scale}," in text.lower(), path
            assert result.data in text.replace("\\_", "_"), path


def test_the_same_result_gives_the_same_bytes(
    experiments: dict[str, TableResult], rendered: dict[str, list[Path]], tmp_path: Path
) -> None:
    for name in ("stability", "chaoyang"):
        for a, b in zip(rendered[name], render(experiments[name], tmp_path / name), strict=True):
            assert a.read_bytes() == b.read_bytes(), a.name


def test_an_unfinished_table_says_so_and_renders(
    experiments: dict[str, TableResult], tmp_path: Path
) -> None:
    for name in ("comparison", "ablation"):
        render(unfinished(experiments[name]), tmp_path / name)
        page = (tmp_path / name / "report.html").read_text()
        assert "Unfinished" in page and "[1/3]" in page and "Mini scale" in page
        assert "Unfinished" in (tmp_path / name / "table.tex").read_text()


def test_a_table_without_any_run_shows_the_papers_numbers(tmp_path: Path) -> None:
    full = table(scale="paper")
    rows = tuple(TableRow(row.key, row.label, row.paper, {}, {}) for row in full.rows)
    result = replace(full, rows=rows, finished_runs=0)
    paths = render(result, tmp_path)
    assert not [path for path in paths if path.suffix == ".png"]
    assert "No run is finished yet" in (tmp_path / "report.html").read_text()
    assert "| FedAvg | 65.37 ± 0.30 | – | – |" in (tmp_path / "table.md").read_text()


def test_a_figure_leaves_out_seeds_that_have_not_come_as_far() -> None:
    series = curves((NOISE,), ["fedavg"])
    by_seed = dict(series.stability[NOISE]["fedavg"])
    by_seed["1"] = []
    by_seed["2"] = by_seed["2"][:5]
    series = replace(series, stability={NOISE: {"fedavg": by_seed}})
    result = table(name="stability", columns=(NOISE,), labels={"fedavg": "FedAvg"}, series=series)
    assert [drawing.name for drawing in draw_figures(result)] == ["stability"]


def test_differences_and_sites_are_in_every_long_rendering() -> None:
    result = table(seeds=3)
    column = result.columns[0]
    sites = {column: {row.key: {"site-1": 70.0, "site-2": 65.5} for row in result.rows}}
    result = replace(result, series=replace(result.series, site_f1=sites))
    markdown = to_markdown(result)
    page = to_html(result, [])
    for text in (markdown, page):
        assert "95 % interval" in text and "p (Holm)" in text
        assert "site-2" in text and "65.5" in text
    lines = to_csv(result).splitlines()
    head = lines[0].split(",")
    assert {"p_holm", "difference", "difference_low", "difference_high"} <= set(head)
    two_seeds = to_markdown(table(seeds=2))
    assert "95 % interval" not in two_seeds and "\\*" not in two_seeds, "no test, no stars"
