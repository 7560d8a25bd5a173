"""Which processor to train on, and the settings that make its results repeatable."""

from __future__ import annotations

import torch
from threadpoolctl import threadpool_limits

from fedgsca.config import TrainConfig
from fedgsca.errors import ConfigError


def prepare_device(train: TrainConfig) -> torch.device:
    """The device of `train.device`, with torch set up for reproducible results on it."""
    # the number of threads changes the order of sums, hence the bytes
    torch.set_num_threads(train.threads)
    # NumPy's products are small. Several threads of its BLAS would split their sums by the number
    # of cores, and they wait for each other in a busy loop: on a busy machine for most of a round
    threadpool_limits(1, user_api="blas")
    name = train.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            "model.unknown-device",
            f"train.device {name!r} is not a device that torch knows",
            fix="use auto, cpu, cuda or cuda:N",
        ) from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                "model.no-gpu",
                f"train.device is {name}, but torch finds no GPU",
                fix="use train.device=cpu, or install a CUDA build of torch",
            )
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    return device
