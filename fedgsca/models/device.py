"""Which processor to train on, and the settings that make its results repeatable."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

import torch
from threadpoolctl import threadpool_limits

from fedgsca.config import TrainConfig
from fedgsca.errors import ConfigError
from fedgsca.models.build import Classifier

# of torch.compile; tests use one that needs no compiler
COMPILER = "inductor"


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


def compile_backbone(model: Classifier, train: TrainConfig, device: torch.device) -> None:
    """Compile the backbone in place, if `train.compile` asks for it.

    Names and values of the weights stay. A head alone has nothing to gain and stays as it is.
    """
    if not train.compile or isinstance(model.backbone, torch.nn.Identity):
        return
    if COMPILER == "inductor":
        _require_compiler(device)
    # The batches of an epoch have two sizes, the last one being smaller, and evaluation has more:
    # sizes are variables from the start instead of a new compilation for each of them.
    model.backbone.compile(backend=COMPILER, dynamic=True)  # type: ignore[no-untyped-call]


def _require_compiler(device: torch.device) -> None:
    """torch.compile fails in the middle of the first step, with a page of text: check before."""
    if device.type == "cuda":
        has_compiler, package = find_spec("triton") is not None, "triton"
    else:
        command = os.environ.get("CXX", "g++")
        has_compiler, package = shutil.which(command) is not None, f"a C++ compiler ({command})"
    if not has_compiler:
        raise ConfigError(
            "model.no-compiler",
            f"train.compile is true, but torch.compile needs {package}, which was not found",
            fix=f"install {package}, or use train.compile=false",
        )


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has finished what it was given; without this, a clock stops too early."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def pick_gpu(train: TrainConfig, worker: int) -> int | None:
    """The GPU of a worker process: they take turns. None: the configuration or nothing decides.

    With more workers than GPUs, several sites share one, which keeps a GPU busy that a small
    network does not fill.
    """
    if train.device not in ("auto", "cuda") or not torch.cuda.is_available():
        return None
    return worker % torch.cuda.device_count()
