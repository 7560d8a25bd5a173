"""Grids of runs: how they are divided among processes."""

from __future__ import annotations

from collections import Counter
from itertools import chain, product

import pytest

from fedgsca.config import Config
from fedgsca.errors import ConfigError
from fedgsca.lab.runner import GridCell, Shard, parse_shard

ROWS, COLUMNS, SEEDS = ("fedavg", "fedgp", "fedgsca"), ("S40", "S50"), (0, 1, 2)
CELLS = [
    GridCell(f"{row}-{column}-s{seed}", row, column, seed, Config())  # type: ignore[call-arg]
    for seed, column, row in product(SEEDS, COLUMNS, ROWS)
]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 18, 40])
def test_shards_are_disjoint_complete_and_share_every_row(count: int) -> None:
    parts = [Shard(i + 1, count).part(CELLS) for i in range(count)]
    assert sorted(cell.name for cell in chain(*parts)) == sorted(cell.name for cell in CELLS)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for row in ROWS:
        shares = [Counter(cell.row for cell in part)[row] for part in parts]
        assert max(shares) - min(shares) <= 1
    for part in parts:
        assert part == [cell for cell in CELLS if cell in part]  # still seed by seed


def test_a_run_that_is_two_cells_belongs_to_one_shard() -> None:
    parts = [Shard(i, 2).part([*CELLS, CELLS[0]]) for i in (1, 2)]
    assert sorted(len({cell.name for cell in part}) for part in parts) == [9, 9]
    assert sum(CELLS[0] in part for part in parts) == 1


def test_shards_as_typed() -> None:
    assert parse_shard("2/3") == Shard(2, 3)
    assert parse_shard(None).part(CELLS) == CELLS
    for text in ("", "0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3", "²/3"):
        with pytest.raises(ConfigError) as error:
            parse_shard(text)
        assert error.value.code == "grid.invalid-shard"
        assert repr(text) in error.value.message
