"""Networks: the same start for everybody, one shape for images and features."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsca.config import ModelConfig, build
from fedgsca.errors import ConfigError, WeightsError
from fedgsca.federation.simulation import prepare
from fedgsca.methods.site import weights_of
from fedgsca.models.build import (
    build_backbone,
    build_classifier,
    build_frozen,
    build_head_only,
    feature_width,
    spec_of,
    trainable_names,
)
from fedgsca.models.device import prepare_device
from fedgsca.models.features import FeaturePass
from fedgsca.models.networks import StageFeatures
from fedgsca.models.weights import has_packaged_weights, packaged_weights
from tests.toys import toy_config, toy_npz, toy_weights

SMALL = ["cnn", "cnn-groupnorm"]
PAIR = "efficientnet-lite0-resnet50"
needs_weights = pytest.mark.skipif(
    find_spec("efficientnet_lite_pytorch") is None, reason="the [weights] extra is not installed"
)


@pytest.mark.parametrize("head", ["linear", "centroid"])
@pytest.mark.parametrize("name", SMALL)
def test_images_to_features_to_logits(name: str, head: str) -> None:
    model = build_classifier(name, 5, seed=0, head=head).eval()
    x = torch.zeros(2, 3, 28, 28)
    assert model.features(x).shape == (2, feature_width(ModelConfig(name=name)))
    assert model(x).shape == (2, 5) and torch.equal(model(x), model.head(model.features(x)))


@pytest.mark.parametrize("size", [12, 28, 33, 64])
def test_any_image_size_gives_the_same_width(size: int) -> None:
    assert build_classifier("cnn", 3, seed=0).features(torch.zeros(2, 3, size, size)).shape == (
        2,
        feature_width(ModelConfig(name="cnn")),
    )


def test_same_seed_same_bytes_other_seed_other_bytes() -> None:
    one, same, other = (weights_of(build_classifier("cnn", 4, seed=s)) for s in (3, 3, 4))
    assert all(np.array_equal(one[n], same[n]) for n in one)
    assert any(not np.array_equal(one[n], other[n]) for n in one)


def test_values_are_finite_and_scaled_like_the_layers_want_them() -> None:
    weights = weights_of(build_classifier("cnn", 4, seed=0))
    assert all(np.isfinite(value).all() for value in weights.values())
    width = feature_width(ModelConfig(name="cnn"))
    assert np.abs(weights["head.weight"]).max() <= width**-0.5 and not weights["head.bias"].any()
    conv = weights["backbone.layers.4.weight"]
    assert conv.std() == pytest.approx(
        (2 / (conv.shape[0] * 9)) ** 0.5, rel=0.05
    )  # fan-out of a 3 x 3 kernel
    assert (
        weights["backbone.layers.1.running_var"].tolist() == [1.0] * 32
        and weights["backbone.layers.1.num_batches_tracked"] == 0
    )


def test_the_head_starts_alike_with_and_without_its_backbone() -> None:
    full = weights_of(build_classifier("cnn", 4, seed=5))
    alone = weights_of(build_head_only(feature_width(ModelConfig(name="cnn")), 4, seed=5))
    assert set(alone) == {n for n in full if n.startswith("head.")}
    assert all(np.array_equal(alone[n], full[n]) for n in alone)


def test_everything_is_trainable_and_counters_are_not() -> None:
    names = trainable_names(build_classifier("cnn", 3, seed=0))
    assert "head.weight" in names and "backbone.layers.0.weight" in names
    assert not any("running" in n or "tracked" in n for n in names)


def test_unknown_model_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError) as error:
        spec_of("resnet19")
    assert error.value.code == "model.unknown" and "'resnet19'" in error.value.message
    assert "resnet18" in error.value.fix


def test_resnet_has_the_names_that_published_files_use() -> None:
    names = build_backbone("resnet18", seed=0).state_dict()
    assert len(names) == 120 and {
        "conv1.weight",
        "bn1.running_mean",
        "layer4.1.conv2.weight",
        "layer2.0.downsample.0.weight",
    } <= set(names)
    assert "layer2.0.downsample.0.bias" not in names and not any(n.startswith("fc.") for n in names)
    assert feature_width(ModelConfig(name="resnet18")) == 512


@needs_weights
def test_packaged_network_does_not_draw_at_random_while_it_trains() -> None:
    model = build_classifier("efficientnet-lite0", 3, seed=0).train()
    state = torch.get_rng_state()
    model(torch.zeros(2, 3, 32, 32))
    assert torch.equal(state, torch.get_rng_state())


@needs_weights
def test_statistics_follow_within_the_steps_of_a_short_training() -> None:
    """Else a fine-tuned network is tested with the statistics of the one that it came from."""
    backbone = build_backbone("efficientnet-lite0", seed=0).train()
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    backbone(images)
    name = "net._bn0.running_mean"
    first_step = backbone.state_dict()[name].clone()
    for _ in range(29):
        backbone(images)
    # after one step the tenth of the mean, as the statistics begin at 0
    np.testing.assert_allclose(backbone.state_dict()[name], 10 * first_step, rtol=0.06)


# ---- frozen features ----


def frozen_test_features(**settings: Any) -> np.ndarray:
    test = prepare(toy_config("fedavg", frozen=True, **settings)).test
    assert test is not None
    return test.inputs


def test_features_are_made_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy_config("fedavg", frozen=True)
    first = prepare(config)
    monkeypatch.setattr(
        "fedgsca.models.features.extract", lambda *_, **__: pytest.fail("computed again")
    )
    again = prepare(config)
    for name, samples in first.sites.items():
        assert samples.inputs.dtype == np.float32 and samples.inputs.shape == (
            len(samples),
            feature_width(ModelConfig(name="cnn")),
        )
        assert np.array_equal(samples.inputs, again.sites[name].inputs)


def test_every_feature_vector_is_standardised_by_itself() -> None:
    features = frozen_test_features()
    assert np.abs(features.mean(axis=1)).max() < 1e-4
    assert np.abs(features.std(axis=1) - 1).max() < 0.05


def test_other_weights_give_other_features(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    other = tmp_path / "other.safetensors"
    save_file(dict(build_backbone("cnn", seed=78).state_dict()), other)
    own_fit, others = (frozen_test_features(model__weights=str(p)) for p in (toy_weights(), other))
    assert not np.allclose(own_fit, others)


def test_frozen_without_weights_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        prepare(toy_config("fedavg", model__frozen=True, model__name="cnn"))
    assert error.value.code == "weights.missing-for-frozen-model"
    assert "model.weights" in error.value.fix


NETWORKS = ["resnet18", "densenet121", "vit-b16", "efficientnet-lite0"]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_frozen_network_gives_the_averages_of_its_stages(name: str) -> None:
    if name in ("densenet121", "vit-b16"):
        pytest.importorskip("monai")
    if name == "efficientnet-lite0":
        pytest.importorskip("efficientnet_lite_pytorch")
    model = ModelConfig(name=name, frozen=True)
    backbone = build_frozen(model, seed=0).eval()
    widths = [*spec_of(name).stages.values(), spec_of(name).width]
    with torch.inference_mode():
        x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        features = backbone(x)
        last = build_frozen(model.model_copy(update={"features": "last"}), seed=0).eval()(x)
    assert features.shape == (2, sum(widths)) and feature_width(model) == sum(widths)
    for part in features.split(widths, dim=1):
        assert part.mean(dim=1).abs().max() < 1e-4
    share = (sum(widths) / len(widths) / widths[-1]) ** 0.5
    expected_last = share * torch.nn.functional.layer_norm(last, last.shape[1:])
    assert torch.allclose(features[:, -last.shape[1] :], expected_last, atol=1e-5)


def test_a_stage_is_the_average_of_what_its_layer_gives() -> None:
    net = build_backbone("resnet18", seed=0).eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        first = net.layer1(net.maxpool(torch.relu(net.bn1(net.conv1(x)))))  # type: ignore
        features = StageFeatures(net, ["layer1"])(x)
    average = first.mean(dim=(2, 3))
    centred = average - average.mean(dim=1, keepdim=True)
    share = (0.5 * (64 + 512) / 64) ** 0.5
    spread = average.std(dim=1, keepdim=True, correction=0) / share
    assert torch.allclose(features[:, :64] * spread, centred, atol=1e-3)


@pytest.mark.skipif(not has_packaged_weights(PAIR), reason="an extra is not installed")
def test_two_networks_see_the_same_image() -> None:
    model = ModelConfig(name=PAIR, frozen=True, features="last")
    pair = build_frozen(model, seed=0, weights=packaged_weights(PAIR)).eval()
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    parts = []
    for name in ("efficientnet-lite0", "resnet50"):
        single = model.model_copy(update={"name": name, "feature_size": 32})
        backbone = build_frozen(single, seed=0, weights=packaged_weights(name))
        parts.append(FeaturePass(backbone, single).compute(images))
    both = FeaturePass(pair, model.model_copy(update={"feature_size": 32})).compute(images)
    assert np.allclose(both, np.concatenate(parts, axis=1), rtol=1e-2, atol=1e-3)


def test_an_altered_package_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "imgsim"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('it must not be imported')\n")
    (package / "model.pth").write_bytes(b"another file")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WeightsError) as error:
        packaged_weights("resnet50")
    assert error.value.code == "weights.packaged-file-altered"


def test_pretrained_weights_are_the_default_where_they_are_installed() -> None:
    assert build({"model": {"name": "cnn"}}).model.weights is None
    is_installed = has_packaged_weights("efficientnet-lite0")
    trained = build({"model": {"name": "efficientnet-lite0"}})
    assert trained.model.weights == ("packaged" if is_installed else None)
    fresh = build({"model": {"name": "efficientnet-lite0", "weights": "none"}})
    assert fresh.model.weights is None
    assert build({"preset": "paper-full"}).model.weights is None


def test_packaged_weights_do_not_exist_for_every_model() -> None:
    config = toy_config("fedavg", model__frozen=True, model__name="cnn", model__weights="packaged")
    with pytest.raises(ConfigError) as error:
        prepare(config)
    assert error.value.code == "weights.not-packaged"


def test_features_do_not_depend_on_the_seed() -> None:
    """The backbone comes from the file; only the split among sites follows the seed."""
    assert np.array_equal(frozen_test_features(seed=0), frozen_test_features(seed=1))


# ---- device ----


@pytest.mark.parametrize(
    ("name", "code"), [("gpu", "model.unknown-device"), ("cuda", "model.no-gpu")]
)
def test_a_device_that_is_not_available(name: str, code: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(ConfigError) as error:
        prepare_device(toy_config("fedavg", train__device=name).train)
    assert error.value.code == code


def test_large_arrays_are_gathered_not_copied() -> None:
    from fedgsca.federation.samples import take_rows

    images = np.load(toy_npz())["train_images"]
    rows = np.array([5, 3, 100])
    view = take_rows(images, rows, limit=0)
    assert view.shape == (3, *images.shape[1:]) and view.ndim == 4 and view.dtype == np.uint8
    assert np.array_equal(view[np.array([2, 0])], images[[100, 5]])
    assert np.array_equal(take_rows(images, rows), images[rows])
