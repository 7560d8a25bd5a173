"""benchmarks.settings: every setting is a valid configuration, and the table says what was run."""

from __future__ import annotations

from itertools import product

import pytest

from benchmarks.protocols.conditions import protocol_config
from benchmarks.protocols.protocol import PROTOCOLS
from benchmarks.settings import PUBLISHED, SETTINGS, Score, chosen_settings, to_markdown
from fedgsca.config import build, merge
from fedgsca.methods.base import load_methods
from fedgsca.noise import parse_noise


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_setting_is_a_valid_configuration(name: str) -> None:
    shared = protocol_config(PROTOCOLS[name], "synthetic", "fedavg", {}, 0).to_tree()
    for setting in SETTINGS[name]:
        config = build(merge(merge(shared, setting.tree), {"noise": {"spec": setting.noise}}))
        assert len(parse_noise(setting.noise, config.data.sites)) == config.data.sites


@pytest.mark.parametrize("name", list(SETTINGS))
def test_settings_have_names_of_their_own(name: str) -> None:
    names = [setting.name for setting in SETTINGS[name]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_method_has_a_published_submission(name: str) -> None:
    assert set(chosen_settings(PUBLISHED, PROTOCOLS[name])) == set(load_methods())


def test_the_table_marks_the_best_and_ranks_complete_rows_only() -> None:
    scores = [
        Score("mixed", method, seed, value + seed)
        for (method, value), seed in product([("fedavg", 60.0), ("fedgsca", 70.0)], (0, 1))
    ]
    scores.append(Score("symmetric", "fedavg", 0, 50.0))  # FedGSCA is not finished there
    lines = to_markdown(PROTOCOLS["tissue-28"], scores, ["fedavg", "fedgsca"]).splitlines()
    assert lines[2] == "| mixed | `0-S40-P20-C20` | 60.5 ± 0.7 | **70.5** ± 0.7 |"
    assert lines[3] == "| symmetric | `S40` | **50.0** | – |"
    assert lines[4] == "| **mean rank, 1 setting** | | **2.0** | **1.0** |"
    assert len(lines) == 5
