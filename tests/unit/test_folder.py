"""A run folder belongs to one experiment on one state of the data."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedgsca.engine.rounds import run
from fedgsca.errors import RunFolderError
from tests.toys import toy_config, toy_npz


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    source = tmp_path / "data.npz"
    shutil.copy(toy_npz(), source)
    config = toy_config("fedavg", source=source)
    run(config, tmp_path / "run", stop_after=1)
    with np.load(source) as archive:
        arrays = dict(archive)
    arrays["train_labels"] = arrays["train_labels"].copy()
    arrays["train_labels"][0] = (arrays["train_labels"][0] + 1) % 3
    np.savez(source, **arrays)
    with pytest.raises(RunFolderError, match="has changed since the run began"):
        run(config, tmp_path / "run")
