"""A run that another version began: finished ones are readable, unfinished ones are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedgsca.errors import RunFolderError
from fedgsca.federation.rounds import run
from fedgsca.support.version import __version__
from tests.toys import toy_config


def set_version(folder: Path, version: str) -> None:
    path = folder / "setup.json"
    setup = json.loads(path.read_bytes())
    path.write_text(json.dumps({**setup, "version": version}), encoding="utf-8")


def test_an_unfinished_run_of_another_version_is_refused(tmp_path: Path) -> None:
    config = toy_config("fedavg", frozen=True, train__rounds=3)
    assert run(config, tmp_path / "run", stop_after=1) is None
    set_version(tmp_path / "run", "0.2.0")
    with pytest.raises(RunFolderError) as caught:
        run(config, tmp_path / "run")
    assert caught.value.code == "run.other-version"
    assert "0.2.0" in caught.value.fix
    set_version(tmp_path / "run", f"{__version__}.post1")
    assert run(config, tmp_path / "run") is not None


def test_a_finished_run_of_another_version_is_returned(tmp_path: Path) -> None:
    config = toy_config("fedavg", frozen=True, train__rounds=1)
    result = run(config, tmp_path / "run")
    set_version(tmp_path / "run", "0.2.0")
    assert run(config, tmp_path / "run") == result
