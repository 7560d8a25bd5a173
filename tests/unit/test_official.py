"""`official`: every rival follows its authors' code where a switch exists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedgsca.config import load_config
from fedgsca.errors import ConfigError
from fedgsca.methods.base import PublishedOptions, load_methods
from fedgsca.methods.fedcorr import FedCorrOptions, noise_level
from fedgsca.methods.fedfixer import FedFixerOptions, ModelPair, label_and_mean
from fedgsca.methods.fedrobust import Affine, FedRobustOptions
from fedgsca.methods.parts.two_stages import grouping, is_noisy
from fedgsca.rng import stream
from tests.helpers import toy_experiment

RIVALS = [
    name for name, method in load_methods().items() if issubclass(method.Options, PublishedOptions)
]
PAPERS_RIVALS = {"fedprox", "fedrobust", "fedcorr", "fedgp", "fedfixer", "fednoro"}


def test_every_rival_of_the_paper_with_options_has_the_switch() -> None:
    assert set(RIVALS) >= PAPERS_RIVALS


@pytest.mark.parametrize("name", RIVALS)
def test_official_sets_every_published_choice_and_explicit_options_win(name: str) -> None:
    schema = load_methods()[name].Options
    assert issubclass(schema, PublishedOptions)
    config = load_config(method=name, sets=[f"{name}.official=true"])
    for key, value in schema.OFFICIAL.items():
        assert config.options[key] == value
        default = schema.model_fields[key].default
        if default is None:  # by the network: any number is explicit
            default = 0.5
        is_explicit = load_config(
            method=name, **{f"{name}__official": True, f"{name}__{key}": default}
        )
        assert is_explicit.options[key] == default
    assert not load_config(method=name).options["official"]


@pytest.mark.parametrize("name", RIVALS)
def test_a_written_configuration_with_official_is_read_back(name: str) -> None:
    from fedgsca.config import build

    config = load_config(method=name, sets=[f"{name}.official=true"])
    assert build(config.to_tree()) == config


@pytest.mark.parametrize("name", sorted(PAPERS_RIVALS))
def test_a_short_run_with_official_learns(name: str, tmp_path: Path) -> None:
    options = {"official": True}
    if name in ("fedfixer", "fednoro"):
        options["warmup"] = 2  # type: ignore[assignment]
    toy = toy_experiment(tmp_path, name, noise=(0.0, 0.0, 0.3, 0.3), rounds=8, options=options)
    assert toy.accuracy(toy.run(8).weights) > 0.6


def test_fedfixer_unlearns_a_confident_mistake_as_published_and_not_with_a_floor() -> None:
    logits = torch.tensor([[30.0, 0.0, 0.0]], requires_grad=True)
    label = torch.tensor([1])
    prior = torch.full((3,), 1 / 3)
    l_y, _ = label_and_mean(logits, label, prior, "published")
    assert l_y.item() == pytest.approx(30.0, abs=1e-3)
    (gradient,) = torch.autograd.grad(l_y.sum(), logits)
    assert float(gradient[0, 1]) == pytest.approx(-1.0, abs=1e-3)
    l_y, l_mean = label_and_mean(logits, label, prior, "floor")
    (gradient,) = torch.autograd.grad(l_y.sum(), logits)
    assert float(gradient.abs().max()) == 0.0
    # log(p + 1e-8), for certain classes as well
    _, published_mean = label_and_mean(logits, label, prior, "published")
    assert published_mean.item() == pytest.approx(-2 / 3 * np.log(1e-8), abs=1e-3)
    assert l_mean.item() == pytest.approx(published_mean.item(), abs=1e-3)


def test_fedfixer_official_pulls_without_a_limit(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedfixer", lr=0.2)
    site = toy.site("site-1")
    site.load(toy.start().weights)
    limited = ModelPair(FedFixerOptions(), site, 0, sieving=False)
    free = ModelPair(FedFixerOptions(official=True), site, 0, sieving=False)
    assert limited.distance * limited.lr == pytest.approx(1.0)
    assert free.distance == 15.0 and free.options.personal_steps == 5


def test_fedcorr_official_always_finds_two_groups_of_losses() -> None:
    one_mode = stream(0, "one").normal(1.5, 0.05, 400)
    assert noise_level(one_mode, two_modes=False) > 0
    options = FedCorrOptions(official=True)
    assert (options.prox, options.split_guard, options.grouping) == ("norm", 0.0, "mixture")
    assert options.stage1 + options.stage2 == pytest.approx(0.55)


def test_fednoro_official_groups_by_mixtures_and_a_site_agrees_with_the_server() -> None:
    losses = stream(3, "losses").uniform(0.2, 1.0, (5, 4)) + np.array([[0], [0], [0], [2], [2]])
    rule = grouping(losses, "mixtures")
    assert set(rule) == {"low", "high", "centres", "covariances", "shares"}
    assert [is_noisy(row, rule) for row in losses] == [False, False, False, True, True]


def test_fedrobust_official_has_a_full_matrix(tmp_path: Path) -> None:
    toy = toy_experiment(tmp_path, "fedrobust")
    site = toy.site("site-1")
    affine = Affine(FedRobustOptions(official=True), site, {})
    width = site.samples.inputs.shape[1]
    assert affine.matrix.shape == (width, width) and affine.shift.shape == (width,)
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    assert torch.equal(affine(x), x), "it starts at the identity"
    with torch.no_grad():
        affine.matrix[0, 1] = 1.0
    assert torch.allclose(affine(x)[:, 0], x[:, 0] + x[:, 1])
    images = toy_experiment(tmp_path / "images", "fedrobust", images=True).site("site-1")
    assert Affine(FedRobustOptions(official=True), images, {}).matrix.shape == (768, 768)


def test_fedrobust_refuses_a_full_matrix_on_large_images(tmp_path: Path) -> None:
    from dataclasses import replace

    site = toy_experiment(tmp_path, "fedrobust", images=True).site("site-1")
    large = replace(
        site.samples, inputs=np.zeros((2, 40, 40, 3), np.uint8), labels=np.zeros(2, int)
    )
    site.samples = large
    with pytest.raises(ConfigError) as error:
        Affine(FedRobustOptions(official=True), site, {})
    assert error.value.code == "method.input-too-large"
