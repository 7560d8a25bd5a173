"""How fast a device trains: the table of `fedgsca bench`, which fits into an issue.

Steps are those of a run: the same batches, transfers, precision and optimiser. Images are random
numbers, since their content does not matter. A last part times whole rounds of FedAvg and FedGSCA,
in which the work beside the training counts as well, with the sites one after the other and in two
processes that share the device.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from fedgsca.config import TrainConfig, load_config
from fedgsca.errors import ConfigError
from fedgsca.models.build import MODELS, build_classifier, spec_of
from fedgsca.models.device import compile_backbone, prepare_device, synchronise
from fedgsca.rng import stream
from fedgsca.site import Samples, Site
from fedgsca.site_store import Store
from fedgsca.support.json_record import Record
from fedgsca.support.version import __version__
from fedgsca.train import cross_entropy, evaluate, precision, train

NUM_CLASSES = 9
# batches of an epoch that is timed
_BATCHES = 4
# of the runs that are timed as a whole
_ROUNDS = 4
_SITES = 4
_TRAIN_IMAGES = 800


@dataclass(frozen=True)
class NetworkCase:
    """A network and the size of its images, such as resnet18:64."""

    name: str
    size: int

    def __str__(self) -> str:
        return f"{self.name}:{self.size}"


DEFAULT_CASES: tuple[NetworkCase, ...] = (
    NetworkCase("cnn", 28),
    NetworkCase("cnn", 64),
    NetworkCase("resnet18", 64),
    NetworkCase("resnet18", 224),
    NetworkCase("resnet50", 224),
)


@dataclass(frozen=True)
class DeviceFacts(Record):
    """What the numbers belong to."""

    device: str
    version: str
    torch: str
    python: str
    threads: int
    precision: str
    is_compiled: bool


@dataclass(frozen=True)
class NetworkSpeed(Record):
    """Images per second of one network, and the memory that its training needs on a GPU."""

    network: str
    batch: int
    training: float
    evaluation: float
    # megabytes; None on a device that does not count them
    memory: float | None


@dataclass(frozen=True)
class RoundSpeed(Record):
    """Seconds of a whole round, the median of those after the first."""

    method: str
    jobs: int
    seconds: float


def parse_cases(text: str) -> tuple[NetworkCase, ...]:
    """ "cnn:28,resnet18:64" as cases."""
    cases = []
    for part in text.split(","):
        name, _, size = part.strip().partition(":")
        if name not in MODELS or not size.isdecimal() or not 8 <= int(size) <= 1024:
            raise ConfigError(
                "model.invalid-network-case",
                f"{part.strip()!r} is not a network and an image size of 8 to 1024 pixels",
                fix=f"use for example --networks cnn:28,resnet18:64; networks: {', '.join(MODELS)}",
            )
        cases.append(NetworkCase(name, int(size)))
    return tuple(cases)


def describe_device(settings: TrainConfig, device: torch.device) -> DeviceFacts:
    """The names and versions that somebody who compares two tables asks for."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    with precision(device):
        # what a matrix product has under the precision of a run
        product = torch.ones(1, 1, device=device) @ torch.ones(1, 1, device=device)
    return DeviceFacts(
        device=f"{device} ({name})",
        version=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        threads=settings.threads,
        precision=str(product.dtype).removeprefix("torch."),
        is_compiled=settings.compile,
    )


def measure_networks(
    cases: Sequence[NetworkCase], settings: TrainConfig, seconds: float
) -> Iterator[NetworkSpeed]:
    """One row per case. Every number is measured for about `seconds`, at least one epoch."""
    device = prepare_device(settings)
    for case in cases:
        yield _measure_network(case, settings, device, seconds)


def _measure_network(
    case: NetworkCase, settings: TrainConfig, device: torch.device, seconds: float
) -> NetworkSpeed:
    samples = _random_samples(case, settings.batch_size * _BATCHES)
    model = build_classifier(case.name, NUM_CLASSES, seed=0).to(device)
    compile_backbone(model, settings, device)
    with tempfile.TemporaryDirectory() as folder:
        site = Site("bench", samples, settings, 0, model, device, Store(Path(folder)))
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

        def train_once() -> None:
            train(site, 0, cross_entropy)

        def evaluate_once() -> None:
            evaluate(model, samples, device)

        training = _time_epoch(train_once, device, seconds)
        memory = None
        if device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(device) / 1e6
        evaluation = _time_epoch(evaluate_once, device, seconds)
    return NetworkSpeed(
        network=str(case),
        batch=settings.batch_size,
        training=len(samples) / training,
        evaluation=len(samples) / evaluation,
        memory=memory,
    )


def _random_samples(case: NetworkCase, count: int) -> Samples:
    rng = stream(0, "bench", str(case))
    images = rng.integers(0, 256, (count, case.size, case.size, 3), dtype=np.uint8)
    labels = np.arange(count, dtype=np.int64) % NUM_CLASSES
    spec = spec_of(case.name)
    return Samples(images, labels, NUM_CLASSES, spec.mean, spec.std)


def _time_epoch(work: Callable[[], None], device: torch.device, seconds: float) -> float:
    """The median duration; the first one is not counted, it sets up libraries and memory."""
    durations: list[float] = []
    begin = time.perf_counter()
    for repetition in range(1000):
        start = time.perf_counter()
        work()
        synchronise(device)
        if repetition:
            durations.append(time.perf_counter() - start)
        if durations and time.perf_counter() - begin > seconds:
            break
    return median(durations)


def measure_rounds(settings: TrainConfig, jobs: Sequence[int]) -> Iterator[RoundSpeed]:
    """Whole rounds on the built-in images with the small network: four sites of 200 images."""
    from fedgsca.engine.rounds import run
    from fedgsca.experiment.run_folder import read_timing

    for method in ("fedavg", "fedgsca"):
        config = load_config(
            method=method,
            data__source="synthetic",
            data__train=_TRAIN_IMAGES,
            data__test=100,
            data__sites=_SITES,
            noise__spec="S40",
            train__rounds=_ROUNDS,
            train__device=settings.device,
            train__threads=settings.threads,
            train__batch_size=settings.batch_size,
            train__compile=settings.compile,
        )
        for num_jobs in jobs:
            with tempfile.TemporaryDirectory() as folder:
                run(config, Path(folder) / "run", jobs=num_jobs)
                timing = read_timing(Path(folder) / "run")
            # the first round also reads the images and starts the processes
            yield RoundSpeed(method, num_jobs, median(record.total for record in timing[1:]))
