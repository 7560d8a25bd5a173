"""Evidence about labels is there for every method, survives a stop and does not change training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedgsca.engine.label_evidence import read_evidence, sites_with_evidence
from fedgsca.engine.rounds import run
from fedgsca.methods.base import load_methods
from tests.toys import CLASSES, ROUNDS, SITES, digest, toy_config

METHODS = sorted(load_methods())
every_method = pytest.mark.parametrize("method", METHODS)


def evidence_digests(folder: Path) -> dict[str, str]:
    paths = [path for path in sorted((folder / "evidence").rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): digest(path) for path in paths}


def weight_bytes(folder: Path) -> dict[str, bytes]:
    arrays = load_file(folder / "model.safetensors")
    return {name: array.tobytes() for name, array in arrays.items()}


@every_method
def test_evidence_is_collected_and_does_not_change_the_training(
    method: str, tmp_path: Path
) -> None:
    run(toy_config(method, frozen=True, audit__first=1), tmp_path / "on")
    run(toy_config(method, frozen=True, audit__enabled=False), tmp_path / "off")
    assert digest(tmp_path / "on" / "metrics.jsonl") == digest(tmp_path / "off" / "metrics.jsonl")
    assert weight_bytes(tmp_path / "on") == weight_bytes(tmp_path / "off")
    assert not (tmp_path / "off" / "evidence").exists()
    assert sites_with_evidence(tmp_path / "on") == [f"site-{i + 1}" for i in range(SITES)]
    evidence = read_evidence(tmp_path / "on", "site-2")
    assert evidence.rounds == ROUNDS - 1
    assert evidence.probs.shape == (len(evidence), CLASSES)
    np.testing.assert_allclose(evidence.probs.sum(axis=1), 1, atol=1e-4)
    assert (evidence.votes.sum(axis=1) == evidence.rounds).all()
    if evidence.posterior is not None:
        assert ((evidence.posterior >= 0) & (evidence.posterior <= 1)).all()


@every_method
def test_a_stopped_run_ends_with_the_same_evidence(method: str, tmp_path: Path) -> None:
    config = toy_config(method, frozen=True, audit__first=1)
    run(config, tmp_path / "uninterrupted")
    for stop in (2, 3, 5):
        run(config, tmp_path / "stopped", stop_after=stop)
    run(config, tmp_path / "stopped")
    assert evidence_digests(tmp_path / "stopped") == evidence_digests(tmp_path / "uninterrupted")


def test_worker_processes_collect_the_same_evidence(tmp_path: Path) -> None:
    config = toy_config("fedavg", frozen=True, audit__first=1, train__rounds=3)
    run(config, tmp_path / "one")
    run(config, tmp_path / "two", jobs=2)
    assert evidence_digests(tmp_path / "two") == evidence_digests(tmp_path / "one")


def test_a_repeated_round_counts_once(tmp_path: Path) -> None:
    """A crash after the site's round and before the checkpoint: the round is run again."""
    config = toy_config("fedavg", frozen=True, audit__first=1)
    run(config, tmp_path, stop_after=4)
    digests = evidence_digests(tmp_path)
    (tmp_path / "checkpoint" / "round-000004.safetensors").unlink()
    run(config, tmp_path, stop_after=4)
    assert evidence_digests(tmp_path) == digests
    assert read_evidence(tmp_path, "site-1").rounds == 3


def test_the_model_is_evaluated_before_it_trains(tmp_path: Path) -> None:
    """Round 0 only: the evidence is that of the first model, whatever the sites do with it."""
    for name, lr in (("slow", 1e-6), ("fast", 0.5)):
        config = toy_config("fedavg", frozen=True, audit__first=0, audit__last=1, train__lr=lr)
        run(config, tmp_path / name, stop_after=2)
    slow = read_evidence(tmp_path / "slow", "site-3")
    fast = read_evidence(tmp_path / "fast", "site-3")
    assert slow.rounds == fast.rounds == 1
    np.testing.assert_array_equal(slow.probs, fast.probs)


def test_a_run_shorter_than_the_window_uses_its_second_half() -> None:
    audit = toy_config("fedavg").audit
    assert audit.window(60) == range(3, 20)
    assert audit.window(4) == range(2, 4)
    assert audit.window(1) == range(1)
    assert len(toy_config("fedavg", audit__enabled=False).audit.window(60)) == 0
