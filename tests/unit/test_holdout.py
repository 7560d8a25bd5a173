"""Held-out samples: no method trains on them, and they score the model without a true label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgsca.methods.parts import holdout
from fedgsca.methods.parts.evidence_heads import MethodWithHeads
from fedgsca.methods.site import LabelEvidence, Samples
from fedgsca.methods.train import evaluate
from fedgsca.metrics import confusion, scores
from fedgsca.wire import SMALLEST_GROUP
from tests.helpers import CLASSES, Toy, toy_experiment

RENEWAL_ROUNDS = range(4, 11, 5)
SHARE = 0.3


def toy_with_holdout(folder: Path, method: str = "fedavg", share: float = SHARE) -> Toy:
    toy = toy_experiment(folder, method, samples=160, rounds=16)
    toy.method = MethodWithHeads(toy.method, RENEWAL_ROUNDS, share)
    return toy


def holdout_of(toy: Toy, name: str) -> np.ndarray:
    mask: np.ndarray = toy.method._holdout(toy.site(name))  # type: ignore[attr-defined]
    return mask


@pytest.mark.parametrize("method", ["fedavg", "fedgsca-e", "fedcorr"])
def test_labels_of_held_out_samples_do_not_reach_the_model_before_the_posterior(
    method: str, tmp_path: Path
) -> None:
    one = toy_with_holdout(tmp_path / "one", method)
    other = toy_with_holdout(tmp_path / "other", method)
    for name, samples in other.sites.items():
        labels = samples.labels.copy()
        mask = holdout_of(other, name)
        assert 20 < mask.sum() < 80
        labels[mask] = (labels[mask] + 1) % CLASSES
        other.sites[name] = Samples(samples.inputs, labels, CLASSES)
    first, second = one.run(4), other.run(4)
    for name, value in first.weights.items():
        np.testing.assert_array_equal(value, second.weights[name])


def test_the_score_is_close_to_the_true_f1_although_labels_are_wrong(tmp_path: Path) -> None:
    toy = toy_with_holdout(tmp_path)
    state = toy.run(12)
    payload = toy.method.broadcast(state, state.round)
    toy.site("site-1").load(payload.weights)
    evaluation = evaluate(toy.model, toy.test, toy.site("site-1").device)
    truth = scores(confusion(toy.test.labels, evaluation.predictions, CLASSES)).f1
    score = holdout.read_score(toy.run(1, state).extras, state.round)
    assert score == pytest.approx(truth, abs=10.0)


def test_nothing_is_sent_before_the_first_posterior_or_without_a_holdout(tmp_path: Path) -> None:
    early = toy_with_holdout(tmp_path / "early")
    state = early.run(RENEWAL_ROUNDS[0])
    assert not any(holdout.COUNTS in update.extras for update in early.updates.values())
    assert holdout.read_score(state.extras, state.round - 1) is None
    without = toy_with_holdout(tmp_path / "without", share=0.0)
    without.run(8)
    assert not any(holdout.COUNTS in update.extras for update in without.updates.values())


def test_counts_of_few_images_stay_at_the_site(tmp_path: Path) -> None:
    toy = toy_with_holdout(tmp_path, share=0.1)
    toy.run(8)
    for update in toy.updates.values():
        if holdout.COUNTS in update.extras:
            for name in (holdout.COUNTS, holdout.POOLED_COUNTS):
                members = update.extras[name][1]
                assert not (members < SMALLEST_GROUP).any()
        # the weight in the average does not depend on what is held out
        assert update.num_samples == 160


def test_notes_of_the_method_are_about_all_samples(tmp_path: Path) -> None:
    toy = toy_with_holdout(tmp_path, "fedgsca")
    toy.run(9)
    for name in toy.sites:
        mask = holdout_of(toy, name)
        notes = toy.notes[name]
        assert notes["clean"].shape == notes["losses"].shape == (160,)
        assert notes["clean"][mask].all()
        assert not mask[notes["pseudo_rows"]].any()


def test_patients_stay_together(tmp_path: Path) -> None:
    toy = toy_with_holdout(tmp_path)
    samples = toy.sites["site-1"]
    groups = np.array([f"patient {i // 8}" for i in range(160)])
    toy.sites["site-1"] = Samples(samples.inputs, samples.labels, CLASSES, groups=groups)
    mask = holdout_of(toy, "site-1")
    assert mask.any()
    for group in np.unique(groups):
        assert len(set(mask[groups == group])) == 1


def test_a_site_that_would_keep_nothing_holds_nothing_out(tmp_path: Path) -> None:
    toy = toy_with_holdout(tmp_path)
    samples = toy.sites["site-1"]
    groups = np.array(["the only patient"] * 160)
    part = Samples(samples.inputs, samples.labels, CLASSES, groups=groups)
    toy.sites["site-1"] = part
    mask = holdout_of(toy, "site-1")
    assert mask.sum() == 0


def test_a_method_sees_all_that_the_heads_say_about_its_training_part(tmp_path: Path) -> None:
    site = toy_with_holdout(tmp_path).site("site-1")
    posterior = np.full((160, CLASSES), 0.25)
    site.evidence = LabelEvidence(posterior, share_explained=0.3)
    mask = np.arange(160) < 40
    evidence = holdout.training_part(site, mask).evidence
    assert evidence is not None and evidence.posterior is not None
    assert len(evidence.posterior) == 120
    assert evidence.share_explained == 0.3
