"""The results of `make bench` as a file and as a table of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import speed
from benchmarks.speed import BEGIN, END, BenchmarkResult, Measurement

MET = Measurement("a / b", 1.0, 1.05, previous="1.3")
MISSED = Measurement("c / d", 1.2, 1.05, note="warm-up", reason="one more pass")


@pytest.fixture
def results() -> speed.Results:
    return {"start_up": BenchmarkResult("start_up", (MET, MISSED), 90.0, 60.0)}


def test_results_survive_the_file(tmp_path: Path, results: speed.Results) -> None:
    path = tmp_path / "bench.json"
    assert speed.read_results(path) == {}
    speed.write_results(path, results)
    assert speed.read_results(path) == results


def test_the_table_has_every_goal_its_history_and_the_reason(results: speed.Results) -> None:
    text = speed.results_to_markdown(results)
    assert "| a / b | 1.00 | at most 1.05 | 1.3 |  |" in text
    assert "| c / d (warm-up) | 1.20 | at most 1.05 |  | missed: one more pass |" in text
    assert "Not measured: fedavg_over_bare" in text
    assert text.endswith("2 goals, 1 missed; 1.5 minutes, 1.0 of CPU time.")


def test_the_table_replaces_what_is_between_the_markers(
    tmp_path: Path, results: speed.Results
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n")
    for _ in range(2):
        speed.write_docs(page, results)
        text = page.read_text()
        assert text.startswith(f"before\n\n{BEGIN}\n\n| what |") and text.endswith("\n\nafter\n")
        assert "old" not in text and text.count("a / b") == 1
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="needs one line"):
        speed.write_docs(page, results)
    assert page.read_text() == "no markers"


def test_the_page_has_the_markers() -> None:
    text = (Path(speed.__file__).parents[1] / "docs/performance.md").read_text()
    assert text.count(BEGIN) == 1 and text.count(END) == 1


def test_one_benchmark_keeps_the_others(
    tmp_path: Path, results: speed.Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bench.json"
    speed.write_results(path, results)
    monkeypatch.setitem(speed.BENCHMARKS, "feature_pass", lambda folder, quick: iter([MISSED]))
    speed.measure_all(["feature_pass"], False, path, results)
    content = speed.read_results(path)
    assert content["start_up"] == results["start_up"]
    assert content["feature_pass"].rows == (MISSED,)
