"""FedFixer: the sieve against hand numbers, the cross update, and training on noisy labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from fedgsca.methods.fedfixer import (
    FedFixerOptions,
    ModelPair,
    confidence_at,
    confidence_gradient,
    confidence_loss,
    label_and_mean,
    sieve,
)
from fedgsca.methods.train import batches
from fedgsca.rng import stream
from fedgsca.wire import Update
from tests.helpers import toy_experiment

QUICK = {"warmup": 3, "confidence": 1.0}


def uniform(classes: int) -> torch.Tensor:
    return torch.full((classes,), 1.0 / classes)


def test_the_sieve_is_lenient_when_the_model_is_sure_of_another_class() -> None:
    """p_1 = 0.02 against 0.95 passes, because the geometric mean of all ten is 0.0077."""
    p = torch.tensor([[0.95, 0.02] + [0.00375] * 8])
    for label, stored in ((0, True), (1, True), (2, False)):
        l_y, l_mean = label_and_mean(p.log(), torch.tensor([label]), uniform(10))
        assert float(torch.exp(-l_mean)) == pytest.approx(0.0077, abs=5e-5)
        assert bool(sieve(l_y, l_mean)) is stored


def test_the_label_prior_judges_by_the_sites_own_classes() -> None:
    logits, y = torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([1])
    assert not sieve(*label_and_mean(logits, y, torch.tensor([0.9, 0.05, 0.05])))
    assert sieve(*label_and_mean(logits, y, torch.tensor([0.05, 0.05, 0.9])))


def test_with_b_one_the_loss_is_the_log_odds_against_the_geometric_mean() -> None:
    logits = torch.from_numpy(stream(0, "odds").normal(size=(20, 6)))
    y = torch.arange(20) % 6
    p = torch.softmax(logits, dim=1)
    geometric = p.log().mean(dim=1).exp()
    expected = -torch.log(p[torch.arange(20), y] / geometric)
    assert torch.allclose(
        confidence_loss(*label_and_mean(logits, y, uniform(6)), 1.0).double(), expected, atol=1e-5
    )


def test_the_loss_is_bounded_where_wrong_classes_vanish() -> None:
    logits = torch.tensor([[0.0, -900.0, -900.0]], requires_grad=True)
    loss = confidence_loss(*label_and_mean(logits, torch.tensor([0]), uniform(3)), 2.0).sum()
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(-2 * 2 / 3 * np.log(1e8), rel=1e-5)
    assert logits.grad is not None and bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("clamp", ["published", "floor"])
@pytest.mark.parametrize("num_kept", [0, 5, 20])
def test_the_gradient_has_the_bits_of_autograd(
    clamp: Literal["published", "floor"], num_kept: int
) -> None:
    noise = stream(1, "gradient").normal(size=(20, 6)).astype(np.float32)
    # the last rows have probabilities below the floor
    logits = torch.from_numpy(noise * np.linspace(1.0, 30.0, 20, dtype=np.float32)[:, None])
    logits.requires_grad_()
    y = torch.arange(20) % 6
    prior = torch.linspace(0.1, 0.3, 6) / 1.2
    keep = torch.arange(20) >= 20 - num_kept
    losses = confidence_loss(*label_and_mean(logits, y, prior, clamp), 1.7)
    torch.autograd.backward((losses * keep.float()).sum() / max(num_kept, 1))
    gradient = confidence_gradient(logits.detach(), y, keep, prior, 1.7, clamp)
    assert logits.grad is not None
    assert torch.equal(gradient, logits.grad)
    assert bool(gradient.any()) is (num_kept > 0)


def test_the_personal_model_is_pulled_towards_w(tmp_path: Path) -> None:
    """Without samples that count, a step of phi is nothing but eta lambda (w - phi)."""
    site = toy_experiment(tmp_path, "fedfixer").site("site-1")
    pair = ModelPair(FedFixerOptions(distance=2.0, personal_decay=0.0), site, 0, sieving=True)
    w, phi = pair.parameters[0]
    with torch.no_grad():
        phi.add_(1.0)
    pair.phi_steps.zero_grad()
    pair._add_distance()
    assert phi.grad is not None
    assert torch.allclose(phi.grad, torch.full_like(phi, 2.0))
    assert torch.allclose(phi.grad, 2.0 * (phi - w))


def test_schedule_of_the_confidence_weight() -> None:
    result = [confidence_at(e, 10, 2.0) for e in range(40)]
    assert result[:4] == pytest.approx([0, 0, 0, 2 / 9])
    assert result[10] < 2.0
    assert result[11:] == [2.0] * 29


def test_the_sieve_keeps_clean_samples_more_often_than_noisy_ones(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedfixer", options=QUICK)
    toy.run(8)
    for name in ("site-3", "site-4"):  # half of the labels are wrong
        stored, wrong = toy.notes[name]["clean"], toy.sites[name].labels != toy.truth[name]
        assert stored[~wrong].mean() > stored[wrong].mean() + 0.5
        assert float(toy.updates[name].extras["selected"]) == stored.sum()
    for name in ("site-1", "site-2"):
        assert toy.notes[name]["clean"].mean() > 0.9


def test_it_learns_more_from_noisy_labels_than_fedavg(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"noise": (0.0, 0.6, 0.6, 0.6), "spread": 1.5, "lr": 0.1}
    fixer = toy_experiment(tmp_path / "a", "fedfixer", options=QUICK, **settings)
    plain = toy_experiment(tmp_path / "b", "fedavg", **settings)
    assert fixer.accuracy(fixer.run(12).weights) > plain.accuracy(plain.run(12).weights) + 0.02


def test_every_sample_is_kept_up_to_and_including_round_t_sel(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedfixer", options={"warmup": 1})
    state = toy.run(2)
    assert [float(u.extras["selected"]) for u in toy.updates.values()] == [60.0] * 4
    assert all("clean" not in notes for notes in toy.notes.values())
    toy.round(state)
    assert all("clean" in notes for notes in toy.notes.values())


def test_each_model_trains_on_what_the_other_one_trusts(tmp_path: Path) -> None:
    """phi distrusts everything: w must not learn from this batch, phi learns from what w trusts."""
    site = toy_experiment(tmp_path, "fedfixer").site("site-1")
    w = site.model.get_parameter("head.weight")
    w.data.zero_()  # w is undecided: it keeps every sample
    pair = ModelPair(FedFixerOptions(distance=0.0, personal_decay=0.0), site, 0, sieving=True)
    batch = next(iter(batches(site, 0, np.flatnonzero(site.labels != 0))))
    # certain of class 0, which is not in the batch
    pair.phi.get_parameter("head.bias").data[:] = torch.tensor([5.0, 0.0, 0.0, 0.0])
    phi = pair.phi.get_parameter("head.weight")
    old_w = w.clone()
    old_phi = phi.clone()
    assert not pair.step(batch).any()
    assert torch.equal(w, old_w)
    assert not torch.equal(phi, old_phi)


def test_without_its_ideas_it_is_fedavg(tmp_path: Path) -> None:
    off = {"warmup": 99, "confidence": 0.0, "distance": 0.0}
    fixer = toy_experiment(tmp_path / "a", "fedfixer", options=off).run(3)
    plain = toy_experiment(tmp_path / "b", "fedavg").run(3)
    for name, value in plain.weights.items():
        assert fixer.weights[name] == pytest.approx(value, abs=1e-5)


def test_the_server_weighs_sites_by_selected_samples_and_keeps_theta_if_there_are_none(
    tmp_path: Path,
) -> None:
    toy = toy_experiment(tmp_path, "fedfixer")
    state = replace(toy.start(), weights={"w": np.array([7.0])})

    def sent(*selected: float) -> list[Update]:
        return [
            Update(f"s{k}", 10, {"w": np.array([float(k)])}, {"selected": np.array(n)})
            for k, n in enumerate(selected)
        ]

    assert toy.method.aggregate(state, sent(1.0, 3.0)).weights["w"] == pytest.approx([0.75])
    assert toy.method.aggregate(state, sent(np.nan, 1e9)).weights["w"] == pytest.approx(
        [1.0]
    )  # no more than it has
    assert toy.method.aggregate(state, sent(0.0, 0.0)).weights["w"] == pytest.approx([7.0])


def test_a_large_step_does_not_make_the_pull_overshoot(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedfixer", options=QUICK, lr=0.5)
    state = toy.run(8)
    assert all(np.isfinite(value).all() for value in state.weights.values())
    assert toy.accuracy(state.weights) > 0.8


@pytest.mark.parametrize(
    "options", [{"personal_steps": 5}, {"prior": "labels"}, {"personal": "keep"}]
)
def test_the_switches_change_the_result(tmp_path: Path, options: dict[str, object]) -> None:
    default = toy_experiment(tmp_path / "a", "fedfixer", options=QUICK | {"warmup": 1}).run(3)
    changed = toy_experiment(
        tmp_path / "b", "fedfixer", options=QUICK | {"warmup": 1} | options
    ).run(3)
    assert changed.weights["head.weight"].tobytes() != default.weights["head.weight"].tobytes()
    assert (tmp_path / "b").exists() is (
        options == {"personal": "keep"}
    )  # a private memory only where it is asked for
