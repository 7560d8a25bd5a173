"""Our ResNets are MONAI's, which are torchvision's: the same names, shapes, initial bytes, outputs.

MONAI is needed by this file only. A value that differs here would change every run with a ResNet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedgsca.models import build
from fedgsca.models.build import build_backbone
from fedgsca.models.networks import resnet18, resnet50
from tests.helpers import needs_packages

pytestmark = needs_packages("monai")
NETWORKS: dict[str, Callable[[], nn.Module]] = {"resnet18": resnet18, "resnet50": resnet50}


def make_reference(name: str) -> nn.Module:
    from monai.networks.nets import resnet as nets  # here: importing MONAI takes seconds

    network: nn.Module = getattr(nets, name)(
        spatial_dims=2,
        n_input_channels=3,
        conv1_t_stride=2,
        bias_downsample=False,
        feed_forward=False,
    )
    return network


@pytest.fixture(scope="module", params=NETWORKS)
def pair(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    """Our network and MONAI's, each with its initial values, channels-last as in a run."""
    name = str(request.param)
    network = build_backbone(name, seed=7)
    reference = build._materialise(lambda: make_reference(name), 7, f"backbone/{name}")
    layout: Any = {"memory_format": torch.channels_last}
    return network.to(**layout), reference.to(**layout)


def make_images(size: int) -> Tensor:
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(2))
    return images.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", NETWORKS)
def test_names_shapes_and_their_order_agree(name: str) -> None:
    with torch.device("meta"):  # without values
        state, expected = NETWORKS[name]().state_dict(), make_reference(name).state_dict()
    shapes = [(key, value.shape, value.dtype) for key, value in state.items()]
    assert shapes == [(key, value.shape, value.dtype) for key, value in expected.items()]
    assert len(state) == {"resnet18": 120, "resnet50": 318}[name]


def test_initial_bytes_agree(pair: tuple[nn.Module, nn.Module]) -> None:
    state = pair[0].state_dict()
    for key, value in pair[1].state_dict().items():
        assert torch.equal(state[key], value), key


@pytest.mark.parametrize("size", [33, 64])
def test_outputs_agree_to_the_last_bit(pair: tuple[nn.Module, nn.Module], size: int) -> None:
    network, reference = pair
    with torch.inference_mode():
        images = make_images(size)
        assert torch.equal(network.eval()(images), reference.eval()(images))


def test_a_training_step_agrees_to_the_last_bit(pair: tuple[nn.Module, nn.Module]) -> None:
    """Outputs, gradients of all parameters, and the BatchNorm statistics of a step."""
    network, reference = pair
    images = make_images(48)
    outputs = []
    for module in pair:
        output = module.train()(images)
        torch.autograd.backward(output.square().mean())
        outputs.append(output.detach())
    assert torch.equal(*outputs)
    gradients = dict(reference.named_parameters())
    for key, parameter in network.named_parameters():
        gradient, expected = parameter.grad, gradients[key].grad
        assert gradient is not None and expected is not None
        assert torch.equal(gradient, expected), key
    statistics = dict(reference.named_buffers())
    for key, buffer in network.named_buffers():
        assert torch.equal(buffer, statistics[key]), key


def test_a_wrong_stride_would_be_noticed(
    pair: tuple[nn.Module, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison can fail: a stride in another convolution of a block is another network."""
    network, reference = pair
    block = network.get_submodule("layer2.0")
    old = block.get_submodule("conv1").stride
    monkeypatch.setattr(block.get_submodule("conv1"), "stride", block.get_submodule("conv2").stride)
    monkeypatch.setattr(block.get_submodule("conv2"), "stride", old)
    images = make_images(33)
    with torch.inference_mode():
        assert not torch.equal(network.eval()(images), reference.eval()(images))


def test_a_classifier_is_built_without_monai() -> None:
    """The import alone would cost five seconds (asserted in a process of its own)."""
    import subprocess
    import sys

    program = (
        "import sys; from fedgsca.models.build import build_classifier;"
        "build_classifier('resnet18', 3, seed=0);"
        "assert not any(name.startswith('monai') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
