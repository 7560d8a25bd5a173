"""What our rounds are compared with: a bare PyTorch loop, and the loop of published code."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedgsca.config import TrainConfig
from fedgsca.methods.site import Samples

Sites = dict[str, Samples]
Tensors = dict[str, tuple[torch.Tensor, torch.Tensor]]


def bare_round(model: nn.Module, sites: Sites, tensors: Tensors, config: TrainConfig) -> None:
    """FedAvg with nothing around it.

    Normalised channels-last float tensors in memory, plain SGD, a running sum of state dicts.
    """
    start = copy.deepcopy(model.state_dict())
    total: dict[str, torch.Tensor] = {}
    count = sum(len(samples) for samples in sites.values())
    for name, (x, y) in tensors.items():
        model.load_state_dict(start)
        model.train()
        optimiser = torch.optim.SGD(
            model.parameters(),
            lr=config.rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        order = torch.from_numpy(np.random.Generator(np.random.PCG64(0)).permutation(len(y)))
        for begin in range(0, len(y), config.batch_size):
            rows = order[begin : begin + config.batch_size]
            optimiser.zero_grad(set_to_none=True)
            F.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        for key, value in model.state_dict().items():
            share = value.double() * (len(sites[name]) / count)
            total[key] = total[key] + share if key in total else share
    model.load_state_dict({key: value.to(start[key].dtype) for key, value in total.items()})


class PublishedSet(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Augmentation of single samples in Python.

    The released code of FedCorr and FedNoRo does the same with torchvision.
    """

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.rng = np.random.Generator(np.random.PCG64(0))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        image = Image.fromarray(self.samples.inputs[row])
        if self.rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        angle = float(self.rng.uniform(-180, 180))
        image = image.rotate(angle, resample=Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
        pixels = pixels.contiguous().float().div_(255)
        return (pixels - 0.5) / 0.25, int(self.samples.labels[row])


def published_round(model: nn.Module, sites: Sites, config: TrainConfig) -> None:
    """FedAvg as in published code.

    NCHW tensors from a DataLoader, a deep copy of the network per site, all state dicts in memory
    until the end of the round.
    """
    states = []
    sizes = []
    for samples in sites.values():
        network = copy.deepcopy(model)
        network.train()
        optimiser = torch.optim.SGD(
            network.parameters(),
            lr=config.rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        loader = torch.utils.data.DataLoader(
            PublishedSet(samples), batch_size=config.batch_size, shuffle=True
        )
        for x, y in loader:
            network.zero_grad()
            F.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        states.append(copy.deepcopy(network.state_dict()))
        sizes.append(len(samples))
    mean = copy.deepcopy(states[0])
    for key in mean:
        total = sum(state[key] * size for state, size in zip(states, sizes, strict=True))
        mean[key] = total / sum(sizes)
    model.load_state_dict(mean)
