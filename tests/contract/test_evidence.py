"""Evidence about labels, whatever the method: it is there, it survives a stop, and training does not notice it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from toys import CLASSES, ROUNDS, SITES, digest, toy_config

from fedgsca.engine.label_evidence import read_evidence, sites_with_evidence
from fedgsca.engine.rounds import run
from fedgsca.methods.base import load_methods

METHODS = sorted(load_methods())
every_method = pytest.mark.parametrize("method", METHODS)


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): digest(path)
        for path in sorted((folder / "evidence").rglob("*"))
        if path.is_file()
    }


@every_method
def test_is_kept_and_changes_no_byte_of_the_training(method: str, tmp_path: Path) -> None:
    with_it = toy_config(method, frozen=True, audit__first=1)
    run(with_it, tmp_path / "on")
    run(toy_config(method, frozen=True, audit__enabled=False), tmp_path / "off")
    assert digest(tmp_path / "on" / "metrics.jsonl") == digest(tmp_path / "off" / "metrics.jsonl")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("on", "off"))
    assert {name: array.tobytes() for name, array in one.items()} == {
        name: array.tobytes() for name, array in two.items()
    }
    assert not (tmp_path / "off" / "evidence").exists()
    assert sites_with_evidence(tmp_path / "on") == [f"site-{i + 1}" for i in range(SITES)]
    found = read_evidence(tmp_path / "on", "site-2")
    assert found.rounds == ROUNDS - 1
    assert found.probs.shape == (len(found), CLASSES)
    np.testing.assert_allclose(found.probs.sum(axis=1), 1, atol=1e-4)
    assert (found.votes.sum(axis=1) == found.rounds).all()
    if found.posterior is not None:
        assert ((found.posterior >= 0) & (found.posterior <= 1)).all()


@every_method
def test_a_stopped_run_ends_with_the_same_evidence(method: str, tmp_path: Path) -> None:
    config = toy_config(method, frozen=True, audit__first=1)
    run(config, tmp_path / "whole")
    for stop in (2, 3, 5):
        run(config, tmp_path / "parts", stop_after=stop)
    run(config, tmp_path / "parts")
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_worker_processes_keep_the_same_evidence(tmp_path: Path) -> None:
    config = toy_config("fedavg", frozen=True, audit__first=1, train__rounds=3)
    run(config, tmp_path / "one")
    run(config, tmp_path / "two", jobs=2)
    assert files(tmp_path / "two") == files(tmp_path / "one")


def test_a_repeated_round_counts_once(tmp_path: Path) -> None:
    """A crash after the site's round and before the checkpoint: the round is run again."""
    config = toy_config("fedavg", frozen=True, audit__first=1)
    run(config, tmp_path, stop_after=4)
    before = files(tmp_path)
    newest = sorted(path for path in (tmp_path / "checkpoint").iterdir() if "4" in path.name)
    assert newest
    for path in newest:
        path.unlink()
    run(config, tmp_path, stop_after=4)
    assert files(tmp_path) == before
    assert read_evidence(tmp_path, "site-1").rounds == 3


def test_the_model_is_asked_before_it_trains(tmp_path: Path) -> None:
    """Round 0 only: the evidence is that of the first model, whatever the sites did with it afterwards."""
    slow, fast = (
        toy_config("fedavg", frozen=True, audit__first=0, audit__last=1, train__lr=lr)
        for lr in (1e-6, 0.5)
    )
    run(slow, tmp_path / "slow", stop_after=2)
    run(fast, tmp_path / "fast", stop_after=2)
    one, two = (read_evidence(tmp_path / name, "site-3") for name in ("slow", "fast"))
    assert one.rounds == two.rounds == 1
    np.testing.assert_array_equal(one.probs, two.probs)


def test_a_run_shorter_than_the_window_uses_its_second_half() -> None:
    audit = toy_config("fedavg").audit
    assert audit.window(60) == range(3, 20)
    assert audit.window(4) == range(2, 4)
    assert audit.window(1) == range(1)
    assert len(toy_config("fedavg", audit__enabled=False).audit.window(60)) == 0
