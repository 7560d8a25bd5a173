"""The configurations of other papers in examples/published are valid, and say what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsca.config import Config

FOLDER = Path(__file__).parents[2] / "examples" / "published"
FILES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_published_setting_is_a_configuration(path: Path) -> None:
    config = Config.load(path, data="synthetic", method="fedavg")
    assert config.train.class_balance == 0  # none of the papers balances classes
    name = path.name if not path.stem.startswith("lnmbench") else "lnmbench_*.toml"
    assert f"`{name}`" in (FOLDER / "README.md").read_text()


def test_the_rates_follow_the_papers() -> None:
    settings = {path.stem: Config.load(path, method="fedavg").train for path in FILES}
    assert settings["fedgp_kvasir"].lr_at(99) == 0.01
    assert settings["lnmbench_pathmnist"].lr_at(9) == 0.01
    assert settings["lnmbench_pathmnist"].lr_at(10) == pytest.approx(0.001)
    assert settings["lnmbench_dermamnist"].lr_at(49) == pytest.approx(1e-4)
    assert settings["fednoro_ich"].optimiser == "adamw"
