"""Pretrained weights from a local file: torchvision's names, LVM-Med's file, the usual wrappers. Nothing is ever downloaded.

Only tensors are read (safetensors, or torch files with weights_only=True); a pickle that wants to run code is refused.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from fedgsca.errors import WeightsError

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "backbone.", "encoder.", "model.", "net.")
_HEADS = ("fc.", "head.", "classifier.", "_fc.")


def _read(path: Path) -> dict[str, object]:
    if not path.is_file():
        raise WeightsError(
            "todo.weights-1",
            f"weights file {path} does not exist",
            fix="give the path of a .safetensors, .pth, .pt or .torch file",
        )
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # any reader's complaint ends in the same advice
        why = (str(error).splitlines() or ["it is empty or cut off"])[0][
            :200
        ]  # the reader of an empty file says nothing
        raise WeightsError(
            "todo.weights-2",
            f"weights file {path} cannot be read as plain tensors: {why}",
            fix="save it again as a state_dict: torch.save(model.state_dict(), path), or as safetensors",
        ) from error
    if not isinstance(loaded, dict):
        raise WeightsError(
            "todo.weights-3",
            f"weights file {path} holds a {type(loaded).__name__}, not a state_dict",
            fix="save model.state_dict()",
        )
    return loaded


def plain_names(loaded: dict[str, object]) -> dict[str, Tensor]:
    """Unwrap {'state_dict': ...} and strip prefixes that every name carries; heads are left out."""
    for wrapper in _WRAPPERS:
        inner = loaded.get(wrapper)
        if isinstance(inner, dict):
            return plain_names(inner)
    tensors = {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
    stripped = True
    while stripped and tensors:
        stripped = False
        for prefix in _PREFIXES:
            body = [name for name in tensors if not name.startswith(_HEADS)]
            if body and all(name.startswith(prefix) for name in body):
                tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
                stripped = True
    return {name: value for name, value in tensors.items() if not name.startswith(_HEADS)}


def load_backbone(backbone: nn.Module, path: Path) -> None:
    """Fill the backbone from a file; every name and shape must fit, and what does not is listed."""
    target = getattr(backbone, "net", backbone)  # EfficientNet sits one level down
    given, wanted = plain_names(_read(path)), target.state_dict()
    counters = {name for name in wanted if name.endswith("num_batches_tracked")}
    missing = sorted(set(wanted) - set(given) - counters)
    extra = sorted(set(given) - set(wanted))
    wrong = [
        f"{name} is {tuple(given[name].shape)}, expected {tuple(wanted[name].shape)}"
        for name in sorted(set(given) & set(wanted))
        if given[name].shape != wanted[name].shape
    ]
    if missing or extra or wrong:
        lines = [f"weights file {path} does not fit the network:"]
        for title, names in (("missing", missing), ("unknown", extra), ("of another shape", wrong)):
            if names:
                lines.append(
                    f"  {len(names)} {title}: {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}"
                )
        raise WeightsError(
            "todo.weights-4",
            "\n".join(lines),
            fix="choose the model that the file was made for (--set model.name=...)",
        )
    target.load_state_dict({**{name: wanted[name] for name in counters}, **given})
