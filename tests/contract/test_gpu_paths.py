"""The paths of a GPU, on a machine without one.

On a device without numbers: every method moves what it needs, and training reads nothing back. In
bfloat16 on the CPU: every method copes with the type that autocast gives its networks on a GPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from fedgsca.config import TrainConfig
from fedgsca.errors import ConfigError
from fedgsca.federation import processes
from fedgsca.federation.rounds import run
from fedgsca.methods.base import load_methods
from fedgsca.methods.site import Site
from fedgsca.methods.train import train
from fedgsca.models import batches
from fedgsca.models.build import build_classifier, build_head_only
from fedgsca.models.device import compile_backbone, pick_gpu
from fedgsca.wire import Update
from tests.fake_gpu import DEVICE, FakeGpu, WrongDeviceError
from tests.helpers import Toy, toy_experiment
from tests.toys import quick_options, toy_config

every_method = pytest.mark.parametrize("method", sorted(load_methods()))
INPUTS = {"images": True, "features": False}
ROUNDS = 4


def make_toy(folder: Path, method: str, *, images: bool) -> Toy:
    return toy_experiment(
        folder,
        method,
        noise=(0.0, 0.5),
        samples=24,
        rounds=ROUNDS,
        images=images,
        options=quick_options(method),
        augment="rotate" if images else "none",
    )


def put_on_gpu(toy: Toy, name: str) -> Site:
    site = toy.site(name)
    site.model = toy.model.to(DEVICE)
    site.device = DEVICE
    return site


@pytest.mark.parametrize("inputs", INPUTS)
@every_method
def test_a_round_at_a_site_mixes_no_devices(method: str, inputs: str, tmp_path: Path) -> None:
    """Three rounds on the CPU lead to the method's later stage; the fourth is on the fake GPU."""
    toy = make_toy(tmp_path, method, images=INPUTS[inputs])
    state = toy.run(ROUNDS - 1)
    payload = toy.method.broadcast(state, state.round)
    site = put_on_gpu(toy, "site-2")
    with FakeGpu() as gpu:
        update = toy.method.local_update(payload, site)
    assert isinstance(update, Update)
    assert {name: value.shape for name, value in update.weights.items()} == {
        name: value.shape for name, value in payload.weights.items()
    }
    assert gpu.operations > 20, "the training did run there"


def test_training_reads_nothing_back(tmp_path: Path) -> None:
    """A number that is read makes the CPU wait for the GPU: one per step would halve the speed."""
    toy = make_toy(tmp_path, "fedavg", images=True)
    site = put_on_gpu(toy, "site-1")
    with FakeGpu() as gpu:
        train(site, 0, lambda model, batch: torch.square(model(batch.x)).mean())
    assert (gpu.copies_back, gpu.numbers_back) == (0, 0)


def test_a_forgotten_transfer_is_noticed(tmp_path: Path) -> None:
    toy = make_toy(tmp_path, "fedavg", images=False)
    site = put_on_gpu(toy, "site-1")
    with pytest.raises(WrongDeviceError), FakeGpu():
        train(site, 0, lambda model, batch: (model(batch.x) @ torch.ones(4, 1)).mean())


# ---- the type of autocast ----


def use_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `precision` do on the CPU what it does on a GPU, wherever it was imported."""

    def autocast(device: torch.device) -> Any:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    for name, module in list(sys.modules.items()):
        if not name.startswith("fedgsca."):
            continue
        function = getattr(module, "precision", None)
        if getattr(function, "__module__", "") == "fedgsca.methods.train":
            monkeypatch.setattr(module, "precision", autocast)


@every_method
def test_every_method_trains_in_bfloat16(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights stay float32 and finite, and something is learned: the types of messages too."""
    use_bfloat16(monkeypatch)
    toy = make_toy(tmp_path, method, images=True)
    start = toy.start()
    state = toy.run(ROUNDS, start)
    for name, value in state.weights.items():
        assert value.dtype == start.weights[name].dtype
        assert np.isfinite(value).all(), name
    assert any(
        not np.array_equal(start.weights[name], state.weights[name]) for name in start.weights
    )


