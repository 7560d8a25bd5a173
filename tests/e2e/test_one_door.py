"""One way to an experiment: command line, Python and TOML give the same one, and read data once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedgsca
from fedgsca import cli
from fedgsca.config import loading
from fedgsca.federation import data_source
from tests.unit.test_choose_settings import write_folder

SETTINGS: dict[str, Any] = {
    "method": "fedavg",
    "noise": "S20",
    "rounds": 1,
    "seed": 3,
    "device": "cpu",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Large images of several patients: network, size and division all depend on the data."""
    return write_folder(tmp_path / "images", size=128, columns=",group")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a configuration was built and a table loaded."""
    counts: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def counted_function(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return original(*args, **options)

        monkeypatch.setattr(module, name, counted_function)

    count(fedgsca.Config, "model_validate")
    count(data_source, "load")
    return counts


def run_from_python(folder: Path, out: Path) -> None:
    fedgsca.run(fedgsca.Config.load(data=folder, **SETTINGS), out)


def run_from_toml(folder: Path, out: Path) -> None:
    file = out.with_suffix(".toml")
    tree = loading.collect(settings={"data": folder, **SETTINGS})
    lines = [f"{key} = {value!r}" for key, value in loading.flatten(tree).items()]
    file.write_text("\n".join(lines))
    assert cli.execute(["run", "--config", str(file), "--out", str(out), "--quiet"]) == 0


def run_from_command_line(folder: Path, out: Path) -> None:
    words = ["run", "--data", f"{folder}/", "--out", str(out)]
    for name, value in SETTINGS.items():
        words += [f"--{name}", str(value)]
    assert cli.execute(words) == 0


def test_the_same_folder_is_the_same_experiment(folder: Path, tmp_path: Path) -> None:
    texts = []
    for number, run in enumerate((run_from_python, run_from_toml, run_from_command_line)):
        run(folder, tmp_path / f"run-{number}")
        texts.append((tmp_path / f"run-{number}" / "config.toml").read_text())
    assert texts[0] == texts[1] == texts[2]
    config = fedgsca.load_run(tmp_path / "run-0").config
    assert config.data.partition == "group"
    if config.model.frozen:  # without the extra `weights` there is no frozen network to choose
        assert config.model.feature_size == 128


def test_a_run_builds_once_and_loads_once(
    folder: Path, tmp_path: Path, calls: Counter[str]
) -> None:
    run_from_command_line(folder, tmp_path / "a")
    assert calls == {"model_validate": 1, "load": 1}
    calls.clear()
    run_from_python(folder, tmp_path / "b")
    assert calls == {"model_validate": 1, "load": 1}
