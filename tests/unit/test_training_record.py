"""What the training pass sees of every sample, in the place of an evaluation before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedgsca.engine.label_evidence import read_evidence
from fedgsca.engine.rounds import run
from fedgsca.methods.parts import evidence_heads
from fedgsca.methods.parts.evidence_heads import add_evidence_heads
from fedgsca.site import Evaluation, Site, TrainingRecord
from fedgsca.train import cross_entropy, evaluate, finish_record, to_tensor, train
from fedgsca.wire import Payload
from tests.fake_gpu import DEVICE, FakeGpu
from tests.helpers import Toy, toy_experiment
from tests.toys import FaultyEngine, digest, toy_config

SAMPLES = 24
COLLECTION_ROUNDS = range(2, 8, 3)


def make_toy(folder: Path, method: str = "fedavg", **hyper: Any) -> Toy:
    hyper = {"batch_size": 8, "threads": 1, **hyper}
    return toy_experiment(folder, method, samples=SAMPLES, rounds=12, images=True, **hyper)


def site_with_record(toy: Toy, name: str = "site-1") -> Site:
    site = toy.site(name)
    site.load(toy.start().weights)
    site.record = TrainingRecord(site.samples)
    return site


def finish(site: Site) -> Evaluation:
    assert site.record is not None
    return finish_record(site, site.record)


def features_of(evaluation: Evaluation) -> np.ndarray:
    assert evaluation.features is not None
    return evaluation.features


def weight_bytes(site: Site) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in site.weights().items()}


def test_a_record_has_the_outputs_before_the_step(tmp_path: Path) -> None:
    """One batch and no augmentation: the outputs of the received model on this batch."""
    site = site_with_record(make_toy(tmp_path, batch_size=SAMPLES, augment="none"))
    inputs = to_tensor(site.samples, np.arange(SAMPLES), site.device)
    site.model.train()
    with torch.no_grad():
        features = site.model.features(inputs)
        probs = torch.softmax(site.model.head(features), 1).numpy()
    site.load(make_toy(tmp_path).start().weights)  # the batch statistics have changed
    train(site, 0, cross_entropy)
    evaluation = finish(site)
    np.testing.assert_allclose(features_of(evaluation), features.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(evaluation.probs, probs, rtol=1e-4, atol=1e-5)
    expected = -np.log(probs[np.arange(SAMPLES), site.labels])
    np.testing.assert_allclose(evaluation.losses, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_record_leaves_no_trace_in_the_model(epochs: int, tmp_path: Path) -> None:
    """Also the batch statistics are those of the samples that are trained on."""
    toy = make_toy(tmp_path, epochs=epochs)
    rows = np.arange(0, SAMPLES, 2)
    labels = toy.sites["site-1"].labels[rows]
    site = site_with_record(toy)
    train(site, 3, cross_entropy, rows, labels)
    weights = weight_bytes(site)
    finish(site)
    plain_site = site_with_record(make_toy(tmp_path, epochs=epochs))
    plain_site.record = None
    train(plain_site, 3, cross_entropy, rows, labels)
    assert weights == weight_bytes(plain_site)


@pytest.mark.parametrize("count", [2, 9, 10, 15, 16, 17, 22, 23, 24])
def test_every_sample_is_in_a_record_once(count: int, tmp_path: Path) -> None:
    """Whatever the number of samples that are trained on; batches of one are evaluated."""
    site = site_with_record(make_toy(tmp_path, epochs=2))
    rows = site.rng(0, "rows").permutation(SAMPLES)[:count]
    train(site, 0, cross_entropy, rows, site.labels[rows])
    record = site.record
    assert record is not None
    shown_rows = np.concatenate([batch.rows for batch in record.batches])
    assert len(np.unique(shown_rows)) == len(shown_rows)
    single_samples = (count % 8 == 1) + ((SAMPLES - count) % 8 == 1)
    assert len(record.missing_rows()) == single_samples
    evaluation = finish(site)
    assert np.isfinite(features_of(evaluation)).all()
    np.testing.assert_allclose(evaluation.probs.sum(axis=1), 1.0)
    assert finish(site) is evaluation


def test_the_others_are_spread_over_the_epoch(tmp_path: Path) -> None:
    site = site_with_record(make_toy(tmp_path, batch_size=4))
    rows = np.arange(12)
    train(site, 0, cross_entropy, rows, site.labels[rows])
    assert site.record is not None
    is_trained = [bool(np.isin(batch.rows, rows).all()) for batch in site.record.batches]
    assert is_trained == [True, False] * 3


def test_without_training_a_record_is_an_evaluation(tmp_path: Path) -> None:
    site = site_with_record(make_toy(tmp_path))
    evaluation = finish(site)
    expected = evaluate(site.model, site.samples, site.device, features=True)
    np.testing.assert_array_equal(evaluation.probs, expected.probs)
    np.testing.assert_array_equal(features_of(evaluation), features_of(expected))


def test_a_record_of_a_part_counts_the_rows_of_the_site(tmp_path: Path) -> None:
    toy = make_toy(tmp_path, augment="none")
    site = site_with_record(toy)
    assert site.record is not None
    rows = np.arange(5, SAMPLES)
    part = toy.site("site-1")
    part.samples = site.samples.part(rows)
    part.record = site.record.part(rows)
    train(part, 0, cross_entropy, np.arange(4), part.labels[:4])
    first = site.record.batches[0]
    assert sorted(first.rows) == [5, 6, 7, 8]
    assert not len(site.record.missing_rows())


def test_recording_reads_nothing_back_from_a_gpu(tmp_path: Path) -> None:
    site = site_with_record(make_toy(tmp_path))
    site.model = site.model.to(DEVICE)
    site.device = DEVICE
    rows = np.arange(12)
    with FakeGpu() as gpu:
        train(site, 0, cross_entropy, rows, site.labels[rows])
        assert (gpu.copies_back, gpu.numbers_back) == (0, 0)
        finish(site)
        assert 0 < gpu.copies_back <= 4


# ---- FedGSCA ----


def toy_with_heads(folder: Path, passes: str = "one", holdout: float = 0.0) -> Toy:
    toy = toy_experiment(
        folder,
        "fedgsca",
        samples=40,
        rounds=12,
        images=True,
        options={"passes": passes},
        batch_size=8,
    )
    toy.method = add_evidence_heads(toy.method, COLLECTION_ROUNDS, holdout)
    return toy


def refuse_evaluation(*arguments: object, **options: object) -> Evaluation:
    raise AssertionError("the received model was evaluated")


def test_one_pass_never_evaluates_the_received_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_heads, "evaluate_site", refuse_evaluation)
    toy = toy_with_heads(tmp_path)
    toy.run(9)
    for name, update in toy.updates.items():
        assert "evidence.weight" not in update.extras, "heads are trained until round 7"
        assert "clean" in toy.notes[name], "a posterior exists, and labels are selected by it"
    with pytest.raises(AssertionError, match="received model"):
        toy_with_heads(tmp_path / "two", passes="two").run(1)


def test_one_pass_and_two_learn_the_same_before_the_first_posterior(tmp_path: Path) -> None:
    """Until then they differ in what the heads see, not in what the network is trained on."""
    one, two = toy_with_heads(tmp_path / "one"), toy_with_heads(tmp_path / "two", "two")
    first, second = one.run(4), two.run(4)
    for name, value in first.weights.items():
        np.testing.assert_array_equal(value, second.weights[name])
    one_heads = first.extras["evidence.weight"]
    two_heads = second.extras["evidence.weight"]
    assert not np.array_equal(one_heads, two_heads)
    assert np.corrcoef(one_heads.ravel(), two_heads.ravel())[0, 1] > 0.5


def test_one_pass_finds_the_noisy_sites(tmp_path: Path) -> None:
    toy = toy_with_heads(tmp_path)
    toy.run(12)
    deltas = {name: float(update.extras["delta"]) for name, update in toy.updates.items()}
    assert min(deltas["site-3"], deltas["site-4"]) > max(deltas["site-1"], deltas["site-2"])


def test_heads_see_the_samples_that_are_held_out(tmp_path: Path) -> None:
    toy = toy_with_heads(tmp_path, holdout=0.3)
    state = toy.run(5)
    site = toy.site("site-3")
    toy.method.local_update(toy.method.broadcast(state, state.round), site)
    assert site.record is not None
    assert site.record.evaluation is not None
    assert len(site.record.evaluation.losses) == 40


def test_a_site_that_was_away_evaluates_the_received_model_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toy_with_heads(tmp_path)
    state = toy.start()
    while "evidence.power" not in state.extras:
        state = toy.round(state, absent=["site-4"])
    calls = []

    def count_evaluations(site: Site, *, features: bool = False) -> Evaluation:
        if site.evaluation is None:
            calls.append(site.name)
        return site.evaluation or evaluate(site.model, site.samples, site.device, features=features)

    monkeypatch.setattr(evidence_heads, "evaluate_site", count_evaluations)
    state = toy.round(state)
    toy.round(state)
    assert calls == ["site-4"]
    assert "clean" in toy.notes["site-4"]


# ---- runs ----


def record_config(**sets: Any) -> Any:
    options = {"fedgsca__passes": "one", "audit__first": 1, "train__rounds": 8, **sets}
    return toy_config("fedgsca", **options)


def run_digests(folder: Path) -> dict[str, str]:
    paths = [folder / "model.safetensors", folder / "metrics.jsonl"]
    paths += [path for path in sorted((folder / "evidence").rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): digest(path) for path in paths}


def model_bytes(folder: Path) -> dict[str, bytes]:
    """Without the configuration, which is in the file, too."""
    arrays = load_file(folder / "model.safetensors")
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    run(record_config(), folder)
    return folder


def test_the_audit_has_evidence_of_every_round_of_its_window(reference: Path) -> None:
    evidence = read_evidence(reference, "site-2")
    assert evidence.rounds == 7
    assert (evidence.votes.sum(axis=1) == 7).all()
    assert evidence.judgement is not None


def test_a_stopped_run_ends_with_the_same_bytes(reference: Path, tmp_path: Path) -> None:
    for stop in (2, 5):
        run(record_config(), tmp_path / "run", stop_after=stop)
    run(record_config(), tmp_path / "run")
    assert run_digests(tmp_path / "run") == run_digests(reference)


def test_two_processes_give_the_same_bytes(reference: Path, tmp_path: Path) -> None:
    run(record_config(), tmp_path / "run", jobs=2)
    assert run_digests(tmp_path / "run") == run_digests(reference)


def test_absent_sites_and_several_epochs(tmp_path: Path) -> None:
    config = record_config(train__epochs=2, federation__participation=0.5)
    result = run(config, tmp_path / "partial")
    assert result is not None
    config = record_config(train__epochs=2)
    engine = FaultyEngine(config, tmp_path / "absent", absent={2: "site-1", 3: "site-1"})
    run(config, tmp_path / "absent", engine=engine)
    assert read_evidence(tmp_path / "absent", "site-1").rounds == 5


def test_audit_evidence_does_not_change_the_training(reference: Path, tmp_path: Path) -> None:
    run(record_config(audit__enabled=False), tmp_path / "run")
    assert model_bytes(tmp_path / "run") == model_bytes(reference)
    assert digest(tmp_path / "run" / "metrics.jsonl") == digest(reference / "metrics.jsonl")


def test_without_heads_there_are_two_passes(tmp_path: Path) -> None:
    """A selection by losses of the received model needs them before the training."""
    run(record_config(evidence__enabled=False), tmp_path / "one")
    run(record_config(evidence__enabled=False, fedgsca__passes="two"), tmp_path / "two")
    assert model_bytes(tmp_path / "one") == model_bytes(tmp_path / "two")
    first, second = (read_evidence(tmp_path / name, "site-2") for name in ("one", "two"))
    np.testing.assert_array_equal(first.losses, second.losses)


def test_a_diverged_model_gives_no_evidence(tmp_path: Path) -> None:
    toy = toy_with_heads(tmp_path)
    state = toy.run(1)
    weights = {name: array * np.nan for name, array in state.weights.items()}
    payload = toy.method.broadcast(state, state.round)
    update = toy.method.local_update(Payload(1, weights, payload.extras), toy.site("site-1"))
    assert "evidence.weight" not in update.extras
