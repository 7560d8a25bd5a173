"""The one training loop, the one evaluation pass, and augmentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedgsca.credal import CredalObjective, Loss
from fedgsca.errors import ConfigError
from fedgsca.evidence import MAX_WEIGHT
from fedgsca.methods import train as training
from fedgsca.methods.label_loss import LabelLoss
from fedgsca.methods.parts.optimisers import SGD, AdamW
from fedgsca.methods.site import Samples, Site, weights_of
from fedgsca.methods.site_store import Store
from fedgsca.methods.train import (
    Batch,
    LogitObjective,
    LogitPass,
    batches,
    cross_entropy,
    cross_entropy_gradient,
    draw_weighted,
    evaluate,
    train,
)
from fedgsca.models.batches import augment
from fedgsca.models.build import build_classifier, build_head_only
from fedgsca.rng import stream
from tests.toys import CLASSES, toy_config, toy_images

CPU = torch.device("cpu")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    labels = np.arange(33, dtype=np.int64) % CLASSES
    samples = Samples(toy_images(labels), labels, CLASSES)
    hyper = toy_config("fedavg", train__batch_size=8, train__lr=0.02, train__class_balance=0).train
    return Site(
        "north", samples, hyper, 0, build_classifier("cnn", CLASSES, seed=0), CPU, Store(tmp_path)
    )


# ---- batches ----


def test_a_pass_sees_every_sample_once_but_not_a_batch_of_one(site: Site) -> None:
    rows = [batch.rows for batch in batches(site, 0)]
    assert [len(r) for r in rows] == [
        8,
        8,
        8,
        8,
    ]  # 33 samples: the last batch would hold one, which BatchNorm cannot take
    assert len(set(np.concatenate(rows).tolist())) == 32


def test_order_follows_round_epoch_and_site_and_nothing_else(site: Site) -> None:
    def order(round: int, epoch: int) -> list[int]:
        return np.concatenate([b.rows for b in batches(site, round, epoch=epoch)]).tolist()  # type: ignore[no-any-return]

    first = order(0, 0)
    assert first == order(0, 0)
    assert len({tuple(order(*a)) for a in ((0, 0), (1, 0), (0, 1))}) == 3
    site.name = "south"
    assert order(0, 0) != first


def test_chosen_rows_and_labels_stay_together(site: Site) -> None:
    rows, labels = np.array([4, 9, 2, 30]), np.array([2, 0, 1, 1])
    outputs = {
        int(r): int(y)
        for b in batches(site, 0, rows, labels)
        for r, y in zip(b.rows, b.y, strict=True)
    }
    assert outputs == {4: 2, 9: 0, 2: 1, 30: 1}


def test_training_leaves_the_site_s_images_alone(site: Site) -> None:
    before = site.samples.inputs.copy()
    train(site, 0, cross_entropy)
    assert np.array_equal(site.samples.inputs, before)


def test_one_sample_or_none_trains_nothing(site: Site) -> None:
    before = weights_of(site.model)
    for count in (0, 1):
        train(site, 0, cross_entropy, np.arange(count), site.labels[:count])
    assert all(np.array_equal(before[n], w) for n, w in weights_of(site.model).items())


def test_epochs_repeat_with_other_shuffles(site: Site) -> None:
    site.hyper = site.hyper.model_copy(update={"epochs": 3})
    batch_rows: list[tuple[int, ...]] = []

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        batch_rows.append(tuple(batch.rows))
        return cross_entropy(model, batch)

    train(site, 0, objective)
    assert len(batch_rows) == 12 and len(set(batch_rows)) == 12


# ---- steps ----


def test_adamw_is_torch_s_adamw() -> None:
    own_fit, others = (nn.Linear(4, 3) for _ in range(2))
    with torch.no_grad():
        for a, b in zip(own_fit.parameters(), others.parameters(), strict=True):
            b.copy_(a.copy_(torch.linspace(-1, 1, a.numel()).view_as(a)))
    members = AdamW(list(own_fit.parameters()), 0.01, weight_decay=0.05)
    reference = torch.optim.AdamW(others.parameters(), 0.01, weight_decay=0.05)
    for step in range(5):
        x = torch.from_numpy(stream(step, "x").normal(size=(6, 4)).astype(np.float32))
        for model, steps in ((own_fit, members), (others, reference)):
            steps.zero_grad()
            model(x).square().sum().backward()
            steps.step()
    for a, b in zip(own_fit.parameters(), others.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_a_gradient_is_clipped_as_a_whole() -> None:
    weight = nn.Parameter(torch.zeros(2))
    steps = SGD([weight], lr=1.0, clip=1.0)
    for gradient, change in (([3.0, 4.0], [-0.6, -0.8]), ([0.3, 0.4], [-0.3, -0.4])):
        with torch.no_grad():
            weight.zero_()
        weight.grad = torch.tensor(gradient)
        steps.step()
        assert torch.allclose(weight, torch.tensor(change), atol=1e-6)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_head_is_trained_alike_with_and_without_autograd(optimiser: str) -> None:
    changes = {"optimiser": optimiser, "clip": 0.5}
    weights = []
    for objective in (LabelLoss, None):
        labels = np.arange(40, dtype=np.int64) % CLASSES
        inputs = stream(0, "head").normal(size=(40, 8)).astype(np.float32)
        hyper = toy_config("fedavg", train__lr=0.02, train__batch_size=8).train
        site = Site(
            "north",
            Samples(inputs, labels, CLASSES),
            hyper.model_copy(update=changes),
            0,
            build_head_only(8, CLASSES, seed=0),
            CPU,
            Store(Path("nowhere")),
        )
        train(site, 0, LabelLoss(site, 0) if objective else cross_entropy)
        weights.append(weights_of(site.model))
    assert all(np.allclose(weights[0][name], weights[1][name], atol=1e-5) for name in weights[0])


def test_steps_end_a_local_epoch_early(site: Site) -> None:
    site.hyper = site.hyper.model_copy(update={"steps": 2, "epochs": 3})
    sizes = [len(batch.rows) for epoch in range(3) for batch in batches(site, 0, epoch=epoch)]
    assert sizes == [8] * 6


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("steps", [1, 1, 1, 1, 1, 1, 1, 0.1, 0.1, 0.01]),
        ("constant+warmup3", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]),
        ("cosine", [1, 0.976, 0.905, 0.794, 0.655, 0.5, 0.345, 0.206, 0.095, 0.024]),
        ("cosine+warmup2", [1 / 3, 2 / 3, 1, 0.962, 0.854, 0.691, 0.5, 0.309, 0.146, 0.038]),
    ],
)
def test_the_schedule_of_the_learning_rate(schedule: str, factors: list[float]) -> None:
    hyper = toy_config("fedavg", train__rounds=10, train__lr=2.0, train__schedule=schedule).train
    assert [hyper.lr_at(i) for i in range(10)] == pytest.approx([2 * f for f in factors], abs=2e-3)


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        toy_config("fedavg", train__schedule="cosine+5")
    assert "train.schedule" in str(caught.value)


def test_label_smoothing_is_torch_s(site: Site) -> None:
    site.hyper = site.hyper.model_copy(update={"loss": "smooth", "smoothing": 0.2})
    batch = next(batches(site, 0))
    logits = site.model(batch.x)
    expected = nn.functional.cross_entropy(logits, batch.y, label_smoothing=0.2)
    assert torch.equal(LabelLoss(site, 0).of(logits, batch), expected)


def test_strong_augmentation_is_reproducible_and_stays_in_range() -> None:
    images = torch.from_numpy(toy_images(np.arange(6) % CLASSES)).permute(0, 3, 1, 2)
    first, second = (augment(images, "strong", stream(1, "a")) for _ in range(2))
    assert torch.equal(first, second) and first.shape == images.shape
    assert first.min() >= 0 and first.max() <= 255 and not torch.equal(first, images.float())


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 1e-2), (0.0, 1e-2)])
def test_sgd_is_torch_s_sgd(momentum: float, decay: float) -> None:
    own_fit, others = (nn.Linear(4, 3) for _ in range(2))
    with torch.no_grad():
        for a, b in zip(own_fit.parameters(), others.parameters(), strict=True):
            b.copy_(a.copy_(torch.linspace(-1, 1, a.numel()).view_as(a)))
    members = SGD(list(own_fit.parameters()), 0.1, momentum, decay)
    reference = torch.optim.SGD(others.parameters(), 0.1, momentum, weight_decay=decay)
    for step in range(5):
        x = torch.from_numpy(stream(step, "x").normal(size=(6, 4)).astype(np.float32))
        for model, optimiser in ((own_fit, members), (others, reference)):
            optimiser.zero_grad()
            model(x).square().mean().backward()
            optimiser.step()
    assert all(
        torch.allclose(a, b, atol=1e-7)
        for a, b in zip(own_fit.parameters(), others.parameters(), strict=True)
    )


# ---- evaluation ----


def test_probabilities_and_losses_are_those_of_the_model(site: Site) -> None:
    outputs = evaluate(site.model, site.samples, CPU, features=True)
    assert outputs.probs.shape == (33, CLASSES) and np.allclose(outputs.probs.sum(axis=1), 1)
    assert np.allclose(outputs.losses, -np.log(outputs.probs[np.arange(33), site.labels]))
    assert outputs.features is not None and outputs.features.shape[0] == 33
    assert np.array_equal(outputs.predictions, outputs.probs.argmax(axis=1))


def test_a_sure_and_wrong_model_has_a_large_loss_not_an_infinite_one(site: Site) -> None:
    with torch.no_grad():
        bias = site.model.get_parameter("head.bias")
        bias.copy_(torch.tensor([400.0, 0.0, -400.0]))
    losses = evaluate(site.model, site.samples, CPU).losses
    assert np.isfinite(losses).all() and losses.max() > 700


def test_evaluation_changes_nothing_and_repeats_itself(site: Site) -> None:
    site.model.train()
    before = weights_of(site.model)
    first = evaluate(site.model, site.samples, CPU)
    assert np.array_equal(first.probs, evaluate(site.model, site.samples, CPU).probs)
    assert all(np.array_equal(before[n], w) for n, w in weights_of(site.model).items())


def test_a_sample_s_result_does_not_depend_on_its_neighbours(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = evaluate(site.model, site.samples, CPU)
    monkeypatch.setattr(training, "EVAL_BATCH", 5)
    assert np.allclose(everything.probs, evaluate(site.model, site.samples, CPU).probs, atol=1e-6)


def test_features_go_straight_in() -> None:
    features = stream(0, "f").normal(size=(9, 6)).astype(np.float32)
    samples = Samples(features, np.zeros(9, np.int64), CLASSES)
    outputs = evaluate(build_head_only(6, CLASSES, seed=0), samples, CPU, features=True)
    assert outputs.features is not None and np.array_equal(outputs.features, features)


# ---- a linear head on frozen features, without autograd ----


def frozen_site(folder: Path, num_samples: int = 45) -> Site:
    features = stream(0, "frozen").normal(size=(num_samples, 20)).astype(np.float32)
    labels = stream(0, "labels").integers(0, CLASSES, num_samples)
    hyper = toy_config(
        "fedavg", train__batch_size=8, train__epochs=2, train__lr=0.5, train__class_balance=0
    ).train
    model = build_head_only(20, CLASSES, seed=0)
    return Site("north", Samples(features, labels, CLASSES), hyper, 0, model, CPU, Store(folder))


def credal_objective(loss: Loss, num_samples: int) -> CredalObjective:
    permission = stream(0, "permission").random((num_samples, CLASSES)) < 0.5
    return CredalObjective(0.05, 0.4, permission, loss)


@pytest.mark.parametrize("name", ["ce", "rcl", "ucl"])
def test_the_direct_steps_of_a_linear_head_have_the_bits_of_autograd(
    name: Loss, tmp_path: Path
) -> None:
    weights = []
    for is_direct in (True, False):
        site = frozen_site(tmp_path)
        objective: LogitObjective = LabelLoss(site, 0)
        if name != "ce":
            objective = credal_objective(name, site.num_samples)
        assert objective.has_gradient
        start = weights_of(site.model)
        if is_direct:
            train(site, 0, objective)
        else:
            train(site, 0, objective.__call__)
        weights.append(weights_of(site.model))
        assert not np.array_equal(start["head.weight"], weights[-1]["head.weight"])
    assert np.array_equal(weights[0]["head.weight"], weights[1]["head.weight"])
    assert np.array_equal(weights[0]["head.bias"], weights[1]["head.bias"])


def test_other_losses_and_networks_are_left_to_autograd(site: Site, tmp_path: Path) -> None:
    head_site = frozen_site(tmp_path)
    head_site.hyper = head_site.hyper.model_copy(update={"loss": "gce"})
    assert not LabelLoss(head_site, 0).has_gradient
    assert training.linear_head(head_site.model, CPU) is head_site.model.head
    assert training.linear_head(site.model, CPU) is None


def test_a_logit_pass_has_the_gradients_of_autograd(site: Site, tmp_path: Path) -> None:
    """A linear head is computed directly, a network through its graph: the bits are the same."""
    for place in (frozen_site(tmp_path), site):
        place.model.train()
        batch = next(iter(batches(place, 0)))
        parameters = list(place.model.parameters())
        torch.autograd.backward(cross_entropy(place.model, batch))
        expected = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        logit_pass = LogitPass(place.model, batch.x, CPU)
        logit_pass.backward(cross_entropy_gradient(logit_pass.logits, batch.y))
        for parameter, gradient in zip(parameters, expected, strict=True):
            assert parameter.grad is not None and gradient is not None
            assert torch.equal(parameter.grad, gradient)


def test_features_are_read_in_spans_and_the_batches_do_not_show_it(tmp_path: Path) -> None:
    """41 samples in batches of 8: a span of four batches, one more batch, and one sample alone."""
    site = frozen_site(tmp_path, num_samples=41)
    rows = []
    for batch in batches(site, 0):
        assert torch.equal(batch.x, torch.from_numpy(site.samples.inputs[batch.rows]))
        assert torch.equal(batch.y, torch.from_numpy(site.labels[batch.rows]))
        rows.append(batch.rows)
    assert [len(part) for part in rows] == [8] * 5
    order = site.rng(0, "shuffle", 0).permutation(41)
    assert np.array_equal(np.concatenate(rows), order[:40])


# ---- augmentation ----


def pictures(count: int = 16, height: int = 6, width: int = 6) -> torch.Tensor:
    pixels = stream(0, "pictures").integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def symmetries(image: torch.Tensor) -> list[torch.Tensor]:
    return [
        turned.flip(dims)
        for turned in (image, image.transpose(1, 2))
        for dims in ((), (1,), (2,), (1, 2))
    ]


@pytest.mark.parametrize("kind", ["flips", "dihedral"])
def test_every_augmented_image_is_one_of_its_symmetries(kind: str) -> None:
    before = pictures(64)
    after = augment(before.clone(), kind, stream(1, "a"))
    used = []
    for old, new in zip(before, after, strict=True):
        matches = [i for i, s in enumerate(symmetries(old)) if torch.equal(s, new)]
        assert matches
        used += matches[:1]
    assert len(set(used)) == (8 if kind == "dihedral" else 4), "all of them occur"


def test_no_augmentation_and_images_that_are_not_square() -> None:
    wide = pictures(8, 4, 9)
    assert augment(wide, "none", stream(0, "a")) is wide
    assert augment(wide.clone(), "dihedral", stream(0, "a")).shape == wide.shape


def test_rotation_keeps_shape_range_and_stream() -> None:
    one, same = (augment(pictures(), "rotate", stream(3, "r")) for _ in range(2))
    assert (
        one.shape == (16, 3, 6, 6)
        and torch.equal(one, same)
        and one.min() >= 0
        and one.max() <= 255
    )
    assert not torch.equal(one, augment(pictures(), "rotate", stream(4, "r")))
    flat = torch.full((2, 3, 6, 6), 77, dtype=torch.uint8)
    assert torch.allclose(augment(flat, "rotate", stream(0, "r")), torch.tensor(77.0)), (
        "no dark corners"
    )


# ---- class balance ----


@pytest.mark.parametrize(
    ("exponent", "shares"), [(0.5, (0.70, 0.22, 0.08)), (1.0, (0.44, 0.43, 0.13))]
)
def test_rare_labels_come_more_often(exponent: float, shares: tuple[float, ...]) -> None:
    labels = np.repeat([0, 1, 2], [900, 90, 10])
    order = stream(0, "order").permutation(1000)
    drawn = draw_weighted(labels, order, exponent, stream(0, "balance"))
    assert drawn.shape == (1000,)
    counts = np.bincount(labels[drawn])
    np.testing.assert_allclose(counts / 1000, shares, atol=0.05)
    repeats = np.bincount(drawn, minlength=1000)
    assert repeats.max() <= MAX_WEIGHT * 2.5
    for label in range(3):  # every sample of a class comes as often as any other, up to one
        assert np.ptp(repeats[labels == label]) <= 1


def test_equal_classes_are_each_shown_once() -> None:
    labels = np.arange(60) % 3
    order = stream(0, "order").permutation(60)
    drawn = draw_weighted(labels, order, 1.0, stream(0, "balance"))
    assert sorted(drawn) == list(range(60))


def test_without_balance_a_pass_shows_every_sample_once(tmp_path: Path) -> None:
    for exponent in (0.0, 1.0):
        site = frozen_site(tmp_path)
        site.hyper = site.hyper.model_copy(update={"class_balance": exponent})
        labels = np.minimum(np.arange(site.num_samples), 1)  # one rare label, chosen by the method
        rows = np.concatenate([b.rows for b in batches(site, 0, None, labels)])
        assert (np.count_nonzero(rows == 0) > 1) == (exponent == 1.0)
        assert len(rows) >= site.num_samples - 1
