"""How models are trained by default: the same for every method, and never by a prefix of a name."""

from __future__ import annotations

import pytest

from fedgsca.config import TrainConfig, load_config
from fedgsca.models.build import MODELS
from fedgsca.models.training import head_rate, resolve_rate
from fedgsca.models.weights import WEIGHT_PACKAGES


@pytest.mark.parametrize("name", [*sorted(set(MODELS) - {"features"}), "my.package:network"])
def test_only_the_small_cnn_is_trained_like_the_small_cnn(name: str) -> None:
    config = load_config(model__name=name)
    is_small = name.startswith("cnn")
    assert resolve_rate(config, 128, 4) == (0.02 if is_small else 0.01)
    steps = {True: (0.9, 32), False: (0.9, 16) if name in WEIGHT_PACKAGES else (0.0, 128)}
    assert (config.train.momentum, config.train.batch_size) == steps[is_small]


@pytest.mark.parametrize("method", ["fedavg", "fedgsca", "fedgsca-e"])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_rate_that_a_user_sets_is_the_rate(method: str, frozen: bool) -> None:
    config = load_config(method=method, model__frozen=frozen, train__lr=0.05)
    assert resolve_rate(config, 1280, 4) == 0.05


@pytest.mark.parametrize("method", ["fedavg", "fedgsca", "fedgsca-e"])
def test_auto_is_the_same_for_every_method(method: str) -> None:
    config = load_config(method=method, model__frozen=True, train__rounds=60)
    assert config.train.lr == "auto"
    assert resolve_rate(config, 1280, 4) == pytest.approx(10 * 32 * 4 / 60 / 1280)


@pytest.mark.parametrize(
    ("rounds", "num_sites", "momentum", "expected"),
    [
        (60, 4, 0.0, 10 * 32 * 4 / 60),
        (60, 2, 0.0, 10 * 32 * 4 / 60),  # few sites count as four
        (120, 4, 0.0, 10 * 32 * 4 / 120),  # twice as long, half as large
        (60, 9, 0.0, 10 * 32 * 6 / 60),  # the mean of more sites
        (60, 1000, 0.0, 64.0),  # never larger than this
        (10, 4, 0.0, 64.0),
        (60, 4, 0.9, 10 * 32 * 4 / 60 * 0.1),
    ],
)
def test_the_sum_of_the_steps_on_frozen_features_is_fixed(
    rounds: int, num_sites: int, momentum: float, expected: float
) -> None:
    """`expected` is the learning rate times the number of features."""
    train = TrainConfig(rounds=rounds, momentum=momentum, batch_size=32)
    for width in (64, 1280):
        assert head_rate(train, width, num_sites) * width == pytest.approx(expected)


def test_more_local_epochs_and_smaller_batches_mean_smaller_steps() -> None:
    train = TrainConfig(rounds=60, momentum=0.0, batch_size=16, epochs=2)
    usual = TrainConfig(rounds=60, momentum=0.0, batch_size=32, epochs=1)
    assert head_rate(train, 1280, 4) == pytest.approx(head_rate(usual, 1280, 4) / 4)
