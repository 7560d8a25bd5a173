"""`fedgsca data example`: a folder on which the README's commands can be tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsca.cli import execute
from fedgsca.data.load import load
from fedgsca.data.readers.synthetic_source import NUM_TEST, NUM_TRAIN, write_example_folder
from fedgsca.errors import RunFolderError


def test_the_folder_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my_images"
    assert execute(["data", "example", str(folder)]) == 0
    assert f"{NUM_TRAIN + NUM_TEST} artificial images" in capsys.readouterr().out
    table = load(str(folder))
    assert len(table.rows("train")) == NUM_TRAIN
    assert len(table.rows("test")) == NUM_TEST
    assert table.groups is not None


def test_an_existing_folder_stays(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError) as error:
        write_example_folder(tmp_path)
    assert error.value.code == "data.example-exists"


def test_another_seed_is_another_hospital(tmp_path: Path) -> None:
    for name, seed in (("a", "0"), ("b", "1"), ("c", "1")):
        assert execute(["data", "example", str(tmp_path / name), "--seed", seed]) == 0
    first, second, same = (load(str(tmp_path / name)).fingerprint for name in "abc")
    assert first != second
    assert second == same
