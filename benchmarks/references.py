"""What our rounds are measured against: a bare PyTorch loop, and the loop that published code of this field uses."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedgsca.config import TrainConfig
from fedgsca.site import Samples

Sites = dict[str, Samples]


def bare_round(
    model: nn.Module,
    sites: Sites,
    tensors: dict[str, tuple[torch.Tensor, torch.Tensor]],
    hyper: TrainConfig,
) -> None:
    """FedAvg with nothing around it: normalised channels-last float tensors in memory, plain SGD, a running sum of state dicts."""
    start = copy.deepcopy(model.state_dict())
    total: dict[str, torch.Tensor] = {}
    count = sum(len(s) for s in sites.values())
    for name, (x, y) in tensors.items():
        model.load_state_dict(start)
        model.train()
        optimiser = torch.optim.SGD(
            model.parameters(),
            lr=hyper.lr,
            momentum=hyper.momentum,
            weight_decay=hyper.weight_decay,
        )
        order = torch.from_numpy(np.random.Generator(np.random.PCG64(0)).permutation(len(y)))
        for begin in range(0, len(y), hyper.batch_size):
            rows = order[begin : begin + hyper.batch_size]
            optimiser.zero_grad(set_to_none=True)
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
        for key, value in model.state_dict().items():
            share = value.double() * (len(sites[name]) / count)
            total[key] = total[key] + share if key in total else share
    model.load_state_dict({key: value.to(start[key].dtype) for key, value in total.items()})


class PublishedSet(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Per-sample augmentation in Python, as the released code of FedCorr and FedNoRo does it (there with torchvision)."""

    def __init__(self, samples: Samples) -> None:
        self.samples, self.rng = samples, np.random.Generator(np.random.PCG64(0))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        picture = Image.fromarray(self.samples.inputs[row])
        if self.rng.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.rng.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        picture = picture.rotate(
            float(self.rng.uniform(-180, 180)), resample=Image.Resampling.BILINEAR
        )
        pixels = (
            torch.from_numpy(np.asarray(picture).copy())
            .permute(2, 0, 1)
            .contiguous()
            .float()
            .div_(255)
        )
        return (pixels - 0.5) / 0.25, int(self.samples.labels[row])


def published_round(model: nn.Module, sites: Sites, hyper: TrainConfig) -> None:
    """NCHW tensors from a DataLoader, a deep copy of the network per site, all state dicts kept until the end."""
    locals_, sizes = [], []
    for samples in sites.values():
        net = copy.deepcopy(model)
        net.train()
        optimiser = torch.optim.SGD(
            net.parameters(), lr=hyper.lr, momentum=hyper.momentum, weight_decay=hyper.weight_decay
        )
        for x, y in torch.utils.data.DataLoader(
            PublishedSet(samples), batch_size=hyper.batch_size, shuffle=True
        ):
            net.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimiser.step()
        locals_.append(copy.deepcopy(net.state_dict()))
        sizes.append(len(samples))
    mean = copy.deepcopy(locals_[0])
    for key in mean:
        mean[key] = sum(
            state[key] * size for state, size in zip(locals_, sizes, strict=True)
        ) / sum(sizes)
    model.load_state_dict(mean)
