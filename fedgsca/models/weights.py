"""Pretrained weights from a local file. Nothing is ever downloaded.

torchvision's names, LVM-Med's file and the usual wrappers are recognised. Only tensors are read
(safetensors, or torch files with weights_only=True); a pickle that runs code is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedgsca.errors import WeightsError
from fedgsca.models.own_network import OwnBackbone

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "backbone.", "encoder.", "model.", "net.")
_HEADS = ("fc.", "head.", "classifier.", "_fc.", "class_layers.", "classification_head.")
# names that are printed of each kind of mismatch
_MAX_NAMES = 4


def _read_file(path: Path) -> dict[str, object]:
    if not path.is_file():
        raise WeightsError(
            "weights.file-not-found",
            f"the weights file {path} does not exist",
            fix="give the path of a .safetensors, .pth, .pt or .torch file",
        )
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        contents = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # any reader's complaint has the same fix
        raise WeightsError(
            "weights.unreadable-file",
            f"the weights file {path} cannot be read as plain tensors: {_first_line(error)}",
            fix="save it again as safetensors, or as torch.save(model.state_dict(), path)",
        ) from error
    if not isinstance(contents, dict):
        raise WeightsError(
            "weights.not-a-state-dict",
            f"the weights file {path} holds a {type(contents).__name__}, not a state_dict",
            fix="save model.state_dict()",
        )
    return contents


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else "it is empty or incomplete"


def plain_names(contents: Mapping[str, object]) -> dict[str, Tensor]:
    """The tensors of a backbone under their plain names.

    {"state_dict": ...} is unwrapped, prefixes that all names share are removed, heads are left out.
    """
    for wrapper in _WRAPPERS:
        inner = contents.get(wrapper)
        if isinstance(inner, dict):
            return plain_names(inner)
    tensors = {name: value for name, value in contents.items() if isinstance(value, Tensor)}
    prefix = _common_prefix(tensors)
    while prefix is not None:
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
        prefix = _common_prefix(tensors)
    return {name: value for name, value in tensors.items() if not name.startswith(_HEADS)}


def _common_prefix(names: Mapping[str, Tensor]) -> str | None:
    """A known prefix that all names share, heads aside; None if there is none."""
    body = [name for name in names if not name.startswith(_HEADS)]
    if not body:
        return None
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in body):
            return prefix
    return None


def load_backbone(backbone: nn.Module, path: Path) -> None:
    """Fill the backbone from a file. Every name and shape must fit; mismatches are listed."""
    target = getattr(backbone, "net", backbone)  # EfficientNet is one level down
    contents = _read_file(path)
    target_state = target.state_dict()
    tensors = plain_names(contents)
    if isinstance(backbone, OwnBackbone):
        tensors = _own_names(contents, target_state)
    rename = getattr(backbone, "rename_weights", None)
    if rename is not None:
        tensors = rename(tensors)
    counters = {name for name in target_state if name.endswith("num_batches_tracked")}
    missing = sorted(set(target_state) - set(tensors) - counters)
    unknown_names = sorted(set(tensors) - set(target_state))
    shapes = []
    for name in sorted(set(tensors) & set(target_state)):
        shape, expected_shape = tuple(tensors[name].shape), tuple(target_state[name].shape)
        if shape != expected_shape:
            shapes.append(f"{name} is {shape}, expected {expected_shape}")
    if missing or unknown_names or shapes:
        lines = [f"the weights file {path} does not fit the network:"]
        lines += _list_names("missing", missing)
        lines += _list_names("unknown", unknown_names)
        lines += _list_names("of another shape", shapes)
        raise WeightsError(
            "weights.wrong-network",
            "\n".join(lines),
            fix="choose the model that the file was made for (--set model.name=...)",
        )
    target.load_state_dict({**{name: target_state[name] for name in counters}, **tensors})


def _own_names(contents: Mapping[str, object], target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a user's own network, saved with or without its head, or as a backbone."""
    tensors = {name: value for name, value in contents.items() if isinstance(value, Tensor)}
    for wrapper in _WRAPPERS:
        inner = contents.get(wrapper)
        if isinstance(inner, dict) and not tensors:
            return _own_names(inner, target)
    extra_names = set(tensors) - set(target)
    # the head, which the network no longer has, is one layer
    is_head = len({name.rpartition(".")[0] for name in extra_names}) == 1 and len(extra_names) <= 2
    if is_head:
        return {name: value for name, value in tensors.items() if name in target}
    return tensors


def _list_names(title: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    ellipsis = " ..." if len(names) > _MAX_NAMES else ""
    return [f"  {len(names)} {title}: {', '.join(names[:_MAX_NAMES])}{ellipsis}"]
