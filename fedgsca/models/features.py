"""Frozen-backbone mode: one pass of all images through a pretrained network, at the site.

A pass uses two threads, because the number of threads changes the bytes. On a machine with eight
cores, four such passes run at the same time, in worker processes. Batches are the same as without
workers, and so are the bytes, whichever worker computes them.

A worker is `python -m fedgsca.models.features`, not a process of `multiprocessing`: it does not
import the caller's script again, and it may be started from any process. It receives the settings
and the weights, then batches of images, through its standard input, and ends when that is closed:
also when the process that started it is killed.

$FEDGSCA_FEATURE_WORKERS is their number; it concerns one machine only, so it is not a setting of
the experiment. By default there is one per two cores, and none where they would start for less
than they gain.
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgsca.config import ModelConfig
from fedgsca.errors import ConfigError
from fedgsca.models.build import build_frozen, spec_of
from fedgsca.support.console import activity
from fedgsca.support.registry import is_import_path

log = logging.getLogger(__name__)

VARIABLE = "FEDGSCA_FEATURE_WORKERS"
MAX_WORKERS = 64
# Limits of the automatic choice. A worker imports torch and builds the network, which takes two to
# three seconds of CPU time, and needs about half a gigabyte of memory.
_AUTOMATIC_LIMIT = 8
_START_SECONDS = 5.0
_LENGTH = struct.Struct("<Q")
# fixed: the number of threads changes the bytes, and the cache must not depend on who filled it
THREADS = 2
# images: fixed for the same reason
BATCH = 64

# first row -> images (b, H, W, 3)
Blocks = Mapping[int, np.ndarray]
Store = Callable[[int, np.ndarray], None]


class FeaturePass:
    """A frozen backbone that is ready to compute features of batches of images."""

    def __init__(self, backbone: nn.Module, model: ModelConfig) -> None:
        """The backbone is that of the configured frozen model (`build_frozen`)."""
        spec = spec_of(model.name)
        backbone.eval()
        if spec.channels_last:
            backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.backbone = backbone
        self.size = model.feature_size
        self.mean = torch.tensor(spec.mean).view(1, 3, 1, 1)
        self.std = torch.tensor(spec.std).view(1, 3, 1, 1)

    @torch.inference_mode()
    def compute(self, images: np.ndarray) -> np.ndarray:
        """(b, D) float32: features of images (b, H, W, 3) uint8, each vector standardised."""
        features = self.backbone(self.prepare(images))
        return np.asarray(F.layer_norm(features, features.shape[1:]).numpy())

    def prepare(self, images: np.ndarray) -> Tensor:
        """(b, 3, size, size): the input of the backbone."""
        pixels = torch.from_numpy(np.array(images))
        x = _resize(pixels.permute(0, 3, 1, 2).float(), self.size)
        return ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)


def extract(
    backbone: nn.Module,
    model: ModelConfig,
    images: np.ndarray,
    out: np.ndarray,
    *,
    batch: int = BATCH,
) -> None:
    """Fill out (n, D) with features of images (n, H, W, 3) uint8 by a model's frozen backbone.

    Every vector is standardised by itself (zero mean, unit variance over its D entries): heads then
    train at one learning rate whatever the backbone, and sites need not share any statistic.

    Worker processes may help. The bytes are the same with and without them.
    """
    feature_pass = FeaturePass(backbone, model)
    may_help = True
    starts = list(range(0, len(images), batch))
    with activity("computing features", len(images)) as advance, feature_threads():

        def store(start: int, features: np.ndarray) -> None:
            out[start : start + batch] = features
            advance(len(features))

        seconds = 0.0
        while starts:
            num_workers = choose_workers(model.name, len(starts), seconds) if may_help else 1
            if num_workers > 1:
                workers = FeatureWorkers(model, backbone, num_workers)
                blocks = {start: images[start : start + batch] for start in starts}
                starts = workers.compute(blocks, store)
                may_help = False  # what workers could not do is done here
                continue
            begin = time.perf_counter()
            start = starts.pop(0)
            store(start, feature_pass.compute(images[start : start + batch]))
            seconds = time.perf_counter() - begin


@contextmanager
def feature_threads() -> Iterator[None]:
    """Inside the block, torch uses the number of threads that features are computed with."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@torch.inference_mode()
def standardise(features: np.ndarray, out: np.ndarray, *, batch: int = 4096) -> None:
    """Fill out (n, D) with a user's own features, each vector standardised as in `extract`."""
    for start in range(0, len(features), batch):
        vectors = torch.from_numpy(np.array(features[start : start + batch], dtype=np.float32))
        out[start : start + batch] = F.layer_norm(vectors, vectors.shape[1:]).numpy()


def _resize(x: Tensor, size: int) -> Tensor:
    """(b, 3, H, W) -> (b, 3, size, size)."""
    if x.shape[-1] == size and x.shape[-2] == size:
        return x
    return F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False, antialias=True)


# ---- worker processes ----


