"""The arithmetic of the time to accuracy, by hand."""

from __future__ import annotations

import pytest

from benchmarks.speed import Measurement
from fedgsca.config import build
from fedgsca.errors import ConfigError
from fedgsca.lab.time_to_accuracy import Curve, timed_tree


def test_a_curve_reaches_a_score_in_its_first_round_at_or_above_it() -> None:
    curve = Curve([10.0, 30.0, 20.0, 40.0], [1.0, 2.0, 3.0, 4.0])
    assert curve.reach(30.0) == 2.0
    assert curve.reach(30.5) == 4.0
    assert curve.reach(40.5) is None


def test_a_missed_goal_says_why() -> None:
    row = Measurement("a / b", 1.2, 1.05, previous="1.3", reason="one more pass")
    assert not row.is_met
    assert str(row).endswith("1.3  MISSED: one more pass")
    assert "MISSED" not in str(Measurement("a / b", 1.0, 1.05))


def test_every_round_is_scored_and_a_section_that_is_no_table_stays_for_the_check() -> None:
    assert timed_tree({"train": {"rounds": 3}}) == {
        "train": {"rounds": 3, "threads": 1},
        "federation": {"eval_every": 1},
    }
    assert timed_tree({"train": {"threads": 2}})["train"]["threads"] == 2
    with pytest.raises(ConfigError) as caught:
        timed_tree({"federation": {"eval_every": 2}})
    assert caught.value.code == "grid.rounds-without-a-score"
    with pytest.raises(ConfigError, match="federation"):
        build(timed_tree({"federation": 3}))
