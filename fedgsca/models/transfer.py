"""Batches on their way to a GPU; on other devices these functions do nothing special.

The Python side of training is ahead of the GPU: while the GPU works on step t, the CPU gathers and
augments batch t + 1. Two things would stop it. A copy from ordinary memory waits for the GPU, so
batches are copied from pinned memory. A copy in the stream of the training waits for step t, so it
has a stream of its own. Two buffers are then in use: one is trained on, one is filled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedgsca.support.lazy_torch import Tensor, torch


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; to a GPU the copy goes through pinned memory and nobody waits."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@functools.lru_cache(maxsize=64)
def channel_values(values: tuple[float, float, float], device: torch.device) -> Tensor:
    """(1, 3, 1, 1): one number per channel. Kept: a copy per batch would make the GPU wait."""
    with torch.inference_mode(False):  # the evaluation may ask first, the training uses it as well
        return torch.tensor(values, device=device).view(1, 3, 1, 1)


@contextmanager
def copy_stream(device: torch.device) -> Iterator[Callable[..., None]]:
    """Inside the block, copies to a GPU do not wait for the training, nor it for them.

    The block receives a function for the tensors that the training will use: it starts when they
    are complete, and their memory is not used again before it has finished with them.
    """
    tensors: list[Tensor] = []
    if device.type != "cuda":
        yield lambda *deliveries: None
        return
    training_stream = torch.cuda.current_stream(device)
    side_stream = _stream_of(device)
    with torch.cuda.stream(side_stream):
        yield lambda *deliveries: tensors.extend(deliveries)
    training_stream.wait_stream(side_stream)
    for tensor in tensors:
        tensor.record_stream(training_stream)


@functools.cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
