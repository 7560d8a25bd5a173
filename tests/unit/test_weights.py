"""Pretrained weights: what fits, what does not, and files that hold something else."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedgsca.errors import WeightsError
from fedgsca.models.build import build_backbone, build_classifier
from fedgsca.models.weights import load_backbone, plain_names

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def trained() -> State:
    return dict(build_backbone("cnn", seed=42).state_dict())


def fits(path: Path, expected: State, model: str = "cnn") -> bool:
    backbone = build_backbone(model, seed=0)
    load_backbone(backbone, [path])
    return all(torch.equal(value, expected[name]) for name, value in backbone.state_dict().items())


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: value for name, value in state.items()}


WRAPPINGS: dict[str, Callable[[State], object]] = {
    "plain": lambda s: s,
    "state_dict": lambda s: {"state_dict": s, "epoch": 3, "optimizer": {"lr": 0.1}},
    "model in checkpoint": lambda s: {"model": {"state_dict": s}},
    "data parallel": lambda s: prefixed(s, "module."),
    "parallel encoder": lambda s: {"net": prefixed(s, "module.encoder.")},
    "with a head": lambda s: {
        **s,
        "fc.weight": torch.zeros(1000, 128),
        "fc.bias": torch.zeros(1000),
    },
    "encoder and a bare head": lambda s: {
        **prefixed(s, "backbone."),
        "head.weight": torch.zeros(9, 128),
    },
    "no counters": lambda s: {n: v for n, v in s.items() if not n.endswith("num_batches_tracked")},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_common_wrappings_are_opened(wrapping: str, trained: State, tmp_path: Path) -> None:
    torch.save(WRAPPINGS[wrapping](trained), tmp_path / "w.pth")
    assert fits(tmp_path / "w.pth", trained)


def test_a_safetensors_file(trained: State, tmp_path: Path) -> None:
    save_file(trained, tmp_path / "w.safetensors")
    assert fits(tmp_path / "w.safetensors", trained)


@pytest.mark.parametrize("model", ["cnn", "cnn-groupnorm"])
def test_the_model_file_of_a_finished_run(model: str, tmp_path: Path) -> None:
    """What `fedgsca run` writes starts the next run, or becomes a frozen backbone."""
    network = build_classifier(model, 7, seed=9)
    save_file(
        {name: value.contiguous() for name, value in network.state_dict().items()},
        tmp_path / "model.safetensors",
    )
    assert fits(tmp_path / "model.safetensors", dict(network.backbone.state_dict()), model)


def test_torchvision_names_fit_the_resnet(tmp_path: Path) -> None:
    state = dict(build_backbone("resnet18", seed=4).state_dict())
    torch.save(
        {"state_dict": {**prefixed(state, "module."), "module.fc.weight": torch.zeros(1000, 512)}},
        tmp_path / "r.pth",
    )
    assert fits(tmp_path / "r.pth", state, "resnet18")
    with pytest.raises(WeightsError) as error:
        load_backbone(build_backbone("cnn", seed=0), [tmp_path / "r.pth"])
    assert error.value.code == "weights.wrong-network"


def test_what_does_not_fit_is_listed(trained: State, tmp_path: Path) -> None:
    broken = {n: v for n, v in trained.items() if n != "layers.4.weight"}
    broken |= {"layers.0.weight": torch.zeros(1, 3, 3, 3), "layers.99.weight": torch.zeros(3)}
    torch.save(broken, tmp_path / "w.pth")
    with pytest.raises(WeightsError) as caught:
        load_backbone(build_backbone("cnn", seed=0), [tmp_path / "w.pth"])
    for part in (
        "1 missing: layers.4.weight",
        "1 unknown: layers.99.weight",
        "layers.0.weight is (1, 3, 3, 3), expected (32, 3, 3, 3)",
    ):
        assert part in caught.value.message
    assert "model.name" in caught.value.fix


def test_a_refused_file_changes_nothing(trained: State, tmp_path: Path) -> None:
    torch.save({**trained, "extra.weight": torch.zeros(1)}, tmp_path / "w.pth")
    backbone = build_backbone("cnn", seed=0)
    old = {n: v.clone() for n, v in backbone.state_dict().items()}
    with pytest.raises(WeightsError):
        load_backbone(backbone, [tmp_path / "w.pth"])
    assert all(torch.equal(v, old[n]) for n, v in backbone.state_dict().items())


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('the file ran code')",))


HTML = b"<html>404</html>"
FILES = {
    "code.pth": pickle.dumps(Trap(), 2),
    "page.pth": HTML,
    "page.safetensors": HTML,
    "empty.pth": b"",
    "empty.safetensors": b"",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_holds_something_else(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    with pytest.raises(WeightsError) as error:
        load_backbone(nn.Identity(), [tmp_path / name])
    assert error.value.code == "weights.unreadable-file" and "state_dict" in error.value.fix


def test_a_cut_file(trained: State, tmp_path: Path) -> None:
    for name, save in (("w.pth", torch.save), ("w.safetensors", save_file)):
        save(trained, tmp_path / name)  # type: ignore[operator]
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
        with pytest.raises(WeightsError) as error:
            load_backbone(build_backbone("cnn", seed=0), [tmp_path / name])
        assert error.value.code == "weights.unreadable-file"


def test_no_file_and_no_dictionary(tmp_path: Path) -> None:
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    for name, code in (
        ("none.pth", "weights.file-not-found"),
        ("list.pth", "weights.not-a-state-dict"),
    ):
        with pytest.raises(WeightsError) as error:
            load_backbone(nn.Identity(), [tmp_path / name])
        assert error.value.code == code


def test_only_prefixes_that_all_names_share_are_stripped() -> None:
    names = plain_names({"model.a": torch.zeros(1), "b": torch.zeros(1)})
    assert set(names) == {"model.a", "b"}
