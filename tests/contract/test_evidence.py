"""Evidence about labels is there for every method, survives a stop and does not change training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedgsca.config import Config
from fedgsca.errors import RunFolderError
from fedgsca.federation.label_evidence import read_evidence, sites_with_evidence
from fedgsca.federation.rounds import run
from fedgsca.federation.run_folder import read_rounds
from fedgsca.federation.simulation import prepare
from fedgsca.methods.base import compose_method, load_methods
from fedgsca.models.weights import has_packaged_weights
from tests.toys import (
    CLASSES,
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


BACKBONE = "efficientnet-lite0"


def weight_bytes(folder: Path) -> dict[str, bytes]:
    arrays = load_file(folder / "model.safetensors")
    return {name: array.tobytes() for name, array in arrays.items()}


def audited(method: str, **sets: Any) -> Config:
    return toy_config(method, frozen=True, **{"train__rounds": 8, "audit__enabled": True, **sets})


@every_method
def test_an_audit_does_not_change_the_training(method: str, tmp_path: Path) -> None:
    """The heads travel beside the method; a method that reads them has them anyway."""
    folder = finished_run(audited(method))
    plain = audited(method, audit__enabled=False)
    run(plain, tmp_path / "off")
    assert weight_bytes(folder) == weight_bytes(tmp_path / "off")
    assert sites_with_evidence(folder) == [f"site-{i + 1}" for i in range(SITES)]
    evidence = read_evidence(folder, "site-2")
    assert set(evidence.judgements) == {"site", "federation"}
    for judgement in evidence.judgements.values():
        assert judgement.probs.shape[1] == CLASSES
        np.testing.assert_allclose(judgement.probs.sum(axis=1), 1, atol=1e-4)
    assert (tmp_path / "off" / "evidence").exists() == load_methods()[method].reads_evidence


@every_method
def test_heads_run_only_where_something_reads_them(method: str) -> None:
    reads_evidence = load_methods()[method].reads_evidence
    for wanted in ({}, {"audit__enabled": True}, {"evidence__holdout": 0.2}):
        composition = compose_method(toy_config(method, train__rounds=8, **wanted))
        has_heads = any(name.startswith("evidence.") for name in composition.uploads)
        assert has_heads == (reads_evidence or bool(wanted))
        assert composition.name == method and composition.card.title


# the heads do not depend on the method: a run without them trains the same model (see above)
@pytest.mark.parametrize("method", METHODS[::4])
def test_a_stopped_run_ends_with_the_same_evidence(method: str, tmp_path: Path) -> None:
    config = audited(method)
    for stop in (3, 5):
        run(config, tmp_path / "stopped", stop_after=stop)
    run(config, tmp_path / "stopped")
    assert evidence_digests(tmp_path / "stopped") == evidence_digests(finished_run(config))


@pytest.mark.skipif(not has_packaged_weights(BACKBONE), reason="[weights] is not installed")
def test_frozen_features_judge_the_labels_of_a_network_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAvg needs no forward pass for the heads, and they see what those of a frozen run see."""
    monkeypatch.setattr(
        "fedgsca.methods.parts.evidence_heads.evaluate_site",
        lambda *_, **__: pytest.fail("a pass through the network in training"),
    )
    sets: dict[str, Any] = {"train__rounds": 8, "audit__enabled": True}
    config = toy_config("fedavg", evidence__backbone=BACKBONE, model__feature_size=32, **sets)
    experiment = prepare(config)
    frozen = prepare(
        toy_config(
            "fedavg",
            model__name=BACKBONE,
            model__frozen=True,
            model__weights="packaged",
            model__feature_size=32,
        )
    )
    for name, samples in experiment.sites.items():
        assert samples.are_images and samples.features is not None
        assert np.array_equal(samples.features, frozen.sites[name].inputs)
    assert experiment.dims["E"] == frozen.feature_width != experiment.feature_width
    run(config, tmp_path / "run", stop_after=4)
    run(config, tmp_path / "run")
    assert sites_with_evidence(tmp_path / "run") == sorted(experiment.sites)
    run(config, tmp_path / "whole")
    assert evidence_digests(tmp_path / "run") == evidence_digests(tmp_path / "whole")