def choose_workers(network: str, num_batches: int, seconds: float) -> int:
    """How many workers should compute `num_batches` batches; 1: none, in this process.

    `seconds` is what a batch has taken here, 0.0 before the first one. A network of the user's own
    is computed where it was made: its module may not exist elsewhere.
    """
    if is_import_path(network) or num_batches < 2:
        return 1
    count = read_setting()
    if count is not None:
        return min(count, num_batches)
    # a process of --jobs has siblings on the other cores
    if not seconds or multiprocessing.parent_process() is not None:
        return 1
    count = min(count_cores() // THREADS, _AUTOMATIC_LIMIT, num_batches)
    if count < 2 or num_batches * seconds * (1 - 1 / count) < 2 * _START_SECONDS:
        return 1
    return count


def read_setting() -> int | None:
    """The number of workers in the environment; None: automatic."""
    text = os.environ.get(VARIABLE, "").strip()
    if text in ("", "auto"):
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WORKERS:
        raise ConfigError(
            "model.invalid-feature-workers",
            f"{VARIABLE}={text!r} is not a number of processes",
            fix=f"use auto, or a number from 1 (no processes of their own) to {MAX_WORKERS}",
        )
    return int(text)


def count_cores() -> int:
    """The cores that this process may use."""
    find_affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    if find_affinity is None:
        return os.cpu_count() or 1
    return len(find_affinity(0))


class FeatureWorkers:
    """Processes that compute features with the weights of a backbone."""

    def __init__(self, model: ModelConfig, backbone: nn.Module, count: int) -> None:
        from safetensors.torch import save

        tensors = {key: value.contiguous() for key, value in backbone.state_dict().items()}
        self.opening = [model.model_dump_json().encode(), save(tensors)]
        self.count = count
        self.pending: queue.SimpleQueue[int] = queue.SimpleQueue()
        # None: a worker has ended
        self.results: queue.SimpleQueue[tuple[int, np.ndarray] | None] = queue.SimpleQueue()
        self.is_ending = threading.Event()

    def compute(self, blocks: Blocks, store: Store) -> list[int]:
        """Call `store(start, features)` for the images of each block, in any order.

        Returns the blocks that nobody computed because all workers were lost (out of memory) or
        none could be started. No worker is left when this returns, and none if it is interrupted.
        """
        for start in blocks:
            self.pending.put(start)
        open_blocks = dict.fromkeys(blocks)
        processes: list[subprocess.Popen[bytes]] = []
        threads: list[threading.Thread] = []
        try:
            for _ in range(self.count):
                process = _start_worker()
                if process is None:
                    break
                processes.append(process)
                arguments = (process, blocks)
                thread = threading.Thread(target=self._feed_worker, args=arguments, daemon=True)
                thread.start()
                threads.append(thread)
            num_active = len(threads)
            while num_active:
                result = self.results.get()
                if result is None:
                    num_active -= 1
                    continue
                store(*result)
                del open_blocks[result[0]]
        finally:
            self.is_ending.set()
            for process in processes:
                process.kill()
            for thread in threads:
                thread.join()
            for process in processes:
                process.wait()
                _close_pipes(process)
        return list(open_blocks)

    def _feed_worker(self, process: subprocess.Popen[bytes], blocks: Blocks) -> None:
        """Give blocks to one worker until none is left; those of a lost one go to the others."""
        assert process.stdin is not None
        assert process.stdout is not None
        start = None
        try:
            for message in self.opening:
                send_message(process.stdin, message)
            while True:
                start = self.pending.get_nowait()
                send_message(process.stdin, encode_array(blocks[start]))
                self.results.put((start, decode_array(receive_message(process.stdout))))
                start = None
        except queue.Empty:
            log.debug("a worker for features has nothing left to do")
        except (OSError, EOFError, ValueError) as error:
            if not self.is_ending.is_set():
                log.warning("a worker for features was lost (%s)", type(error).__name__)
            if start is not None:
                self.pending.put(start)
        finally:
            self.results.put(None)


def _start_worker() -> subprocess.Popen[bytes] | None:
    """A new worker; None if the system allows no further process."""
    # the same package, also where it is neither installed nor in PYTHONPATH
    places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "fedgsca.models.features"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
    except OSError as error:  # too many processes or open files, or too little memory
        log.warning("a worker for features cannot be started (%s)", error)
        return None


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # unsent bytes for a worker that is gone
                log.debug("the pipe of a worker was closed before everything was sent")


# ---- messages between a process and its workers ----


def send_message(stream: IO[bytes], message: bytes) -> None:
    """Its length, then the message."""
    stream.write(_LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def receive_message(stream: IO[bytes]) -> bytes:
    """The next message. Raises EOFError at the end of the stream."""
    (length,) = _LENGTH.unpack(_read_exactly(stream, _LENGTH.size))
    return _read_exactly(stream, length)


def _read_exactly(stream: IO[bytes], length: int) -> bytes:
    content = stream.read(length)
    if len(content) < length:
        raise EOFError
    return content


def encode_array(array: np.ndarray) -> bytes:
    """An array as the content of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def decode_array(content: bytes) -> np.ndarray:
    """The inverse of encode_array."""
    return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))


# ---- the worker ----


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Answer batches of images with their features until the input ends."""
    from safetensors.torch import load

    model = ModelConfig.model_validate_json(receive_message(source))
    backbone = build_frozen(model, seed=0)
    backbone.load_state_dict(load(receive_message(source)))
    feature_pass = FeaturePass(backbone, model)
    with feature_threads():
        while True:
            try:
                images = decode_array(receive_message(source))
            except EOFError:
                return
            send_message(target, encode_array(feature_pass.compute(images)))


def main() -> None:
    """Serve on the standard streams."""
    # Ctrl-C reaches all processes of a terminal; the one that started this worker ends it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is not a reply
    try:
        serve(sys.stdin.buffer, target)
    except (EOFError, BrokenPipeError):
        sys.exit(1)


if __name__ == "__main__":
    main()
