"""torch, imported when it is first used.

Importing torch takes two seconds of CPU. A command that lists methods, checks a configuration or
opens the review page reads the modules of all methods, but trains nothing. Such modules write

    from fedgsca.support.lazy_torch import F, Tensor, nn, torch

instead of importing torch, and use the four names as usual inside functions. `Tensor` is for
annotations only. What needs torch while its module is being imported, such as a class that derives
from nn.Module, belongs in a module that functions import (fedgsca/models, or
fedgsca/methods/parts/centroid_network.py). For the usual two decorators, `no_grad` and
`inference_mode` are here. A plugin may import torch at its top: it only starts slower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
    from torch import nn as nn
    from torch.nn import functional as F
else:
    import importlib

    class LazyModule:
        """Stands for a module; the first use of an attribute imports it."""

        def __init__(self, name: str) -> None:
            self.__name__ = name

        def __getattr__(self, name: str) -> Any:
            """Asked once per attribute: it is stored here, so that later uses cost nothing."""
            value = getattr(importlib.import_module(self.__name__), name)
            self.__dict__[name] = value
            return value

        def __repr__(self) -> str:
            return f"<{self.__name__}, imported when it is used>"

    torch = LazyModule("torch")
    nn = LazyModule("torch.nn")
    F = LazyModule("torch.nn.functional")
    Tensor = None


def no_grad(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator like torch.no_grad(), which does not import torch before the first call."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_grad_enabled():  # asking is cheaper than entering
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return call


def inference_mode(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator like torch.inference_mode(), likewise."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode():
            return function(*args, **kwargs)

    return call


__all__ = ["F", "Tensor", "inference_mode", "nn", "no_grad", "torch"]
