"""A run folder belongs to one experiment on one state of the data, and ends with a result."""

from __future__ import annotations

import json
import resource
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedgsca.errors import RunFolderError
from fedgsca.federation.records import RunResult
from fedgsca.federation.result_summary import peak_memory_mb
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds, read_timing
from tests.toys import ROUNDS, toy_config, toy_npz


def test_a_run_does_not_continue_with_other_data(tmp_path: Path) -> None:
    source = tmp_path / "data.npz"
    shutil.copy(toy_npz(), source)
    config = toy_config("fedavg", source=source)
    assert run(config, tmp_path / "run", stop_after=1) is None
    with np.load(source) as archive:
        arrays = dict(archive)
    arrays["train_labels"] = arrays["train_labels"].copy()
    arrays["train_labels"][0] = (arrays["train_labels"][0] + 1) % 3
    np.savez(source, **arrays)
    with pytest.raises(RunFolderError) as error:
        run(config, tmp_path / "run")
    assert error.value.code == "run.data-changed"


def test_a_folder_belongs_to_one_experiment(tmp_path: Path) -> None:
    config = toy_config("fedavg", frozen=True)
    run(config, tmp_path / "run", stop_after=1)
    with pytest.raises(RunFolderError) as error:
        run(toy_config("fedprox", frozen=True), tmp_path / "run")
    assert error.value.code == "run.other-experiment"
    assert "method" in error.value.message
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("mine")
    with pytest.raises(RunFolderError) as error:
        run(config, tmp_path / "notes")
    assert error.value.code == "run.folder-not-empty"


def test_the_result_is_what_the_file_says_and_summarises_the_rounds(tmp_path: Path) -> None:
    result = run(toy_config("fedgsca", frozen=True), tmp_path / "run")
    assert result is not None
    tree = json.loads((tmp_path / "run" / "result.json").read_text())
    assert RunResult.from_json(tree) == result
    rounds, timing = read_rounds(tmp_path / "run"), read_timing(tmp_path / "run")
    assert len(rounds) == len(timing) == ROUNDS
    scores = [record.f1 or 0.0 for record in rounds]
    assert result.f1 == pytest.approx(np.mean(scores[-5:]))
    assert result.best.f1 == max(scores)
    assert result.last.round == ROUNDS - 1
    assert result.seconds.total == pytest.approx(sum(record.total for record in timing))
    mean_bytes = np.mean([record.bytes_up for record in rounds])
    assert result.bytes_per_round.up == pytest.approx(mean_bytes, abs=1)
    events = [site.number("guard") or 0 for record in rounds for site in record.sites.values()]
    assert result.guard_events == sum(events)
    assert set(result.per_class) == {"class 0", "class 1", "class 2"}
    assert run(toy_config("fedgsca", frozen=True), tmp_path / "run") == result, "read from the disk"


@pytest.mark.parametrize(("platform", "peak"), [("linux", 300 * 1024), ("darwin", 300 * 1024**2)])
def test_peak_memory_has_the_unit_of_the_platform(
    platform: str, peak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=peak))
    assert peak_memory_mb() == 300.0
