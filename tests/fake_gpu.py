"""A GPU that exists on no machine: tensors have shapes and types, but no numbers.

The device is torch's "meta". As on a real GPU, an operation on tensors of two devices is an error,
also where the meta device alone would let it pass; so a forgotten transfer is found without a GPU.
Numbers that are read back are invented.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("meta")

aten: Any = torch.ops.aten
# these may have tensors of two devices: transfers, and indices on the CPU, as CUDA allows them
CONVERSIONS = {aten._to_copy, aten.to}
TRANSFERS = {aten.copy_, *CONVERSIONS}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}


class WrongDeviceError(AssertionError):
    """An operation that fails on a real GPU."""


@dataclass
class FakeGpu(TorchDispatchMode):
    """Inside the block, DEVICE behaves like a GPU. Counts what makes a real one wait."""

    # arrays that are read back, and single numbers
    copies_back: int = 0
    numbers_back: int = 0
    operations: int = 0
    _generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __hash__(self) -> int:
        return id(self)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
        fake = [tensor for tensor in tensors if tensor.device == DEVICE]
        if not fake:
            return func(*args, **options)
        self.operations += 1
        settings = [*args, *options.values()]
        if func.overloadpacket in CONVERSIONS and _find(torch.device, settings, DEVICE) != DEVICE:
            self.copies_back += 1
            return self.invent(fake[0], _find(torch.dtype, settings, fake[0].dtype))
        if func is aten._local_scalar_dense.default:
            self.numbers_back += 1
            return 0.5 if fake[0].is_floating_point() else 0
        if func is aten.copy_.default and args[0].device.type == "cpu":
            self.copies_back += 1
            return args[0].copy_(self.invent(fake[0], args[0].dtype))
        self.check_devices(func, args, tensors)
        if func is aten.index.Tensor and any(_is_mask(index) for index in args[1]):
            return torch.empty_like(args[0])  # as if the mask were true everywhere
        return func(*args, **options)

    def invent(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """A tensor on the CPU with the shape of a fake one."""
        if not dtype.is_floating_point:
            return torch.zeros(tensor.shape, dtype=dtype)
        return torch.rand(tensor.shape, generator=self._generator).to(dtype)

    def check_devices(self, func: Any, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        """Raise if an array of another device takes part; a single number may."""
        if func.overloadpacket in TRANSFERS:
            return
        if func in INDEXING:
            tensors = [args[0], *(leaf for leaf in args[2:] if isinstance(leaf, Tensor))]
        devices = {tensor.device.type for tensor in tensors if tensor.dim() > 0}
        if len(devices) > 1:
            raise WrongDeviceError(f"{func} has tensors on {sorted(devices)}")


def _find(kind: type, settings: Sequence[Any], default: Any) -> Any:
    """The first setting of this type."""
    return next((setting for setting in settings if isinstance(setting, kind)), default)


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype == torch.bool