def test_a_run_without_heads_says_how_to_get_an_audit(tmp_path: Path) -> None:
    folder = finished_run(toy_config("fedavg", frozen=True))
    with pytest.raises(RunFolderError) as error:
        sites_with_evidence(folder)
    assert error.value.code == "audit.no-evidence"
    assert "--audit" in error.value.fix and "audit-folder" in error.value.fix
    run(audited("fedavg"), tmp_path, stop_after=2)
    with pytest.raises(RunFolderError) as error:
        sites_with_evidence(tmp_path)
    assert error.value.code == "audit.no-evidence" and "resume" in error.value.fix


def test_heads_judge_a_site_that_missed_a_renewal(tmp_path: Path) -> None:
    """The only renewal is in round 2, where site-1 is absent: it takes place in round 3."""
    config = audited("fedavg", train__rounds=6)
    assert list(config.evidence.renewal_rounds(6)) == [2]
    run(config, tmp_path, engine=FaultyEngine(config, tmp_path, absent={2: "site-1"}))
    assert read_evidence(tmp_path, "site-1").judgements["federation"].probs.shape[1] == CLASSES


def test_under_privacy_no_head_leaves_a_site_and_the_run_says_so(tmp_path: Path) -> None:
    config = audited("fedgsca", privacy__clip=1.0)
    assert not [name for name in compose_method(config).uploads if name.startswith("evidence")]
    observer = RecordingObserver()
    run(config, tmp_path / "run", observer=observer, stop_after=1)
    assert any("evidence heads are off" in message for message in observer.messages)


def test_very_short_runs_have_no_heads() -> None:
    rounds = toy_config("fedavg").evidence.renewal_rounds
    assert not rounds(5)
    assert list(rounds(40)) == [9, 14, 19, 24]
    assert list(rounds(60)) == [9, 14, 19, 24, 29, 34, 39]


def test_worker_processes_collect_the_same_evidence(tmp_path: Path, cheap_processes: None) -> None:
    config = audited("fedavg", train__rounds=6)
    run(config, tmp_path / "one")
    run(config, tmp_path / "two", jobs=2)
    assert evidence_digests(tmp_path / "two") == evidence_digests(tmp_path / "one")


def test_a_repeated_round_leaves_the_same_evidence(tmp_path: Path) -> None:
    """A crash after the site's round and before the checkpoint: the round is run again."""
    config = audited("fedavg")
    run(config, tmp_path, stop_after=5)
    digests = evidence_digests(tmp_path)
    (tmp_path / "checkpoint" / "round-000005.safetensors").unlink()
    run(config, tmp_path, stop_after=5)
    assert evidence_digests(tmp_path) == digests


def holdout_config(method: str) -> Config:
    return toy_config(method, frozen=True, train__rounds=8, evidence__holdout=0.4)


@every_method
def test_a_holdout_scores_every_method(method: str) -> None:
    config = holdout_config(method)
    scores = [record.expected_f1 for record in read_rounds(finished_run(config))]
    first = config.evidence.renewal_rounds(8)[0]
    assert scores[:first] == [None] * first
    assert all(score is not None and 0 <= score <= 100 for score in scores[first:])


@pytest.mark.parametrize("method", METHODS[1::4])
def test_a_score_on_a_holdout_survives_a_stop(method: str, tmp_path: Path) -> None:
    config = holdout_config(method)
    for stop in (4, 5, 6, 8):
        run(config, tmp_path / "stopped", stop_after=stop)
    assert read_rounds(tmp_path / "stopped") == read_rounds(finished_run(config))


def test_worker_processes_and_full_training_give_the_same_scores(
    tmp_path: Path, cheap_processes: None
) -> None:
    config = toy_config("fedgsca-e", train__rounds=7, evidence__holdout=0.4)
    run(config, tmp_path / "one")
    run(config, tmp_path / "two", jobs=2)
    assert digest(tmp_path / "one" / "metrics.jsonl") == digest(tmp_path / "two" / "metrics.jsonl")
    assert read_rounds(tmp_path / "one")[-1].expected_f1 is not None
