"""A site's private memory: a repeated round sees what was there before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgsca.errors import RunFolderError
from fedgsca.site_store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store" / "north")


def value(store: Store, round: int) -> float | None:
    result = store.read_before(round)
    return float(result["x"]) if result else None


def put(store: Store, round: int, x: float) -> None:
    store.write(round, {"x": np.array(x)})


def test_empty_at_first(store: Store) -> None:
    assert store.read_before(0) == {} and store.read_before(9) == {}


def test_a_round_sees_the_newest_memory_before_it(store: Store) -> None:
    put(store, 0, 0.5)
    put(store, 2, 2.5)
    assert [value(store, r) for r in range(5)] == [None, 0.5, 0.5, 2.5, 2.5]


def test_a_repeated_round_does_not_see_what_the_failed_attempt_wrote(store: Store) -> None:
    put(store, 0, 0.5)
    put(store, 1, 1.5)  # then killed before the checkpoint of round 1
    assert value(store, 1) == 0.5
    put(store, 1, 7.0)
    assert value(store, 2) == 7.0


def test_going_back_two_rounds_forgets_the_later_ones(store: Store) -> None:
    for r in range(6):
        put(store, r, float(r))
    put(store, 4, 40.0)  # the checkpoint of round 5 was damaged
    assert value(store, 5) == 40.0 and value(store, 9) == 40.0


def test_keeps_only_what_a_restart_may_need(store: Store) -> None:
    for r in range(30):
        put(store, r, float(r))
    assert len(list(store.folder.glob("round-*"))) == 5
    assert value(store, 29) == 28.0 and value(store, 28) == 27.0
    assert value(store, 26) == 25.0, "the oldest of four checkpoints"


def test_numbers_and_types_come_back(store: Store) -> None:
    arrays = {
        "count": np.array(3),
        "flags": np.array([True, False]),
        "probs": np.arange(6.0).reshape(2, 3).T,
    }
    store.write(0, arrays)
    back = store.read_before(1)
    assert all(
        back[n].shape == a.shape and back[n].dtype == a.dtype and np.array_equal(back[n], a)
        for n, a in arrays.items()
    )


def test_damage_is_named(store: Store) -> None:
    put(store, 0, 1.0)
    path = next(store.folder.glob("round-*"))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RunFolderError) as error:
        store.read_before(1)
    assert error.value.code == "site.damaged-memory" and str(path) in error.value.message
