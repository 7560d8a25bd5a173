"""Which processor to train on, and the settings that make its results repeatable."""

from __future__ import annotations

import torch

from fedgsca.config import TrainConfig
from fedgsca.errors import ConfigError


def prepare_device(train: TrainConfig) -> torch.device:
    torch.set_num_threads(
        train.threads
    )  # the number of threads changes the order of sums, hence the bytes
    name = train.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            "todo.device-1",
            f"train.device {name!r} is not a device",
            fix="use auto, cpu, cuda or cuda:N",
        ) from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                "todo.device-2",
                "train.device is cuda, but torch sees no GPU",
                fix="use train.device=cpu, or install a CUDA build of torch",
            )
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    return device
