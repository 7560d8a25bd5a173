"""Evidence about labels is there for every method, survives a stop and does not change training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedgsca.engine.label_evidence import read_evidence, sites_with_evidence
from fedgsca.engine.rounds import run
from fedgsca.evidence import POWERS
from fedgsca.experiment.run_folder import read_rounds
from fedgsca.methods.base import load_methods
from fedgsca.methods.compose import compose_method
from fedgsca.wire import SMALLEST_GROUP
from tests.toys import (
    CLASSES,
    ROUNDS,
    SITES,
    FaultyEngine,
    RecordingObserver,
    digest,
    finished_run,
    toy_config,
)

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
    folder = finished_run(toy_config(method, frozen=True, audit__first=1))
    run(toy_config(method, frozen=True, audit__enabled=False), tmp_path / "off")
    assert digest(folder / "metrics.jsonl") == digest(tmp_path / "off" / "metrics.jsonl")
    assert weight_bytes(folder) == weight_bytes(tmp_path / "off")
    assert not (tmp_path / "off" / "evidence").exists()
    assert sites_with_evidence(folder) == [f"site-{i + 1}" for i in range(SITES)]
    evidence = read_evidence(folder, "site-2")
    assert evidence.rounds == ROUNDS - 1
    assert evidence.probs.shape == (len(evidence), CLASSES)
    np.testing.assert_allclose(evidence.probs.sum(axis=1), 1, atol=1e-4)
    assert (evidence.votes.sum(axis=1) == evidence.rounds).all()
    if evidence.posterior is not None:
        assert ((evidence.posterior >= 0) & (evidence.posterior <= 1)).all()


@every_method
def test_a_stopped_run_ends_with_the_same_evidence(method: str, tmp_path: Path) -> None:
    config = toy_config(method, frozen=True, audit__first=1)
    for stop in (2, 3, 5):
        run(config, tmp_path / "stopped", stop_after=stop)
    run(config, tmp_path / "stopped")
    assert evidence_digests(tmp_path / "stopped") == evidence_digests(finished_run(config))


@every_method
def test_heads_do_not_change_a_method_that_does_not_ask_them(method: str, tmp_path: Path) -> None:
    """The heads travel beside the method; only a method that reads them learns another model."""
    with_heads = toy_config(method, frozen=True, train__rounds=8)
    run(with_heads, tmp_path / "on")
    run(toy_config(method, frozen=True, train__rounds=8, evidence__enabled=False), tmp_path / "off")
    assert read_evidence(tmp_path / "on", "site-2").judgement is not None
    assert read_evidence(tmp_path / "off", "site-2").judgement is None
    if "losses_of" not in str(with_heads.options):
        assert weight_bytes(tmp_path / "on") == weight_bytes(tmp_path / "off")


def test_heads_judge_a_site_that_missed_a_collection(tmp_path: Path) -> None:
    """Opinions are collected in round 1; site-1 is absent in one of the rounds of the refresh."""
    config = toy_config("fedavg", frozen=True, train__rounds=6)
    assert list(config.evidence.collection_rounds(6)) == [1]
    for absent_round in (1, 2, 3):
        folder = tmp_path / str(absent_round)
        run(config, folder, engine=FaultyEngine(config, folder, absent={absent_round: "site-1"}))
        judgement = read_evidence(folder, "site-1").judgement
        assert judgement is not None
        assert judgement.references.shape == (len(POWERS), CLASSES)


def test_a_number_that_few_images_determine_does_not_leave_the_site(tmp_path: Path) -> None:
    config = toy_config("fedgsca", frozen=True)
    engine = FaultyEngine(config, tmp_path / "run")
    run(config, tmp_path / "run", engine=engine)
    names = set()
    for reply in engine.replies:
        assert reply.update is not None
        for name in ("evidence.masses", "evidence.training_counts"):
            if name in reply.update.extras:
                names.add(name)
                numbers = reply.update.extras[name]
                assert np.nanmin(numbers) >= SMALLEST_GROUP
    assert names == {"evidence.masses", "evidence.training_counts"}


def test_under_privacy_no_head_leaves_a_site_and_the_run_says_so(tmp_path: Path) -> None:
    config = toy_config("fedgsca", frozen=True, privacy__clip=1.0)
    assert not [name for name in compose_method(config).uploads if name.startswith("evidence")]
    observer = RecordingObserver()
    run(config, tmp_path / "run", observer=observer, stop_after=1)
    assert any("evidence heads are off" in message for message in observer.messages)


def test_very_short_runs_have_no_heads() -> None:
    rounds = toy_config("fedavg").evidence.collection_rounds
    assert not rounds(5)
    assert list(rounds(40)) == [8, 13, 18, 23]
    assert list(rounds(60)) == [8, 13, 18, 23, 28, 33, 38]


def test_worker_processes_collect_the_same_evidence(tmp_path: Path, cheap_processes: None) -> None:
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


@every_method
def test_a_holdout_scores_every_method_and_survives_a_stop(method: str, tmp_path: Path) -> None:
    config = toy_config(method, frozen=True, train__rounds=8, evidence__holdout=0.4)
    run(config, tmp_path / "uninterrupted")
    for stop in (4, 5, 6):
        run(config, tmp_path / "stopped", stop_after=stop)
    run(config, tmp_path / "stopped")
    rounds = read_rounds(tmp_path / "stopped")
    assert rounds == read_rounds(tmp_path / "uninterrupted")
    scores = [record.expected_f1 for record in rounds]
    first = config.evidence.collection_rounds(8)[0] + 2
    assert scores[:first] == [None] * first
    assert all(score is not None and 0 <= score <= 100 for score in scores[first:])


def test_worker_processes_and_full_training_give_the_same_scores(
    tmp_path: Path, cheap_processes: None
) -> None:
    config = toy_config("fedgsca", train__rounds=7, evidence__holdout=0.4)
    run(config, tmp_path / "one")
    run(config, tmp_path / "two", jobs=2)
    assert digest(tmp_path / "one" / "metrics.jsonl") == digest(tmp_path / "two" / "metrics.jsonl")
    assert read_rounds(tmp_path / "one")[-1].expected_f1 is not None
