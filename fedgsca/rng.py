"""The only source of randomness. Every draw has an address: stream(seed, "noise", "site-2").

There is no global generator and no generator state to save: a resumed run, a worker process or a
hospital asks for the same address and gets the same numbers. Addresses are hashed, so "site-1" and
"site-10" are as independent as any two streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _digest(seed: int, path: tuple[str | int, ...]) -> bytes:
    """32 bytes that stand for an address."""
    # repr keeps 1 and "1" apart, and the length of every part is visible in the tuple's own repr
    return hashlib.sha256(repr((int(seed), *path)).encode()).digest()


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """A numpy generator for this address; calling it twice gives the same numbers twice."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(_digest(seed, path), "little")))


def torch_stream(seed: int, *path: str | int) -> torch.Generator:
    """A torch generator for this address, for torch's initialisers, which take no other."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(_digest(seed, path)[:8], "little") >> 1)
    return generator


@contextmanager
def global_torch_stream(seed: int, *path: str | int) -> Iterator[None]:
    """torch's global generator follows this address inside the block, and is restored after it.

    Only for code that knows no other generator: constructors of layers, a user's own network.
    """
    import torch

    devices = list(range(torch.cuda.device_count()))
    generator = torch_stream(seed, *path)
    with torch.random.fork_rng(devices=devices):
        torch.set_rng_state(generator.get_state())
        for device in devices:
            gpu_generator = torch.Generator(f"cuda:{device}")
            gpu_generator.manual_seed(generator.initial_seed())
            torch.cuda.set_rng_state(gpu_generator.get_state(), device)
        yield