def test_bfloat16_is_really_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_bfloat16(monkeypatch)
    toy = make_toy(tmp_path, "fedavg", images=True)
    types = set()

    def objective(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        logits: torch.Tensor = model(batch.x)
        types.add((batch.x.dtype, logits.dtype))
        return logits.float().mean()

    train(toy.site("site-1"), 0, objective)
    assert types == {(torch.float32, torch.bfloat16)}


# ---- copies ----


class RecordedStream:
    """A CUDA stream that writes down what happens."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events

    def wait_stream(self, other: RecordedStream) -> None:
        self.events.append(f"{self.name} waits for {other.name}")

    def __enter__(self) -> None:
        self.events.append(f"enter {self.name}")

    def __exit__(self, *details: object) -> None:
        self.events.append(f"leave {self.name}")


class RecordedTensor:
    """A tensor that writes down how it travels."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def pin_memory(self) -> RecordedTensor:
        self.events.append("pin")
        return self

    def to(self, device: torch.device, **options: bool) -> RecordedTensor:
        self.events.append(f"to {device} {options}")
        return self

    def record_stream(self, stream: RecordedStream) -> None:
        self.events.append(f"kept for {stream.name}")


def test_a_copy_to_a_gpu_is_pinned_and_has_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: RecordedStream("training", events)
    )
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    side_stream = RecordedStream("copying", events)
    monkeypatch.setattr(batches, "_stream_of", lambda device: side_stream)
    device = torch.device("cuda")
    batch: Any = RecordedTensor(events)
    with batches.copy_stream(device) as deliver:
        deliver(batches.send(batch, device))
    assert events == [
        "enter copying",
        "pin",
        "to cuda {'non_blocking': True}",
        "leave copying",
        "training waits for copying",
        "kept for training",
    ]


def test_elsewhere_a_copy_is_a_plain_one() -> None:
    events: list[str] = []
    batch: Any = RecordedTensor(events)
    for device in (torch.device("cpu"), torch.device("mps")):
        with batches.copy_stream(device) as deliver:
            deliver(batches.send(batch, device))
    assert events == ["to cpu {}", "to mps {}"]


# ---- several GPUs, several sites on one ----


def count_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("device", "count", "expected"),
    [
        ("auto", 2, [0, 1, 0]),
        ("cuda", 2, [0, 1, 0]),
        ("cuda", 1, [0, 0, 0]),
        ("auto", 0, [None, None, None]),
        ("cuda:1", 2, [None, None, None]),
        ("cpu", 2, [None, None, None]),
    ],
)
def test_worker_processes_take_turns_on_the_gpus(
    device: str, count: int, expected: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    count_gpus(monkeypatch, count)
    train_config = TrainConfig(device=device)
    assert [pick_gpu(train_config, worker) for worker in range(3)] == expected


def test_a_worker_sets_its_gpu_before_it_builds_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []
    count_gpus(monkeypatch, 2)
    monkeypatch.setattr(torch.cuda, "set_device", events.append)
    monkeypatch.setattr(
        processes, "open_runner", lambda config, folder: events.append(config.train.device)
    )
    tree = json.dumps(toy_config("fedavg", train__device="cuda").to_tree())
    processes._open_on_gpu(tree, str(tmp_path), 3)
    assert events == [1, "cuda"]


# ---- compilation ----


def test_only_a_backbone_is_compiled_and_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []

    def record(self: torch.nn.Module, **options: object) -> None:
        calls.append(options)

    monkeypatch.setattr(torch.nn.Module, "compile", record)
    cpu = torch.device("cpu")
    monkeypatch.setenv("CXX", sys.executable)  # a compiler that is certainly there
    full = build_classifier("cnn", 3, seed=0)
    compile_backbone(full, TrainConfig(), cpu)
    compile_backbone(build_head_only(8, 3, seed=0), TrainConfig(compile=True), cpu)
    assert calls == []
    compile_backbone(full, TrainConfig(compile=True), cpu)
    assert calls == [{"backend": "inductor", "dynamic": True}]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_missing_compiler_is_reported_before_the_training(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("fedgsca.models.device.find_spec", lambda name: None)
    model = build_classifier("cnn", 3, seed=0)
    with pytest.raises(ConfigError) as error:
        compile_backbone(model, TrainConfig(compile=True), torch.device(device))
    assert error.value.code == "model.no-compiler"
    assert ("triton" if device == "cuda" else "no-such-compiler") in error.value.message


@pytest.mark.slow
def test_a_run_with_a_compiled_network_learns_the_same(tmp_path: Path) -> None:
    """The real compiler: the same names, and nearly the same numbers."""
    models = []
    for is_compiled in (False, True):
        config = toy_config("fedavg", train__rounds=2, train__compile=is_compiled)
        run(config, tmp_path / str(is_compiled))
        models.append(load_file(tmp_path / str(is_compiled) / "model.safetensors"))
    assert list(models[0]) == list(models[1])
    for name, value in models[0].items():
        np.testing.assert_allclose(models[1][name], value, atol=1e-3, rtol=1e-2)
